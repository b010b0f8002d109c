"""Counts every HTTP request, whichever API adapter answers it, and writes it to the access log."""

from __future__ import annotations

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
# What monitors ask for again and again.
_UNTRACED: Final = frozenset({"ops", "operators", "page"})
_LONGEST_METHOD: Final = 20
_FAILED: Final = 400
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
        errors: The last failures of the whole service.
        error_recorder: This process's own part of them.
        history: The last ten minutes of the service.
        tracer: Records the traces of requests.
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
    """The metrics of a process that serves alone, as under another WSGI server."""
    store, errors = MetricsStore(), RecentErrors()
    return RequestMetrics(store, store.common, errors=errors, error_recorder=errors.recorder())


def install_request_metrics(app: Flask, request_metrics: RequestMetrics) -> None:
    """Count every request of the application, from its head to its response; called before all other hooks."""
    worker_metrics, access_log = request_metrics.worker_metrics, request_metrics.access_log
    tracer, over = request_metrics.tracer, (IN_FLIGHT.of(), -1)

    @app.before_request
    def begin() -> None:
        worker_metrics.record(((IN_FLIGHT.of(), 1),))
        begun = current_request()
        sent = begun.environ
        caller = read_trace_context(sent.get("HTTP_TRACEPARENT", ""), sent.get("HTTP_TRACESTATE", ""))
        is_traced_alone = begun.blueprint not in _UNTRACED
        begun.trace = tracer.begin(caller, _span_name(begun), is_traced_alone=is_traced_alone)
        if begun.trace is not None:
            begun.ledger.trace_id = begun.trace.sampled_id
        set_ids(begun.id, begun.trace)

    @app.teardown_request
    def end(_error: BaseException | None) -> None:
        ended = current_request()
        if ended.response is None:
            worker_metrics.record((over,))
        else:
            count(ended, ended.response)
        ended.end()
        clear_ids()

    def count(ended: Request, response: Response) -> None:
        seconds, adapter = time.monotonic() - ended.taken_s, ended.blueprint or _NO_ADAPTER
        code = _count_failures(ended, worker_metrics, response.status_code)
        if request_metrics.error_recorder is not None and (ended.failures or response.status_code >= _FAILED):
            _note_failures(ended, request_metrics.error_recorder, response.status_code, code, adapter)
        counts = (over, (REQUESTS.of(adapter, str(response.status_code), code), 1))
        worker_metrics.record(counts, ((REQUEST_SECONDS.of(adapter), seconds),), ended.ledger.trace_id)
        if ended.ledger.trace_id:
            error = code if response.status_code >= 500 else ""
            attributes = _attributes(ended, response.status_code, adapter, code)
            put_request(tracer, ended.trace, ended.ledger, ended.began_s, _span_name(ended), attributes, error)
        if access_log is not None:
            access_log.put(_event(ended, response, adapter, code, seconds))


def _span_name(asked: Request) -> str:
    """Method and route: whatever a caller may write into a path is not in it."""
    rule, method = asked.url_rule, asked.method
    return f"{method} {rule.rule}" if rule is not None else method[:_LONGEST_METHOD]


def _attributes(ended: Request, status: int, adapter: str, code: str) -> dict[str, str | int]:
    """By OpenTelemetry's conventions where there is one."""
    attributes: dict[str, str | int] = {
        "http.request.method": ended.method[:_LONGEST_METHOD],
        "http.response.status_code": status,
        "ocrsvc.request_id": ended.id,
        "ocrsvc.adapter": adapter,
    }
    if ended.url_rule is not None:
        attributes["http.route"] = ended.url_rule.rule
    return attributes if code == _SUCCESS else attributes | {"error.type": code}


def _count_failures(ended: Request, worker_metrics: WorkerMetrics, status: int) -> str:
    """Count what failed in a request; returns the code of the request itself."""
    for failure in ended.failures:
        worker_metrics.count(FAILURES, failure.code)
        if isinstance(failure, Refused):
            worker_metrics.count(REFUSED, failure.code)
    if status < _FAILED:
        return ended.stream_code or _SUCCESS
    return ended.failures[-1].code if ended.failures else f"http_{status}"


def _note_failures(ended: Request, recorder: ErrorRecorder, status: int, code: str, adapter: str) -> None:
    """Keep what failed in a request for operators, each code once: its images may all fail in the same way."""
    route = ended.url_rule.rule if ended.url_rule is not None else ""
    failures = {failure.code: (fault_of(failure), failure.status) for failure in ended.failures}
    if not failures:
        failures[code] = ("caller" if status < OcrsvcError.status else "service", status)
    for failed_code, (fault, failed_status) in failures.items():
        recorder.note(fault, failed_status, failed_code, adapter=adapter, route=route, request_id=ended.id)


def _event(ended: Request, response: Response, adapter: str, code: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=ended.id,
        client=ended.remote_addr or "",
        method=ended.method,
        path=loggable_path(get_path_info(ended.environ)),
        door=adapter,
        status=response.status_code,
        code=code,
        bytes_in=min(ended.content_length or 0, _MOST_BYTES),
        bytes_out=ended.streamed_bytes or response.content_length or response.calculate_content_length() or 0,
        seconds=seconds,
        trace_id=ended.trace.trace_id if ended.trace is not None else "",
        key=ended.key.name if ended.key is not None else "",
    )
