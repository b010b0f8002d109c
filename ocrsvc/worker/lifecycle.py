"""What happens when in a worker's life under gunicorn: who plans, loads, warms, says READY, and stops.

The arbiter loads neither model nor numeric library; its hooks hand over to the rota. Each worker runs `post_fork`
(plans, and makes its reader), imports the application, runs `post_worker_init` (loads and warms the engine; only then
does it accept requests, and watch over itself), and `worker_exit` last.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from ocrsvc import __version__
from ocrsvc.errors import OcrsvcError, OperatorError, SettingsError
from ocrsvc.jobs.store import Tasks, make_folder, remove_folder
from ocrsvc.settings import Settings, bytes_of, read_settings, variable_of
from ocrsvc.system.allocator import limit_arenas
from ocrsvc.system.gpu import Gauge, open_gauge
from ocrsvc.system.gpu_devices import VISIBLE, pin
from ocrsvc.system.memory import read_memory_bytes, read_rss_bytes
from ocrsvc.system.thread_plan import ThreadPlan, cards_for, device_for, plan_for, set_library_threads
from ocrsvc.telemetry.access_log import AccessLog
from ocrsvc.telemetry.metrics_store import (
    BOOT_FAILURES,
    EVENTS_DROPPED,
    STUCK,
    WAITING,
    MetricsStore,
    Sampler,
    WorkerMetrics,
    count_reading,
)
from ocrsvc.telemetry.model_statistics import Statistics
from ocrsvc.telemetry.worker_limits import Bounds, Limits, calibrate, calibrate_gpu
from ocrsvc.telemetry.worker_table import SLOTS, State, WorkerTable
from ocrsvc.worker.arbiter import take_over
from ocrsvc.worker.config import configuration
from ocrsvc.worker.connection import RequestLimits
from ocrsvc.worker.grpc_socket import address_of, listen
from ocrsvc.worker.gunicorn_worker import RecyclingWorker, Watched
from ocrsvc.worker.pidfile import remove_stale
from ocrsvc.worker.replacement_controller import Arbiter, ReplacementController
from ocrsvc.worker.replacement_policy import BOOT_FAILED, is_next_to_load

if TYPE_CHECKING:
    from flask import Flask

    from ocrsvc.grpc_server.server import RpcServer
    from ocrsvc.jobs.runner import Runner
    from ocrsvc.pipeline.read import Reader
    from ocrsvc.serving.crash_denylist import CrashDenylist
    from ocrsvc.serving.memory_budget import SharedLimits
    from ocrsvc.serving.request_guard import RequestGuard
    from ocrsvc.serving.requests_in_flight import InFlightTable
    from ocrsvc.worker.hung_requests import HungRequests

_MOST_FILES: Final = 65_536
_HEARTBEAT_S: Final = 1.0
# By now every request has had its graceful time; what still runs is past its deadline.
_STOP_S: Final = 2.0
_TURN_CHECK_S: Final = 0.1
# Of Python's own 5 ms each of many busy threads takes its turn before a health check comes to it.
_SWITCH_S: Final = 0.001
_STDERR: Final = 2
_LAST_LINES_S: Final = 1.0

_REFUSED_FLAGS: Final = {
    "is_ssl": "--certfile: the event loop reads plain HTTP/1.1 only; have a proxy end TLS (see deploy/)",
    "preload_app": "--preload loads the application in the arbiter, where nothing may touch a model or CUDA",
    "reuse_port": "--reuse-port gives each worker an accept queue of its own, which is lost with the worker",
}


_ONLY_VALUES: Final = {
    "protocol": ("http", "--protocol"),
    "http2_cleartext": ("off", "--http2-cleartext"),
}
# Version 2 is binary, and its beginning looks like the end of a head.
_PROXY_PROTOCOLS: Final = ("off", "v1")


class Config(Protocol):
    """The part of gunicorn's configuration that is read here; flags are already in it."""

    worker_class: type
    worker_class_str: str
    preload_app: bool
    reuse_port: bool
    timeout: int
    proxy_protocol: str


