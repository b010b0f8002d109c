"""Boot a worker: pin its GPU, load and warm the engine, start its background threads, and log READY."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from ocrsvc.access.key_routes import routes_of
from ocrsvc.connections.tls_socket import Handshakes
from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.system.allocator import limit_arenas
from ocrsvc.system.gpu import VISIBLE, GpuMemoryReader, open_gpu_memory_reader, pin_gpu
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.system.sandbox import forbid_core_dumps
from ocrsvc.system.thread_plan import device_for, plan_for
from ocrsvc.telemetry.metrics import JOBS, LINES_DROPPED, STUCK, WAITING
from ocrsvc.telemetry.metrics_store import Sampler
from ocrsvc.telemetry.worker_table import Head, State
from ocrsvc.worker.certificate_watch import follow
from ocrsvc.worker.connection import RequestLimits
from ocrsvc.worker.gunicorn_internals import RecyclingWorker
from ocrsvc.worker.logger import log_in_background
from ocrsvc.worker.replacement_controller import BOOT_FAILED, is_next_to_load
from ocrsvc.worker.request_threads import quick_paths
from ocrsvc.worker.service_context import ServiceContext
from ocrsvc.worker.watch import STDERR, Limits, Watch, end_with_arbiter, gpu_bounds, rss_bounds

if TYPE_CHECKING:
    # Only for type checkers: this module imports numpy, which the arbiter must not load.
    from ocrsvc.pipeline.read import Reader

_TURN_CHECK_S: Final = 0.1
_HEARTBEAT_S: Final = 1.0
# Python's thread switch interval. With the default of 5 ms a health check would wait 5 ms per busy thread.
_SWITCH_S: Final = 0.001
# Limit for stopping the reader and the job threads. The graceful timeout has passed: open work is past its deadline.
_STOP_S: Final = 2.0
_FLUSH_LOG_S: Final = 1.0


def prepare(service: ServiceContext, worker: RecyclingWorker) -> None:
    """After the fork: create the objects that the application needs. Exits the process on failure."""
    # Until gunicorn installs the worker's own handlers, the handler inherited from the arbiter would swallow SIGTERM.
    signal.signal(signal.SIGTERM, worker.handle_exit)
    service.controller.restore_config(worker.cfg)
    worker.entry.pid = os.getpid()
    service.worker.metrics = service.metrics.worker_metrics(worker.slot_number)
    service.worker.slot = worker.slot_number
    service.worker.error_recorder = service.errors.recorder(worker.slot_number)
    # From here on a background thread writes this worker's log.
    on_drop = partial(service.worker.metrics.count, LINES_DROPPED)
    background = log_in_background(worker.log, worker.slot_number, on_drop)
    worker.flush_log = partial(background.wait, _FLUSH_LOG_S)
    service.worker.closing.callback(background.stop, _FLUSH_LOG_S)
    limit_arenas()
    sys.setswitchinterval(_SWITCH_S)
    # With several GPUs, or GPUs named in OCRSVC_GPUS, this worker sees only the one that the arbiter chose for it.
    if len(service.gpus) > 1 or (service.gpus and service.settings.gpus):
        pin_gpu(os.environ, service.controller.gpus[worker.entry.gpu])
        worker.log.info("Slot %s computes on GPU %s", worker.slot_number, os.environ[VISIBLE])
    with _exiting_on_failure(worker, service.controller.worker_table.head):
        threading.Thread(target=end_with_arbiter, args=(worker,), name="orphan", daemon=True).start()
        plan = plan_for(service.settings, workers=worker.cfg.workers, threads=worker.cfg.threads)
        service.start_gate(worker.slot_number)
        _limit_requests(service, worker)
        service.worker.reader = service.make_reader(plan)
        worker.engine_threads = plan.engine_threads


def _limit_requests(service: ServiceContext, worker: RecyclingWorker) -> None:
    """Set the request limits; the event loop and the request threads share one memory budget."""
    from ocrsvc.http.admission import KeyCheck, shared_limits_of
    from ocrsvc.serving.request_guard import RequestGuard

    settings = service.settings
    guard = RequestGuard(service.in_flight.recorder(worker.slot_number), service.request_denylist)
    limits = service.worker.limits = shared_limits_of(settings, worker.cfg.workers, guard)
    gate = service.worker.gate
    worker.limits = RequestLimits(
        *(limits.memory, settings.max_body_bytes, settings.deadline_s, quick_paths(settings.adapters)),
        *(None if gate is None else KeyCheck(gate, routes_of(settings)).refusal_of_head, settings.caller_header),
    )


def load(service: ServiceContext, worker: RecyclingWorker) -> None:
    """Load and warm the engine and start the services, before the worker accepts requests. Exits on failure."""
    if service.model_key is not None:
        # Called again, because a change of user by gunicorn removes the protection.
        forbid_core_dumps()
    # Exit only this worker: on an error here, gunicorn would end the whole service.
    with _exiting_on_failure(worker, service.controller.worker_table.head):
        reader, closing = service.worker.reader, service.worker.closing
        assert reader is not None, "set by `prepare`"
        if service.worker.access_log is not None:
            closing.callback(service.worker.access_log.stop, _FLUSH_LOG_S)
        closing.callback(reader.stop, _STOP_S)
        gauge = _open_engine(service, worker, reader)
        _start_samplers(service, reader)
        if (watcher := service.worker.models_watcher) is not None:
            watcher.start()
            closing.callback(watcher.stop)
        _start_runner(service, worker, reader)
        _start_grpc(service, worker, reader)
        _note_ready(service, worker, reader, gauge)


def _open_engine(service: ServiceContext, worker: RecyclingWorker, reader: Reader) -> GpuMemoryReader | None:
    """Load and warm the engine when it is this worker's turn; return its GPU memory reader, None on the CPU."""
    with _heartbeat(worker):
        gauge = _open_gauge(service, worker)
    began_s = time.monotonic()
    worker.log.info("Loading the engine %s", service.settings.engine)
    with _heartbeat(worker, service.settings.boot_limit_s):
        reader.start()
    engine, seconds = reader.describe(), time.monotonic() - began_s
    facts = (seconds, engine.name, engine.model, engine.device, engine.provider)
    worker.log.info("READY in %.1f s: engine=%s model=%s device=%s provider=%s", *facts)
    if engine.device != "cuda":
        return None
    if gauge is None:
        worker.log.warning("The engine's GPU cannot be read: only RSS limits apply to this worker.")
    return gauge


