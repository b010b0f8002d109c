"""Counts every HTTP request, whichever API adapter answers it, and writes it to the access log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from flask import Flask, Response
from werkzeug.wsgi import get_path_info

from ocrsvc.errors import Refused
from ocrsvc.http.request import request
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.telemetry.access_log import AccessLog, Event
from ocrsvc.telemetry.loggable import loggable_path
from ocrsvc.telemetry.metrics_store import (
    FAILURES,
    IN_FLIGHT,
    REFUSED,
    REQUEST_SECONDS,
    REQUESTS,
    MetricsStore,
    WorkerMetrics,
)
from ocrsvc.telemetry.request_ids import clear_ids, set_ids
from ocrsvc.telemetry.trace_context import read_trace_context
from ocrsvc.telemetry.tracing import NoTracer, Tracer, put_request
from ocrsvc.telemetry.worker_table import WorkerTable

_SUCCESS: Final = "ok"
_NO_ADAPTER: Final = "none"
# What monitors ask for again and again.
_UNTRACED: Final = frozenset({"ops", "operators", "page"})
_LONGEST_METHOD: Final = 20
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
        tracer: Records the traces of requests.
    """

    store: MetricsStore
    worker_metrics: WorkerMetrics
    worker_table: WorkerTable = field(default_factory=WorkerTable)
    access_log: AccessLog | None = None
    image_denylist: CrashDenylist | None = None
    body_denylist: CrashDenylist | None = None
    tracer: Tracer = field(default_factory=NoTracer)


def metrics_of_one_process() -> RequestMetrics:
    """The metrics of a process that serves alone, as under another WSGI server."""
    store = MetricsStore()
    return RequestMetrics(store, store.common)


def install_request_metrics(app: Flask, request_metrics: RequestMetrics) -> None:
    """Count every request of the application, from its head to its response; called before all other hooks."""
    worker_metrics, access_log = request_metrics.worker_metrics, request_metrics.access_log
    tracer, over = request_metrics.tracer, (IN_FLIGHT.of(), -1)

    @app.before_request
    def begin() -> None:
        worker_metrics.record(((IN_FLIGHT.of(), 1),))
        sent = request.environ
        caller = read_trace_context(sent.get("HTTP_TRACEPARENT", ""), sent.get("HTTP_TRACESTATE", ""))
        is_traced_alone = request.blueprint not in _UNTRACED
        request.trace = tracer.begin(caller, _span_name(), is_traced_alone=is_traced_alone)
        if request.trace is not None:
            request.ledger.trace_id = request.trace.sampled_id
        set_ids(request.id, request.trace)

    @app.teardown_request
    def end(_error: BaseException | None) -> None:
        if request.response is None:
            worker_metrics.record((over,))
        else:
            count(request.response)
        request.end()
        clear_ids()

    def count(response: Response) -> None:
        seconds, adapter = time.monotonic() - request.taken_s, request.blueprint or _NO_ADAPTER
        code = _count_failures(worker_metrics, response.status_code)
        counts = (over, (REQUESTS.of(adapter, str(response.status_code), code), 1))
        worker_metrics.record(counts, ((REQUEST_SECONDS.of(adapter), seconds),), request.ledger.trace_id)
        trace = request.trace
        if trace is not None and trace.is_sampled:
            error = code if response.status_code >= 500 else ""
            put_request(tracer, trace, request.ledger, request.began_s, _span_name(), _attributes(adapter, code), error)
        if access_log is not None:
            access_log.put(_event(response, adapter, code, seconds))


def _span_name() -> str:
    """Method and route: whatever a caller may write into a path is not in it."""
    rule = request.url_rule
    return f"{request.method} {rule.rule}" if rule is not None else request.method[:_LONGEST_METHOD]


def _attributes(adapter: str, code: str) -> dict[str, str | int]:
    """By OpenTelemetry's conventions where there is one."""
    status = request.response.status_code if request.response is not None else 0
    attributes: dict[str, str | int] = {
        "http.request.method": request.method[:_LONGEST_METHOD],
        "http.response.status_code": status,
        "ocrsvc.request_id": request.id,
        "ocrsvc.adapter": adapter,
    }
    if request.url_rule is not None:
        attributes["http.route"] = request.url_rule.rule
    return attributes if code == _SUCCESS else attributes | {"error.type": code}


def _count_failures(worker_metrics: WorkerMetrics, status: int) -> str:
    """Count what failed in this request; returns the code of the request itself."""
    for failure in request.failures:
        worker_metrics.count(FAILURES, failure.code)
        if isinstance(failure, Refused):
            worker_metrics.count(REFUSED, failure.code)
    if status < 400:
        return _SUCCESS
    return request.failures[-1].code if request.failures else f"http_{status}"


def _event(response: Response, adapter: str, code: str, seconds: float) -> Event:
    return Event(
        at_s=time.time() - seconds,
        id=request.id,
        client=request.remote_addr or "",
        method=request.method,
        path=loggable_path(get_path_info(request.environ)),
        door=adapter,
        status=response.status_code,
        code=code,
        bytes_in=min(request.content_length or 0, _MOST_BYTES),
        bytes_out=response.calculate_content_length() or 0,
        seconds=seconds,
        trace_id=request.trace.trace_id if request.trace is not None else "",
    )