class Request(Protocol):
    """gunicorn's request, as far as it is used here."""

    method: str
    path: str


class _Process:
    """What gunicorn's hooks leave for each other and for the application; they share nothing else.

    The settings are read once, in the arbiter, and come to the workers by fork: a file that is edited later cannot
    make a worker that is replaced differ from its siblings, or fail.
    """

    settings: Settings | None = None
    cards: tuple[str, ...] = ()
    addresses: object = None
    reader: Reader | None = None
    rota: ReplacementController | None = None
    statistics: Statistics | None = None
    grpc_listeners: tuple[socket.socket, ...] = ()
    rpc: RpcServer | None = None
    quarantine: CrashDenylist | None = None
    denylist: CrashDenylist | None = None
    in_flight: InFlightTable | None = None
    suspects: HungRequests | None = None
    guard: RequestGuard | None = None
    numbers: MetricsStore | None = None
    tally: WorkerMetrics | None = None
    access_log: AccessLog | None = None
    sampler: Sampler | None = None
    room: SharedLimits | None = None
    tasks: Tasks | None = None
    runner: Runner | None = None


def configuration_or_exit() -> Mapping[str, object]:
    """gunicorn's settings, from ours; for gunicorn.conf.py.

    Runs in the arbiter, at the start and at each SIGHUP, before any numeric library is loaded. Wrong settings are told
    on stderr; at the start they end the process with exit code 78, at a SIGHUP the ones before stay.
    """
    set_library_threads(os.environ)
    try:
        _Process.settings = read_settings()
    except SettingsError as error:
        if _Process.settings is None:
            _write_line(f"ocrsvc cannot start: {error.title.lower()}.\n{error}")
            sys.exit(error.exit_code)
        _write_line(f"ocrsvc keeps its settings: {error.title.lower()}.\n{error}")
    # Here, because each worker sees its own card only.
    _Process.cards = cards_for(_Process.settings)
    gunicorns = dict(configuration(_Process.settings, plan_for(_Process.settings)))
    # gunicorn would bind all of them again while the workers still hold the old ones, fail, and end the service.
    _Process.addresses = _Process.addresses or gunicorns["bind"]
    if gunicorns["bind"] != _Process.addresses:
        _write_line("ocrsvc keeps its addresses: they are read at the start only.")
        gunicorns["bind"] = _Process.addresses
    return {**gunicorns, **_hooks()}


def _write_line(text: str) -> None:
    """On stderr, for there is no log yet; a full disk behind it must not stop a reload."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")


def _hooks() -> Mapping[str, object]:
    """gunicorn's hooks, by its own names."""
    hooks = (on_starting, nworkers_changed, on_reload, pre_fork, post_fork, post_worker_init)
    return {hook.__name__: hook for hook in (*hooks, pre_request, worker_exit, child_exit, on_exit)}


def build_app() -> Flask:
    """The application over this process's reader; for wsgi.py. Loads no model."""
    from ocrsvc.app import create_app
    from ocrsvc.http.admission import shared_limits_of
    from ocrsvc.http.request_metrics import RequestMetrics

    settings, tally = current_settings(), current_tally()
    if settings.access_log != "off":
        _Process.access_log = AccessLog(settings.access_log, on_drop=lambda: tally.count(EVENTS_DROPPED))
    quarantine = current_quarantine() if settings.isolation == "process" else None
    board, denylist = current_rota().worker_table, current_denylist()
    ledger = RequestMetrics(current_numbers(), tally, board, _Process.access_log, quarantine, denylist)
    _Process.room = _Process.room or shared_limits_of(settings)
    return create_app(settings, current_reader(), ledger, current_statistics(), _Process.room, _Process.tasks)


def current_settings() -> Settings:
    """The settings that this process started with; without gunicorn's configuration file, those of the environment."""
    return _Process.settings or read_settings()