def _start_samplers(service: ServiceContext, reader: Reader) -> None:
    """Start threads that periodically update gauges of the queue, models, jobs and keys, until this worker ends."""
    context = service.worker
    # One thread per sampler, so that a hanging disk does not delay the other gauges.
    samplers = [
        Sampler(context.metrics, lambda: ((WAITING, reader.waiting()), (STUCK, reader.stuck_threads()))),
        Sampler(context.metrics, reader.worker_models.loaded.gauges),
    ]
    if service.jobs is not None:
        from ocrsvc.jobs.job_store import USAGE_S, read_usage

        samplers.append(Sampler(context.metrics, partial(read_usage, service.jobs), USAGE_S))
    if context.gate is not None:
        from ocrsvc.access.gate import KEY_COUNTS_S, read_key_counts

        samplers.append(Sampler(context.metrics, partial(read_key_counts, context.gate), KEY_COUNTS_S))
    for sampler in samplers:
        sampler.start()
        context.closing.callback(sampler.stop)


def _open_gauge(service: ServiceContext, worker: RecyclingWorker) -> GpuMemoryReader | None:
    """Wait for this worker's turn to load (two loads at once cannot be measured); return the GPU memory reader."""
    settings, table = service.settings, service.controller.worker_table
    if "cpu" in (settings.device, settings.provider):
        return None
    gauge = open_gpu_memory_reader(worker.log, worker.siblings())
    # Workers take turns even if the GPU cannot be measured: they share the GPU and TensorRT's engine folder.
    has_waited, on_gpu = False, gauge is not None or device_for(settings) == "cuda"
    while on_gpu and not is_next_to_load(worker.slot_number, table.live()):
        time.sleep(_TURN_CHECK_S)
        has_waited = True
    return open_gpu_memory_reader(worker.log, worker.siblings()) if has_waited else gauge


def _start_grpc(service: ServiceContext, worker: RecyclingWorker, reader: Reader) -> None:
    """Serve gRPC beside HTTP, if OCRSVC_GRPC_BIND is set."""
    if not service.grpc_listeners:
        return
    from ocrsvc.adapters.model_protocols.ocr_model import make_model
    from ocrsvc.grpc_server.access import CallAccess
    from ocrsvc.grpc_server.call_metrics import CallMetrics
    from ocrsvc.grpc_server.server import RpcServer
    from ocrsvc.grpc_server.server_state import ServerState
    from ocrsvc.grpc_services import make_services

    def count(change: int) -> None:
        worker.nr += max(0, change)
        worker.load.count(change, is_grpc=True)

    settings, context, certificates = service.settings, service.worker, service.certificate_watch.certificates
    assert context.limits is not None, "set by `prepare`"
    state = ServerState(
        make_services(make_model(settings, reader, service.metrics, context.metrics), settings.adapters),
        threads=worker.cfg.threads,
        max_bytes=settings.max_body_bytes,
        limit_s=settings.deadline_s,
        shared=context.limits,
        call_metrics=CallMetrics(context.metrics, context.access_log, context.error_recorder, context.tracer),
        on_call=count,
        access=CallAccess(context.gate, routes_of(settings)) if context.gate is not None else None,
    )
    handshakes = None
    if certificates is not None:
        shared = (settings.tls_names, context.metrics, worker.log.error_log)
        handshakes = Handshakes(lambda: certificates.current.grpc, *shared)
    worker.grpc_server = RpcServer(service.grpc_listeners, state, handshakes)
    worker.grpc_server.start()
    context.closing.callback(worker.grpc_server.stop, 0.0)


