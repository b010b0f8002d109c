"""Metrics, traces and access log of HTTP requests, for all adapters."""

import time
from dataclasses import dataclass, field
from typing import Final

from flask import Flask, Response
from werkzeug.wsgi import get_path_info

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.http.request import Request, current_request
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.history import History
from ocrsvc.telemetry.loggable import loggable_path
from ocrsvc.telemetry.metrics import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS
from ocrsvc.telemetry.metrics_store import MetricsStore, WorkerMetrics
from ocrsvc.telemetry.recent_errors import ErrorRecorder, RecentErrors, fault_of
from ocrsvc.telemetry.request_ids import clear_ids, set_ids
from ocrsvc.telemetry.trace_context import read_trace_context
from ocrsvc.telemetry.tracing import NoTracer, Tracer, put_request
from ocrsvc.telemetry.worker_table import WorkerTable

_SUCCESS: Final = "ok"
_NO_ADAPTER: Final = "none"
# Blueprints that monitoring polls; their requests start no traces.
_UNTRACED: Final = frozenset({"ops", "operators", "page"})
_ENDED: Final = (IN_FLIGHT.of(), -1)
_MAX_METHOD_CHARS: Final = 20
_FAILED: Final = 400
# orjson's largest integer; a client's Content-Length may be larger.
_MAX_BYTES: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The objects that count and log requests; `worker_metrics` and `error_recorder` write for this process only.

    The denylists hold images that crashed isolated engines, and request bodies that stopped workers.
    """

    store: MetricsStore
    worker_metrics: WorkerMetrics
    worker_table: WorkerTable = field(default_factory=WorkerTable)
    access_log: AccessLog | None = None
    image_denylist: CrashDenylist | None = None
    body_denylist: CrashDenylist | None = None
    errors: RecentErrors | None = None
    error_recorder: ErrorRecorder | None = None
    history: History | None = None
    tracer: Tracer = field(default_factory=NoTracer)


def metrics_of_one_process() -> RequestMetrics:
    """Metrics for a single process, for use under another WSGI server."""
    store, errors = MetricsStore(), RecentErrors()
    return RequestMetrics(store, store.common, errors=errors, error_recorder=errors.recorder())


class RequestCounter:
    """Counts every request of an application. Create it first, so that its hooks run before and after all others."""

    def __init__(self, app: Flask, request_metrics: RequestMetrics) -> None:
        self._metrics, self._worker_metrics = request_metrics, request_metrics.worker_metrics
        app.before_request(self.begin)
        app.teardown_request(self.end)

    def begin(self) -> None:
        """Flask `before_request` hook: count the request as in flight, and begin its trace."""
        self._worker_metrics.record(((IN_FLIGHT.of(), 1),))
        request = current_request()
        caller = read_trace_context(*(request.environ.get(f"HTTP_TRACE{name}", "") for name in ("PARENT", "STATE")))
        may_start_trace = request.blueprint not in _UNTRACED
        request.trace = self._metrics.tracer.begin(caller, _span_name(request), may_start_trace=may_start_trace)
        if request.trace is not None:
            request.ledger.trace_id = request.trace.sampled_id
        set_ids(request.id, request.trace)

    def end(self, _error: BaseException | None) -> None:
        """Flask `teardown_request` hook: count and log the finished request."""
        request = current_request()
        if request.response is None:
            self._worker_metrics.record((_ENDED,))
        else:
            self._count(request, request.response)
        request.end()
        clear_ids()

    def _count(self, request: Request, response: Response) -> None:
        seconds, adapter = time.monotonic() - request.taken_s, request.blueprint or _NO_ADAPTER
        status, code = response.status_code, request.stream_code or _SUCCESS
        if response.status_code >= _FAILED:
            code = request.failures[-1].code if request.failures else f"http_{status}"
        if request.failures or status >= _FAILED:
            self._note_failures(request, status, code, adapter)
        counts = (_ENDED, (REQUESTS.of(adapter, str(status), code), 1))
        self._worker_metrics.record(counts, ((REQUEST_SECONDS.of(adapter), seconds),), request.ledger.trace_id)
        if request.ledger.trace_id:
            error, attributes = code if status >= 500 else "", _attributes(request, status, adapter, code)
            where = (request.trace, request.ledger, request.began_s, _span_name(request))
            put_request(self._metrics.tracer, *where, attributes, error)
        if self._metrics.access_log is not None:
            self._metrics.access_log.put(_event(request, response, adapter, code, seconds))

    def _note_failures(self, request: Request, status: int, code: str, adapter: str) -> None:
        """Count all failures; record each error code once for operators, because many images may fail the same way."""
        for failure in request.failures:
            self._worker_metrics.count(FAILURES, failure.code)
            if isinstance(failure, Refused):
                self._worker_metrics.count(REFUSED, failure.code)
        recorder = self._metrics.error_recorder
        if recorder is None:
            return
        route = request.url_rule.rule if request.url_rule is not None else ""
        failures = {failure.code: (fault_of(failure), failure.status) for failure in request.failures}
        if not failures:
            failures[code] = ("caller" if status < OcrsvcError.status else "service", status)
        for failed_code, (fault, failed_status) in failures.items():
            recorder.note(fault, failed_status, failed_code, adapter=adapter, route=route, request_id=request.id)


def _span_name(request: Request) -> str:
    """The span's name: method and route, never the path, which could be any text."""
    rule, method = request.url_rule, request.method
    return f"{method} {rule.rule}" if rule is not None else method[:_MAX_METHOD_CHARS]


def _attributes(request: Request, status: int, adapter: str, code: str) -> dict[str, str | int]:
    """Span attributes, named by OpenTelemetry's conventions where they exist."""
    attributes: dict[str, str | int] = {
        "http.request.method": request.method[:_MAX_METHOD_CHARS],
        "http.response.status_code": status,
        "ocrsvc.request_id": request.id,
        "ocrsvc.adapter": adapter,
    }
    if request.url_rule is not None:
        attributes["http.route"] = request.url_rule.rule
    return attributes if code == _SUCCESS else attributes | {"error.type": code}


def _event(request: Request, response: Response, adapter: str, code: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=request.id,
        client=request.remote_addr or "",
        method=request.method,
        path=loggable_path(get_path_info(request.environ)),
        adapter=adapter,
        status=response.status_code,
        code=code,
        bytes_in=min(request.content_length or 0, _MAX_BYTES),
        bytes_out=request.streamed_bytes or response.content_length or response.calculate_content_length() or 0,
        seconds=seconds,
        trace_id=request.trace.trace_id if request.trace is not None else "",
        key=request.key.name if request.key is not None else "",
    )