def current_reader() -> Reader:
    """The reader that `post_fork` made in this process; without gunicorn's hooks a new one, not started."""
    return _Process.reader or _make_reader()


def current_rota() -> ReplacementController:
    """The one rota of this service: made in the arbiter, inherited by the workers."""
    _Process.rota = _Process.rota or ReplacementController(WorkerTable())
    return _Process.rota


def current_statistics() -> Statistics:
    """The counts of this service: made in the arbiter, shared with the workers."""
    _Process.statistics = _Process.statistics or Statistics(SLOTS)
    return _Process.statistics


def current_quarantine() -> CrashDenylist:
    """The one quarantine of this service: made in the arbiter, inherited by the workers."""
    from ocrsvc.serving.crash_denylist import CrashDenylist

    settings = current_settings()
    _Process.quarantine = _Process.quarantine or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return _Process.quarantine


def current_denylist() -> CrashDenylist:
    """The bodies that stopped workers of this service: made in the arbiter, inherited by the workers."""
    from ocrsvc.serving.crash_denylist import CrashDenylist

    settings = current_settings()
    _Process.denylist = _Process.denylist or CrashDenylist(settings.quarantine_size, settings.quarantine_s)
    return _Process.denylist


def current_in_flight() -> InFlightTable:
    """What all workers work on: made in the arbiter, inherited by the workers."""
    from ocrsvc.serving.requests_in_flight import InFlightTable

    _Process.in_flight = _Process.in_flight or InFlightTable(SLOTS)
    return _Process.in_flight


def current_numbers() -> MetricsStore:
    """The one set of numbers of this service: made in the arbiter, inherited by the workers."""
    _Process.numbers = _Process.numbers or MetricsStore(SLOTS)
    return _Process.numbers


def current_tally() -> WorkerMetrics:
    """What this process counts with; without gunicorn's hooks the common block, which nobody else writes then."""
    return _Process.tally or current_numbers().common


def on_starting(server: Arbiter) -> None:
    """Arbiter: refuse what cannot work, and say what starts."""
    take_over(server, current_rota())
    current_statistics()
    try:
        check_server(server.cfg)
        _Process.grpc_listeners = tuple(map(listen, current_settings().grpc_bind))
        _Process.tasks = _make_tasks(current_settings())
    except SettingsError as error:
        server.log.error("%s", error)
        sys.exit(error.exit_code)
    _allow_many_files()
    settings = current_settings()
    current_quarantine()
    _watch_kills(server)
    plan = plan_for(settings, workers=server.cfg.workers, threads=server.cfg.threads)
    for listener in _Process.grpc_listeners:
        server.log.info("Listening for gRPC at: %s", address_of(listener))
    server.log.info("ocrsvc %s engine=%s device=%s plan: %s", __version__, settings.engine, settings.device, plan)


def _watch_kills(server: Arbiter) -> None:
    """Find out which requests stop workers."""
    from ocrsvc.worker.hung_requests import HungRequests

    _Process.suspects = HungRequests(current_in_flight(), current_denylist(), server.log)
    _Process.suspects.watch(server)


def _make_tasks(settings: Settings) -> Tasks | None:
    """Where documents wait, if a door takes any in. Raises SettingsError."""
    if "umi_ocr" not in settings.dialects or not settings.pdf_dpi or not settings.tasks_bytes:
        return None
    return Tasks(make_folder(settings.tasks_dir), settings.tasks_bytes, settings.tasks_s)


def on_exit(_server: Arbiter) -> None:
    """Arbiter, last, when all workers have ended."""
    if _Process.tasks is not None:
        remove_folder(_Process.tasks.folder)