def _start_runner(service: ServiceContext, worker: RecyclingWorker, reader: Reader) -> None:
    """Run jobs and send their callbacks, until this worker ends."""
    if service.jobs is None:
        return
    from ocrsvc.jobs.callbacks import CallbackSender
    from ocrsvc.jobs.job_runner import JobRunner

    metrics, settings = service.worker.metrics, service.settings
    service.jobs.note = partial(metrics.count, JOBS)

    def is_leaving() -> bool:
        return worker.entry.state == State.DRAINING or not worker.alive

    runner = JobRunner(service.jobs, reader, settings.deadline_s, is_leaving, service.worker.gate)
    runner.thread.start()
    service.worker.closing.callback(runner.thread.stop, _STOP_S)
    if settings.callback_hosts:
        sender = CallbackSender(service.jobs.database, settings, service.jobs.note)
        sender.threads.start()
        service.worker.closing.callback(sender.threads.stop, _STOP_S)


def _note_ready(
    service: ServiceContext, worker: RecyclingWorker, reader: Reader, gauge: GpuMemoryReader | None
) -> None:
    """Start the watch thread, serve TLS, and mark the worker READY."""
    settings, head, entry = service.settings, service.controller.worker_table.head, worker.entry
    entry.rss_bytes = read_rss_bytes()
    # With isolation the child processes hold the models.
    models = None if settings.isolation == "process" else reader.worker_models.loaded
    models_bytes, budget_bytes = (models.held_bytes(), models.budget_bytes or 0) if models is not None else (0, 0)
    rss = rss_bounds(worker, settings, max(0, budget_bytes - models_bytes))
    gpu = gpu_bounds(worker, settings, gauge, len(service.gpus))
    limits = Limits(worker.replace_after_requests, settings.max_age_s, rss, gpu)
    entry.rss_hard_bytes = limits.rss.hard_bytes
    head.gpu_footprint_bytes = max(head.gpu_footprint_bytes, entry.gpu_bytes)
    entry.ready_s = time.monotonic()
    watch = Watch(worker, limits, gauge, reader.stuck_threads, _begin_tls(service, worker), models, models_bytes)
    # Started before READY, so that a worker whose watch cannot start exits instead of serving.
    threading.Thread(target=watch.run, name="watch", daemon=True).start()
    head.ever_ready, head.boot_failures, head.backoff_until_s = 1, 0, 0.0
    # SIGTERM may have set DRAINING during the load.
    if entry.state != State.DRAINING:
        entry.state = State.READY
    for name, used_bytes, bounds in (("Memory", entry.rss_bytes, rss), ("GPU memory", entry.gpu_bytes, gpu)):
        replaced = f"; replaced at {bounds.soft_bytes / (1 << 30):.1f} GiB" if bounds.soft_bytes else ""
        if used_bytes:
            worker.log.info("%s %d MiB%s.", name, used_bytes >> 20, replaced)


def _begin_tls(service: ServiceContext, worker: RecyclingWorker) -> Callable[[], object]:
    """Serve HTTP over TLS if certificates are set; returns a function to call regularly, which loads renewed ones."""
    certificates, log = service.certificate_watch.certificates, worker.log.error_log
    if certificates is None:
        return lambda: None
    shared = (service.settings.tls_names, service.worker.metrics, log)
    worker.loop.handshakes = Handshakes(lambda: certificates.current.http, *shared)
    on_check = partial(follow, certificates, service.controller.worker_table.head, log)
    # The arbiter may have published new certificates since the fork.
    on_check()
    return on_check


@contextmanager
def _exiting_on_failure(worker: RecyclingWorker, head: Head) -> Iterator[None]:
    """Exit with BOOT_FAILED on any error; the arbiter ends the service if no worker was ever ready."""
    try:
        yield
    except OcrsvcError as error:
        worker.log.error("The engine cannot be opened: %s", error)
        head.unusable = int(head.unusable or (not head.ever_ready and _is_final(error)))
        sys.exit(BOOT_FAILED)
    except Exception:
        worker.log.exception("The worker cannot boot")
        sys.exit(BOOT_FAILED)


def _is_final(error: OcrsvcError) -> bool:
    """Whether the engine refused to open, so that retries are useless; False if its child process crashed."""
    while isinstance(error.__cause__, OcrsvcError):
        error = error.__cause__
    return isinstance(error, OperatorError)


@contextmanager
def _heartbeat(worker: RecyclingWorker, limit_s: float = math.inf) -> Iterator[None]:
    """Send heartbeats from a thread while the main thread loads the engine; exit the process after `limit_s`."""
    done, end_s = threading.Event(), time.monotonic() + limit_s

    def beat() -> None:
        while not done.wait(min(_HEARTBEAT_S, limit_s)):
            worker.notify()
            if time.monotonic() >= end_s:
                message = "The engine has not loaded within %g s: this worker exits. Its stacks follow."
                worker.log.error(message, limit_s)
                worker.flush_log()
                faulthandler.dump_traceback(file=STDERR)
                os._exit(BOOT_FAILED)

    # The arbiter limits the time between two heartbeats only after the first one.
    worker.notify()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
