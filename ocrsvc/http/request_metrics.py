"""Counts every HTTP request, whichever API adapter answers it, and writes it to the access log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from flask import Response
from werkzeug.wsgi import get_path_info

from ocrsvc.http.error_responses import answer_of, failures_told
from ocrsvc.http.request import request_id
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.metrics_store import (
    FAILURES,
    IN_FLIGHT,
    REFUSED,
    REQUEST_SECONDS,
    REQUESTS,
    MetricsStore,
    WorkerMetrics,
)
from ocrsvc.telemetry.worker_table import WorkerTable

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]

_SUCCESS: Final = "ok"
# What JSON's writer takes; a client may declare any length.
_MOST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Where the numbers of the service are kept; by default those of this process alone.

    Attributes:
        numbers: Of the whole service.
        tally: This process's own part of them.
        board: How the workers stand; empty where no arbiter of ours made it.
        access_log: Where each request is told; None is nowhere.
        quarantine: Which images killed engines; None where engines are not isolated.
        denylist: Which bodies stopped workers.
    """

    numbers: MetricsStore
    tally: WorkerMetrics
    board: WorkerTable = field(default_factory=WorkerTable)
    access_log: AccessLog | None = None
    quarantine: CrashDenylist | None = None
    denylist: CrashDenylist | None = None


def metrics_of_one_process() -> RequestMetrics:
    """The ledger of a process that serves alone, as under another WSGI server."""
    numbers = MetricsStore()
    return RequestMetrics(numbers, numbers.common)


def counted(application: Application, ledger: RequestMetrics) -> Application:
    """A WSGI application whose every request is counted, from its headers to its answer.

    Around the application and not in Flask's own hooks, which cost twice as much as the counting.
    """
    tally, access_log = ledger.tally, ledger.access_log
    begun, over = ((IN_FLIGHT.of(), 1),), (IN_FLIGHT.of(), -1)

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        began_s = time.monotonic()
        tally.record(begun)
        try:
            body = application(environ, start_response)
        except BaseException:
            tally.record((over,))
            raise
        seconds, (door, response) = time.monotonic() - began_s, answer_of(environ)
        code = _count_failures(tally, environ, response.status_code)
        counts = (over, (REQUESTS.of(door, str(response.status_code), code), 1))
        tally.record(counts, ((REQUEST_SECONDS.of(door), seconds),))
        if access_log is not None:
            access_log.put(_event(environ, response, door, code, seconds))
        return body

    return run


def _count_failures(tally: WorkerMetrics, environ: Environ, status: int) -> str:
    """Count what failed in this request; returns the code of the request itself."""
    told = failures_told(environ)
    for failure in told:
        tally.count(FAILURES, failure.code)
        if failure.is_refusal:
            tally.count(REFUSED, failure.code)
    if status < 400:
        return _SUCCESS
    return told[-1].code if told else f"http_{status}"


def _event(environ: Environ, response: Response, door: str, code: str, seconds: float) -> Event:
    length = environ.get("CONTENT_LENGTH") or ""
    return Event(
        at_s=time.time() - seconds,
        id=request_id(environ),
        client=environ.get("REMOTE_ADDR") or "",
        method=environ["REQUEST_METHOD"],
        path=get_path_info(environ),
        door=door,
        status=response.status_code,
        code=code,
        bytes_in=min(int(length), _MOST) if length.isdecimal() else 0,
        bytes_out=response.calculate_content_length() or 0,
        seconds=seconds,
    )