def _allow_many_files() -> None:
    """As many descriptors as may be: a thousand connections are more than the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_server(config: Config) -> None:
    """Raises SettingsError when gunicorn was told to serve in a way that loses requests."""
    if not issubclass(config.worker_class, RecyclingWorker):
        raise SettingsError(
            f"-k {config.worker_class_str}: this worker class cannot serve an OCR engine: gevent and asgi run native "
            "calls one after the other in the loop that sends the heartbeat, sync reads one request at a time, and "
            "gthread is stopped before its successor is ready.",
            "Leave -k out; the service's own worker class is set.",
        )
    if not config.timeout:
        raise SettingsError("--timeout 0 leaves workers that hang alone for ever.", "Leave the flag out.")
    for name, reason in _REFUSED_FLAGS.items():
        if getattr(config, name):
            raise SettingsError(f"{reason}.", "Leave the flag out.")
    for name, (value, flag) in _ONLY_VALUES.items():
        if getattr(config, name) != value:
            told = f"{flag} {getattr(config, name)}: the event loop reads plain HTTP/1.1 only."
            raise SettingsError(told, "Leave the flag out.")
    if config.proxy_protocol not in _PROXY_PROTOCOLS:
        told = f"--proxy-protocol {config.proxy_protocol}: only version 1 is read."
        raise SettingsError(told, "Use --proxy-protocol v1, and have the proxy send that.")


def nworkers_changed(server: Arbiter, count: int, before: int | None) -> None:
    """Arbiter: at the start, at each reload, and at SIGTTIN and SIGTTOU."""
    if before is None and server.cfg.pidfile:
        remove_stale(server.cfg.pidfile)
    current_rota().count_changed(server, count, before)


def on_reload(server: Arbiter) -> None:
    """Arbiter, at SIGHUP, with the new configuration already read."""
    current_rota().reload(server)


def pre_fork(_server: Arbiter, worker: RecyclingWorker) -> None:
    """Arbiter, before each fork."""
    current_rota().before_fork(worker, _Process.cards, current_settings().boot_limit_s)
    current_numbers().claim(worker.slot_number)
    current_in_flight().clear(worker.slot_number)


def child_exit(server: Arbiter, worker: RecyclingWorker) -> None:
    """Arbiter, when it has reaped a worker."""
    if worker.entry.state == State.BOOTING:
        current_numbers().common.count(BOOT_FAILURES)
    current_numbers().fold(worker.slot_number)
    if _Process.suspects is not None:
        _Process.suspects.note_exit(worker.pid, worker.slot_number, expected=worker.entry.state == State.BOOTING)
    current_rota().after_exit(server, worker)


def pre_request(worker: RecyclingWorker, request: Request) -> None:
    """Worker, in the thread of each request, before it."""
    worker.log.debug("%s %s", request.method, request.path)
    worker.balance(request)


def post_fork(_server: Arbiter, worker: RecyclingWorker) -> None:
    """Worker, before it imports the application: make its reader, planned with its real workers and threads."""
    # Until gunicorn installs the worker's own handlers, the arbiter's inherited one would swallow the signal.
    signal.signal(signal.SIGTERM, _leaver(worker))
    current_rota().in_worker(worker)
    current_statistics().row = worker.slot_number
    _Process.tally = current_numbers().worker_metrics(worker.slot_number)
    _Process.guard = _make_guard(worker)
    logger = logging.getLogger("ocrsvc")
    logger.handlers = list(worker.log.error_log.handlers)
    logger.setLevel(worker.log.error_log.level)
    logger.propagate = False
    limit_arenas()
    sys.setswitchinterval(_SWITCH_S)
    _take_card(worker)
    with _ending_at_failure(worker):
        worker.guard()
        _Process.reader = _make_reader(workers=worker.cfg.workers, threads=worker.cfg.threads)
        worker.engine_threads = _plan(worker).engine_threads
        worker.limits = _make_limits(worker)


def _make_limits(worker: RecyclingWorker) -> RequestLimits:
    """What requests may take before a thread sees them; the memory is the application's too."""
    from ocrsvc.adapters.umi_ocr.documents import PATH
    from ocrsvc.http.admission import shared_limits_of

    settings = current_settings()
    _Process.room = shared_limits_of(settings, worker.cfg.workers, _Process.guard)
    return RequestLimits(_Process.room.memory, settings.max_body_bytes, settings.deadline_s, slow_paths=(PATH,))


