"""How does every request, whichever door it takes, get into the numbers and into the access log?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from flask import Flask, Response, request

from ocrsvc.logs import AccessLog, Event
from ocrsvc.metrics import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS, Numbers, Tally
from ocrsvc.web.failures import failures_told
from ocrsvc.web.incoming import request_id
from ocrsvc.worker.scoreboard import Board

_BEGAN_KEY: Final = "ocrsvc.began_s"
_NO_DOOR: Final = "none"
_SUCCESS: Final = "ok"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the numbers of the service are kept; by default those of this process alone.

    Attributes:
        numbers: Of the whole service.
        tally: This process's own part of them.
        board: How the workers stand; empty where no arbiter of ours made it.
        access_log: Where each request is told; None is nowhere.
    """

    numbers: Numbers
    tally: Tally
    board: Board = field(default_factory=Board)
    access_log: AccessLog | None = None


def ledger_of_one() -> Ledger:
    """The ledger of a process that serves alone, as under another WSGI server."""
    numbers = Numbers()
    return Ledger(numbers, numbers.common)


def install_counting(app: Flask, ledger: Ledger) -> None:
    """Count every request of the application, from its headers to its answer."""
    tally, access_log, in_flight = ledger.tally, ledger.access_log, IN_FLIGHT.of()

    @app.before_request
    def begin() -> None:
        request.environ[_BEGAN_KEY] = time.monotonic()
        tally.record(((in_flight, 1),))

    @app.after_request
    def end(response: Response) -> Response:
        seconds = time.monotonic() - request.environ[_BEGAN_KEY]
        door, code = request.blueprint or _NO_DOOR, _count_failures(tally, response.status_code)
        counts = ((in_flight, -1), (REQUESTS.of(door, str(response.status_code), code), 1))
        tally.record(counts, ((REQUEST_SECONDS.of(door), seconds),))
        if access_log is not None:
            access_log.put(_event(response, door, code, seconds))
        return response


def _count_failures(tally: Tally, status: int) -> str:
    """Count what failed in this request; returns the code of the request itself."""
    told = failures_told(request.environ)
    for failure in told:
        tally.count(FAILURES, failure.code)
        if failure.is_refusal:
            tally.count(REFUSED, failure.code)
    if status < 400:
        return _SUCCESS
    return told[-1].code if told else f"http_{status}"


def _event(response: Response, door: str, code: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=request_id(request.environ),
        client=request.remote_addr or "",
        method=request.method,
        path=request.path,
        door=door,
        status=response.status_code,
        code=code,
        bytes_in=request.content_length or 0,
        bytes_out=response.calculate_content_length() or 0,
        seconds=seconds,
    )
