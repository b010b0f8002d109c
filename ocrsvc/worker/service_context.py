"""The objects of one process: those that the arbiter creates and workers inherit by fork, and a worker's own."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from ocrsvc.access.page_counts import PageCounts
from ocrsvc.engines.model.encryption import ModelKey
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.serving.request_guard import InFlightTable
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan, plan_for
from ocrsvc.telemetry.access_log import AccessLog, Origin
from ocrsvc.telemetry.history import History, observe
from ocrsvc.telemetry.metrics import EVENTS_DROPPED, SPANS, SPANS_DROPPED
from ocrsvc.telemetry.metrics_store import MetricsStore, WorkerMetrics, count_reading
from ocrsvc.telemetry.recent_errors import ErrorRecorder, RecentErrors
from ocrsvc.telemetry.tracing import NoTracer, Tracer, batch_limits, is_tracing
from ocrsvc.telemetry.worker_table import SLOTS, WorkerTable
from ocrsvc.worker.certificate_watch import CertificateWatch
from ocrsvc.worker.hung_requests import HungRequests
from ocrsvc.worker.replacement_controller import ReplacementController

if TYPE_CHECKING:
    # Only for type checkers: these modules import Flask or numpy, which the arbiter must not load.
    from flask import Flask

    from ocrsvc.access.gate import AccessGate
    from ocrsvc.models.loaded_version import EngineThreads
    from ocrsvc.models.watcher import ModelWatcher
    from ocrsvc.models.worker_models import WorkerModels
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.results import Reading
    from ocrsvc.serving.memory_budget import SharedLimits
    from ocrsvc.serving.work_queue import RequestContext

# How long an ending worker waits for an unreachable trace collector.
_LAST_SPANS_S: Final = 1.0


class ServiceContext:
    """The process's objects. Created once, in the arbiter; a worker inherits it by fork, and fills in `worker`."""

    def __init__(self, settings: Settings) -> None:
        # The settings from the start or the last successful reload.
        self.settings = settings
        # Names of the GPUs that the workers share, listed before a worker is pinned to one.
        self.gpus: tuple[str, ...] = ()
        # gunicorn's pid file and addresses when the service started.
        self.pidfile: str | None = None
        self.addresses: object = None
        self.controller = ReplacementController(WorkerTable())
        # Images that crashed an engine's child process, and request bodies that hung or crashed a worker.
        self.image_denylist = CrashDenylist(settings.crash_denylist_size, settings.crash_denylist_s)
        self.request_denylist = CrashDenylist(settings.crash_denylist_size, settings.crash_denylist_s)
        self.in_flight = InFlightTable(SLOTS)
        log = logging.getLogger("gunicorn.error")
        self.hung_requests = HungRequests(self.in_flight, self.request_denylist, log)
        self.metrics = MetricsStore(SLOTS)
        self.errors = RecentErrors(SLOTS)
        self.history = History()
        self.certificate_watch = CertificateWatch(self.controller.worker_table.head, self.metrics.common, log)
        self.model_key: ModelKey | None = None
        self.grpc_listeners: tuple[socket.socket, ...] = ()
        self.jobs: JobStore | None = None
        self.page_counts = PageCounts(secrets.token_hex(8), SLOTS)
        # In the arbiter, and in a process without gunicorn's hooks, counts go to the metrics block that no worker owns.
        self.worker = WorkerContext(self.metrics.common, self.errors.recorder())

    def each_second(self) -> None:
        """Arbiter, once a second: check the certificates, and record the history for the operators' page."""
        self.certificate_watch.look()
        now_s = time.monotonic()
        if self.history.is_due(now_s):
            self.history.add(observe(self.metrics, self.controller.worker_table, now_s))

    def make_reader(self, plan: ThreadPlan) -> Reader:
        """Create a reader without starting it. Not for the arbiter, because it imports numeric libraries."""
        from ocrsvc.models.worker_models import open_worker_models
        from ocrsvc.pipeline.read import Reader

        settings, metrics, head = self.settings, self.worker.metrics, self.controller.worker_table.head

        def open_models(threads: EngineThreads) -> WorkerModels:
            models = open_worker_models(settings, plan, threads, self.image_denylist, metrics, self.model_key)
            if settings.models is not None:
                from ocrsvc.models.watcher import watch_models

                self.worker.models_watcher = watch_models(settings, plan, models, metrics)
            return models

        def note_reading(reading: Reading, context: RequestContext) -> None:
            count_reading(metrics, reading, context.ledger.trace_id, context.source)

        reader = Reader(settings, plan, models_opener=open_models, on_reading=note_reading)
        reader.is_leaving = lambda: bool(head.leaving)
        return reader

    def start_gate(self, slot_number: int = 0) -> None:
        """Worker, once: create the checker of API keys, if OCRSVC_KEYS is set."""
        if self.settings.keys is None or self.worker.gate is not None:
            return
        from ocrsvc.access.gate import AccessGate
        from ocrsvc.access.manage_keys import open_store

        self.worker.gate = AccessGate(open_store(self.settings.keys), self.page_counts, slot_number)
        self.worker.gate.start()
        self.worker.closing.callback(self.worker.gate.stop)

    def make_app(self) -> Flask:
        """Create the WSGI application that uses this worker's reader, which may be started later. Loads no model."""
        from ocrsvc.app import create_app
        from ocrsvc.http.admission import shared_limits_of
        from ocrsvc.http.request_metrics import RequestMetrics

        settings, worker = self.settings, self.worker
        metrics = worker.metrics
        if settings.access_log != "off":
            origin, on_drop = Origin(os.getpid(), worker.slot), partial(metrics.count, EVENTS_DROPPED)
            worker.access_log = AccessLog(settings.access_log, on_drop=on_drop, origin=origin)
        worker.limits = worker.limits or shared_limits_of(settings)
        self.start_gate()
        worker.reader = worker.reader or self.make_reader(plan_for(settings))
        image_denylist = self.image_denylist if settings.isolation != "thread" else None
        requests = RequestMetrics(
            *(self.metrics, metrics, self.controller.worker_table, worker.access_log),
            *(image_denylist, self.request_denylist, self.errors, worker.error_recorder),
            *(self.history, self._start_tracer()),
        )
        return create_app(settings, worker.reader, requests, worker.limits, self.jobs, worker.gate)

    def _start_tracer(self) -> Tracer:
        """Start this worker's tracer if traces are on; it stops with the worker."""
        if not is_tracing(self.settings, os.environ):
            return self.worker.tracer
        from ocrsvc.telemetry.otlp import make_tracer

        count = self.worker.metrics.count
        tracer = make_tracer(
            self.settings.trace_sample,
            batch_limits(os.environ),
            on_drop=lambda spans: count(SPANS_DROPPED, by=spans),
            on_export=lambda spans: count(SPANS, by=spans),
        )
        self.worker.closing.callback(tracer.stop, _LAST_SPANS_S)
        self.worker.tracer = tracer
        return tracer


@dataclass(slots=True)
class WorkerContext:
    """The objects of one worker; those that are not configured or not created yet are None."""

    metrics: WorkerMetrics
    error_recorder: ErrorRecorder
    slot: int | None = None
    reader: Reader | None = None
    limits: SharedLimits | None = None
    access_log: AccessLog | None = None
    gate: AccessGate | None = None
    models_watcher: ModelWatcher | None = None
    tracer: Tracer = field(default_factory=NoTracer)
    # Callbacks to run when the worker ends, in reverse order.
    closing: ExitStack = field(default_factory=ExitStack)