def _make_guard(worker: RecyclingWorker) -> RequestGuard:
    from ocrsvc.serving.request_guard import RequestGuard

    return RequestGuard(current_in_flight().recorder(worker.slot_number), current_denylist())


def _take_card(worker: RecyclingWorker) -> None:
    """See one card only, the one that the arbiter chose, if there are several or somebody named one."""
    if len(_Process.cards) > 1 or (_Process.cards and current_settings().gpus):
        pin(os.environ, current_rota().gpu_name(worker.entry.card))
        worker.log.info("Slot %s computes on card %s", worker.slot_number, os.environ[VISIBLE])


def post_worker_init(worker: RecyclingWorker) -> None:
    """Worker, before it accepts requests: load and warm the engine, serve and watch, or end."""
    # Whatever goes wrong here would otherwise end the workers that serve, too.
    with _ending_at_failure(worker):
        _boot(worker)


def _boot(worker: RecyclingWorker) -> None:
    reader = current_reader()
    with _leaving_at_sigterm(worker), _heartbeat(worker):
        came = time.monotonic()
        gauge = _open_gauge(worker)
        began = time.monotonic()
        worker.log.info("Loading the engine %s", current_settings().engine)
        with _limited_boot(worker, current_settings().boot_limit_s):
            reader.start()
    engine = reader.describe()
    worker.log.info(
        "READY in %.1f s: engine=%s model=%s device=%s provider=%s",
        *(time.monotonic() - began, engine.name, engine.model, engine.device, engine.provider),
    )
    if engine.device == "cuda" and gauge is None:
        worker.log.warning("The engine computes on a card that cannot be read: only RSS limits hold in this worker.")
    gauges = ((WAITING, reader.waiting), (STUCK, reader.stuck_threads))
    _Process.sampler = Sampler(current_tally(), gauges)
    _Process.sampler.start()
    _start_rpc(worker)
    _start_runner(worker)
    _note_ready(worker, gauge if engine.device == "cuda" else None, waited_s=began - came)


def worker_exit(_server: Arbiter, worker: RecyclingWorker) -> None:
    """Worker, last (gunicorn has already waited for the requests): end the threads, close the engine, end the log."""
    # Whoever comes so far did not die over a request.
    current_in_flight().clear(worker.slot_number)
    rpc, _Process.rpc = _Process.rpc, None
    if rpc is not None:
        rpc.stop(0.0)
    if _Process.runner is not None:
        _Process.runner.stop(_STOP_S)
    reader, _Process.reader = _Process.reader, None
    if _Process.sampler is not None:
        _Process.sampler.stop()
    if reader is not None:
        reader.stop(_STOP_S)
    if _Process.access_log is not None:
        _Process.access_log.stop(_LAST_LINES_S)


def _start_runner(worker: RecyclingWorker) -> None:
    """Read the documents that wait, until this worker is to go."""
    if _Process.tasks is None:
        return
    from ocrsvc.jobs.runner import Runner

    def is_leaving() -> bool:
        return worker.entry.state == State.DRAINING or not worker.alive

    _Process.runner = Runner(_Process.tasks, current_reader(), current_settings().deadline_s, is_leaving)
    _Process.runner.start()


def _start_rpc(worker: RecyclingWorker) -> None:
    """Serve gRPC beside HTTP, if it is asked for."""
    if not _Process.grpc_listeners:
        return
    from ocrsvc.grpc_server.call_metrics import CallMetrics
    from ocrsvc.grpc_server.server import RpcServer
    from ocrsvc.grpc_services import make_services
    from ocrsvc.model_api.model import OcrModel

    def count(change: int) -> None:
        worker.nr += max(0, change)
        worker.count_beside(change)

    settings = current_settings()
    _Process.rpc = worker.companion = RpcServer(
        _Process.grpc_listeners,
        make_services(OcrModel(current_reader(), current_statistics()), settings.dialects),
        threads=worker.cfg.threads,
        most_bytes=settings.max_body_bytes,
        limit_s=settings.deadline_s,
        limits=_Process.room,
        call_metrics=CallMetrics(current_tally(), _Process.access_log),
        on_call=count,
    )
    _Process.rpc.start()


