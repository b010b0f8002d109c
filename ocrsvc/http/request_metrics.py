"""Counts every HTTP request, whichever API adapter answers it, and writes it to the access log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from flask import Response
from werkzeug.wsgi import get_path_info

from ocrsvc.http.error_responses import adapter_and_response, reported_failures
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
_MOST_BYTES: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Where the requests of the service are counted and logged; by default for this process alone.

    Attributes:
        store: The metrics of the whole service.
        worker_metrics: This process's own part of them.
        worker_table: The state of all workers; empty where no arbiter of ours made it.
        access_log: Where each request is logged; None is nowhere.
        image_denylist: Images that crashed engines; None where engines are not isolated.
        body_denylist: Request bodies that stopped workers.
    """

    store: MetricsStore
    worker_metrics: WorkerMetrics
    worker_table: WorkerTable = field(default_factory=WorkerTable)
    access_log: AccessLog | None = None
    image_denylist: CrashDenylist | None = None
    body_denylist: CrashDenylist | None = None


def metrics_of_one_process() -> RequestMetrics:
    """The metrics of a process that serves alone, as under another WSGI server."""
    store = MetricsStore()
    return RequestMetrics(store, store.common)


def counted(application: Application, request_metrics: RequestMetrics) -> Application:
    """A WSGI application whose every request is counted, from its headers to its answer.

    Around the application and not in Flask's own hooks, which cost twice as much as the counting.
    """
    worker_metrics, access_log = request_metrics.worker_metrics, request_metrics.access_log
    begun, over = ((IN_FLIGHT.of(), 1),), (IN_FLIGHT.of(), -1)

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        began_s = time.monotonic()
        worker_metrics.record(begun)
        try:
            body = application(environ, start_response)
        except BaseException:
            worker_metrics.record((over,))
            raise
        seconds, (adapter, response) = time.monotonic() - began_s, adapter_and_response(environ)
        code = _count_failures(worker_metrics, environ, response.status_code)
        counts = (over, (REQUESTS.of(adapter, str(response.status_code), code), 1))
        worker_metrics.record(counts, ((REQUEST_SECONDS.of(adapter), seconds),))
        if access_log is not None:
            access_log.put(_event(environ, response, adapter, code, seconds))
        return body

    return run


def _count_failures(worker_metrics: WorkerMetrics, environ: Environ, status: int) -> str:
    """Count what failed in this request; returns the code of the request itself."""
    reported = reported_failures(environ)
    for failure in reported:
        worker_metrics.count(FAILURES, failure.code)
        if failure.is_refusal:
            worker_metrics.count(REFUSED, failure.code)
    if status < 400:
        return _SUCCESS
    return reported[-1].code if reported else f"http_{status}"


def _event(environ: Environ, response: Response, adapter: str, code: str, seconds: float) -> Event:
    length = environ.get("CONTENT_LENGTH") or ""
    return Event(
        at_s=time.time() - seconds,
        id=request_id(environ),
        client=environ.get("REMOTE_ADDR") or "",
        method=environ["REQUEST_METHOD"],
        path=get_path_info(environ),
        door=adapter,
        status=response.status_code,
        code=code,
        bytes_in=min(int(length), _MOST_BYTES) if length.isdecimal() else 0,
        bytes_out=response.calculate_content_length() or 0,
        seconds=seconds,
    )
