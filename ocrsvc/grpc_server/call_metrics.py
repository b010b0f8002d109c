"""Metrics, access log, recent errors and traces of gRPC calls."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.grpc_server.method import CallFailed, Code, Method
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.ledger import Ledger
from ocrsvc.telemetry.loggable import loggable_path
from ocrsvc.telemetry.metrics import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.recent_errors import ErrorRecorder, Fault, fault_of
from ocrsvc.telemetry.trace_context import PARENT_HEADER, STATE_HEADER, TraceContext, read_trace_context, request_id_of
from ocrsvc.telemetry.tracing import NoTracer, Tracer, put_request

_ID_KEY: Final = "x-request-id"
_MAX_PATH_CHARACTERS: Final = 256
_NO_ADAPTER: Final = "grpc"
# Status codes that are the server's fault, by OpenTelemetry's conventions.
_OUR_FAULT: Final = frozenset({Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE})


@dataclass(slots=True)
class CallRecord:
    """The data of one call for metrics and the access log; `code` is CANCELLED until the call has a status.

    `path` is the path as sent; `name` is service and method, if they exist. `id` is the client's request id if it may
    be logged, else a new one. The duration of streams is not measured.
    """

    adapter: str
    path: str
    name: str
    caller: str
    id: str
    began_s: float
    is_timed: bool
    ledger: Ledger
    trace: TraceContext | None
    bytes_in: int = 0
    bytes_out: int = 0
    code: Code = Code.CANCELLED
    error: BaseException | None = None
    key: str = ""

    def headers(self) -> list[tuple[str, str]]:
        """The response's metadata: request id and trace context."""
        return [(_ID_KEY, self.id), *(self.trace.headers().items() if self.trace is not None else ())]


@dataclass(eq=False)
class CallMetrics:
    """Counts and logs calls, and records failures and traces. For the loop's thread."""

    metrics: WorkerMetrics
    access_log: AccessLog | None = None
    error_recorder: ErrorRecorder | None = None
    tracer: Tracer = field(default_factory=NoTracer)

    def begin(self, headers: Mapping[str, str], method: Method, caller: str) -> CallRecord:
        """Count a new call, and begin its trace."""
        self.metrics.count(IN_FLIGHT)
        began_s, path = time.monotonic(), headers.get(":path", "")[:_MAX_PATH_CHARACTERS]
        name = path.lstrip("/") if method.request is not None else _NO_ADAPTER
        traced = read_trace_context(headers.get(PARENT_HEADER, ""), headers.get(STATE_HEADER, ""))
        trace = self.tracer.begin(traced, name, may_start_trace=not method.quick)
        ledger = Ledger(began_s)
        ledger.trace_id = trace.sampled_id if trace is not None else ""
        request_id, is_timed = request_id_of(headers.get(_ID_KEY, "")), not method.streaming
        return CallRecord(method.adapter, path, name, caller, request_id, began_s, is_timed, ledger, trace)

    def end(self, record: CallRecord) -> None:
        """Count and log a finished call."""
        seconds, code = time.monotonic() - record.began_s, _why(record)
        times = ((REQUEST_SECONDS.of(record.adapter), seconds),) if record.is_timed else ()
        counts = [(IN_FLIGHT.of(), -1), (REQUESTS.of(record.adapter, record.code.name, code), 1)]
        if record.error is not None:
            counts.append((FAILURES.of(code), 1))
            self._note(record.error, record, code)
        if isinstance(record.error, Refused):
            counts.append((REFUSED.of(code), 1))
        self.metrics.record(counts, times, record.ledger.trace_id)
        if record.trace is not None and record.trace.is_sampled:
            attributes, error = _attributes(record, code), code if record.code in _OUR_FAULT else ""
            put_request(self.tracer, record.trace, record.ledger, record.began_s, record.name, attributes, error)
        if self.access_log is not None:
            self.access_log.put(_event(record, code, seconds))

    def _note(self, error: BaseException, record: CallRecord, code: str) -> None:
        """Add a failure to the recent errors; a CallFailed is the caller's fault and has no HTTP status."""
        if self.error_recorder is None:
            return
        known = error if isinstance(error, OcrsvcError) else None
        fault: Fault = fault_of(known) if known else "caller" if isinstance(error, CallFailed) else "service"
        # An unknown path is not recorded, because it may be any text.
        route = record.path if record.adapter != _NO_ADAPTER else ""
        status = known.status if known else 0
        self.error_recorder.note(fault, status, code, adapter=record.adapter, route=route, request_id=record.id)


def _attributes(record: CallRecord, code: str) -> dict[str, str | int]:
    """Span attributes, by OpenTelemetry's conventions where they exist."""
    service, _, method = record.name.partition("/")
    attributes: dict[str, str | int] = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": int(record.code),
        "ocrsvc.request_id": record.id,
        "ocrsvc.adapter": record.adapter,
    }
    return attributes if record.code is Code.OK else attributes | {"error.type": code}


def _why(record: CallRecord) -> str:
    """The call's error code for metrics, as over HTTP; "grpc_" and the status name for an error that only gRPC has."""
    if isinstance(record.error, OcrsvcError):
        return record.error.code
    if record.error is not None and not isinstance(record.error, CallFailed):
        return OcrsvcError.code
    return "ok" if record.code is Code.OK else f"grpc_{record.code.name.lower()}"


def _event(record: CallRecord, code: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=record.id,
        client=record.caller,
        method="POST",
        path=loggable_path(record.path),
        adapter=record.adapter,
        status=int(record.code),
        code=code,
        bytes_in=record.bytes_in,
        bytes_out=record.bytes_out,
        seconds=seconds,
        trace_id=record.trace.trace_id if record.trace is not None else "",
        key=record.key,
    )