def _open_gauge(worker: RecyclingWorker) -> Gauge | None:
    """What reads the card, once it is this worker's turn to load on it; None when there is none, or none is used.

    Two that load at once could not tell whose memory is whose, and would need room for the peaks of both.
    """
    settings = current_settings()
    if "cpu" in (settings.device, settings.provider):
        return None
    board, gauge = current_rota().worker_table, open_gauge(worker.log, worker.siblings())
    # A card that cannot be read is shared all the same, and so is the folder of TensorRT's engines.
    on_card = gauge is not None or device_for(settings) == "cuda"
    if not on_card or is_next_to_load(worker.slot_number, board.live()):
        return gauge
    while not is_next_to_load(worker.slot_number, board.live()):
        time.sleep(_TURN_CHECK_S)
    return open_gauge(worker.log, worker.siblings())


def _note_ready(worker: RecyclingWorker, gauge: Gauge | None, waited_s: float) -> None:
    """Tell the board, and begin to watch; `waited_s` is what this worker waited for others before it loaded."""
    head, slot = current_rota().worker_table.head, worker.entry
    slot.rss_bytes = read_rss_bytes()
    limits = Limits(max_age_s=current_settings().max_age_s, rss=_rss_bounds(worker), gpu=_gpu_bounds(worker, gauge))
    head.gpu_footprint_bytes = max(head.gpu_footprint_bytes, slot.gpu_bytes)
    slot.ready_s = time.monotonic()
    boot_s = slot.ready_s - slot.forked_s - waited_s
    watched = Watched(limits, slot.rss_bytes, slot.gpu_bytes, boot_s, gauge, current_reader().stuck_threads)
    # While a thread that is refused still ends this worker.
    worker.watch(watched)
    head.ever_ready, head.boot_failures, head.backoff_until_s = 1, 0, 0.0
    # SIGTERM may have come meanwhile.
    if slot.state != State.DRAINING:
        slot.state = State.READY
    worker.log.info("Footprint rss_bytes=%s gpu_bytes=%s, limits: %s", slot.rss_bytes, slot.gpu_bytes, limits)


def _rss_bounds(worker: RecyclingWorker) -> Bounds:
    """How much resident memory this worker may hold."""
    settings, memory_bytes, footprint_bytes = current_settings(), read_memory_bytes(), worker.entry.rss_bytes
    given = {name: bytes_of(getattr(settings, name), memory_bytes) for name in ("rss_soft_bytes", "rss_hard_bytes")}
    bounds = calibrate(
        *given.values(), footprint_bytes=footprint_bytes, memory_bytes=memory_bytes, workers=worker.cfg.workers
    )
    _tell_left_off(worker, given, bounds, footprint_bytes)
    return bounds


