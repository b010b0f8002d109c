"""Counts every gRPC call, beside the requests over HTTP, and writes it to the access log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.loggable import loggable_path
from ocrsvc.telemetry.metrics import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.recent_errors import ErrorRecorder, Fault, fault_of

_NO_ADAPTER: Final = "grpc"


@dataclass(slots=True)
class CallRecord:
    """What is known of one call while it is under way.

    Attributes:
        adapter: The name of the API adapter, under which it is counted.
        path: As asked.
        caller: Address of the peer.
        id: The client's own, if it sent one.
        began_s: On `time.monotonic`.
        timed: Whether its seconds are counted; those of a stream are how long the client kept it open.
        bytes_in, bytes_out: Of its messages.
        code, error: How it ends: by default nobody waits for the answer any more.
    """

    adapter: str
    path: str
    caller: str
    id: str
    began_s: float
    timed: bool
    bytes_in: int = 0
    bytes_out: int = 0
    code: Code = Code.CANCELLED
    error: BaseException | None = None


class CallMetrics:
    """Counts calls; for the loop's thread.

    Args:
        metrics: Where they are counted.
        access_log: Where each is logged; None is nowhere.
        error_recorder: Where failures are kept for operators; None is nowhere.
    """

    def __init__(
        self,
        metrics: WorkerMetrics,
        access_log: AccessLog | None = None,
        error_recorder: ErrorRecorder | None = None,
    ) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._error_recorder = error_recorder

    def begin(self) -> None:
        """One call more is under way."""
        self._metrics.count(IN_FLIGHT)

    def end(self, record: CallRecord) -> None:
        """A call is over."""
        seconds, why = time.monotonic() - record.began_s, _why(record)
        times = ((REQUEST_SECONDS.of(record.adapter), seconds),) if record.timed else ()
        counts = [(IN_FLIGHT.of(), -1), (REQUESTS.of(record.adapter, record.code.name, why), 1)]
        if record.error is not None:
            counts.append((FAILURES.of(why), 1))
            self._note(record.error, record, why)
        if isinstance(record.error, Refused):
            counts.append((REFUSED.of(why), 1))
        self._metrics.record(counts, times)
        if self._access_log is not None:
            self._access_log.put(_event(record, why, seconds))

    def _note(self, error: BaseException, record: CallRecord, why: str) -> None:
        """Keep a failure for operators. What only gRPC knows are broken calls, and has no status of HTTP."""
        if self._error_recorder is None:
            return
        known = error if isinstance(error, OcrsvcError) else None
        fault: Fault = fault_of(known) if known else "caller" if isinstance(error, CallFailed) else "service"
        # A path of no adapter may be anything.
        route = record.path if record.adapter != _NO_ADAPTER else ""
        status = known.status if known else 0
        self._error_recorder.note(fault, status, why, adapter=record.adapter, route=route, request_id=record.id)


def _why(record: CallRecord) -> str:
    """The code, as over HTTP; of what only gRPC knows, that of its status."""
    if isinstance(record.error, OcrsvcError):
        return record.error.code
    if record.error is not None and not isinstance(record.error, CallFailed):
        return OcrsvcError.code
    return "ok" if record.code is Code.OK else f"grpc_{record.code.name.lower()}"


def _event(record: CallRecord, why: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=record.id,
        client=record.caller,
        method="POST",
        path=loggable_path(record.path),
        door=record.adapter,
        status=int(record.code),
        code=why,
        bytes_in=record.bytes_in,
        bytes_out=record.bytes_out,
        seconds=seconds,
    )