def _gpu_bounds(worker: RecyclingWorker, gauge: Gauge | None) -> Bounds:
    """How much of the card this worker may hold; writes what it holds now into its entry of the worker table."""
    settings, slot, siblings = current_settings(), worker.entry, worker.siblings()
    reading = gauge.read(siblings) if gauge is not None else None
    if reading is None:
        for name in ("gpu_soft_bytes", "gpu_hard_bytes"):
            if getattr(settings, name):
                worker.log.error("%s is set, and this worker has no readings of a card.", variable_of(name))
        return Bounds()
    slot.gpu_bytes, slot.card_free_bytes = reading.own_bytes, reading.free_bytes
    given = {
        name: bytes_of(getattr(settings, name), reading.total_bytes) for name in ("gpu_soft_bytes", "gpu_hard_bytes")
    }
    workers = math.ceil(worker.cfg.workers / max(1, len(_Process.cards)))
    foreign_bytes = max(0, reading.used_bytes - reading.own_bytes - siblings.gpu_bytes)
    bounds = calibrate_gpu(
        *given.values(),
        footprint_bytes=reading.own_bytes,
        gpu_memory_bytes=reading.total_bytes - foreign_bytes,
        workers=workers,
    )
    _tell_left_off(worker, given, bounds, reading.own_bytes)
    if bounds.soft_bytes == 0 and given["gpu_soft_bytes"] is None:
        worker.log.error(
            "The card has %s bytes for %s workers of %s each: no room to grow, so none is replaced in time. "
            "Set fewer OCRSVC_WORKERS.",
            *(reading.total_bytes - foreign_bytes, workers, reading.own_bytes),
        )
    return bounds


def _tell_left_off(
    worker: RecyclingWorker, given: Mapping[str, int | None], bounds: Bounds, footprint_bytes: int
) -> None:
    """Say so when a limit that was asked for cannot be kept."""
    for (name, asked), kept in zip(given.items(), (bounds.soft_bytes, bounds.hard_bytes), strict=True):
        if asked and not kept:
            worker.log.error(
                "%s is %s, and a worker holds %s after its warm-up: replacing it would not help, so this limit is off.",
                *(variable_of(name), asked, footprint_bytes),
            )


def _plan(worker: RecyclingWorker) -> ThreadPlan:
    return plan_for(current_settings(), workers=worker.cfg.workers, threads=worker.cfg.threads)


def _make_reader(workers: int | None = None, threads: int | None = None) -> Reader:
    """A reader that is not started; imports the numeric libraries, so never in the arbiter."""
    from ocrsvc.engines.opening import open_engine
    from ocrsvc.pipeline.read import Reader

    settings = current_settings()
    plan = plan_for(settings, workers=workers, threads=threads)
    return Reader(
        settings,
        plan,
        engine_opener=lambda: open_engine(settings, plan, current_quarantine()),
        on_reading=partial(count_reading, current_tally()),
    )


@contextmanager
def _ending_at_failure(worker: RecyclingWorker) -> Iterator[None]:
    """End a worker that cannot boot; the arbiter ends the whole service if none was ever ready."""
    head = current_rota().worker_table.head
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
    """Whether the engine itself said that it cannot be opened here, which a child that only died did not."""
    while isinstance(error.__cause__, OcrsvcError):
        error = error.__cause__
    return isinstance(error, OperatorError)


@contextmanager
def _leaving_at_sigterm(worker: RecyclingWorker) -> Iterator[None]:
    """Leave at once at SIGTERM, also at one that came before: a worker that is still loading has nothing to finish."""
    leave = _leaver(worker)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        if not worker.alive:
            leave(signal.SIGTERM, None)
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leaver(worker: RecyclingWorker) -> Callable[[int, object], NoReturn]:
    """A handler that ends the process from the main thread, and says that it went because it was told to."""

    def leave(_signal: int, _frame: object) -> NoReturn:
        # The arbiter kills who has drained for too long, by this time.
        worker.entry.drained_s = time.monotonic()
        worker.entry.state = State.DRAINING
        sys.exit(0)

    return leave


@contextmanager
def _limited_boot(worker: RecyclingWorker, limit_s: float) -> Iterator[None]:
    """End the process when the block takes longer: a native call that never returns cannot be ended otherwise."""

    def end() -> None:
        worker.log.error("The engine has not loaded within %g s; this worker ends. Its stacks follow.", limit_s)
        faulthandler.dump_traceback(file=_STDERR)
        os._exit(BOOT_FAILED)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def _heartbeat(worker: RecyclingWorker) -> Iterator[None]:
    """Tell the arbiter that the worker lives while its main thread is busy."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_S):
            worker.notify()

    # The arbiter's timeout holds from the first beat on.
    worker.notify()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
