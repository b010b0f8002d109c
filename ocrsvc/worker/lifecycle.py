"""What happens when in a worker's life under gunicorn: who plans, loads, warms, says READY, and stops.

The arbiter runs `on_starting` only, and loads neither model nor numeric library. Each worker runs `post_fork` (plans,
and makes its reader), imports the application, runs `post_worker_init` (loads and warms the engine; only then does it
accept requests), and `worker_exit` last.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from gunicorn.workers.gthread import ThreadWorker

from ocrsvc import __version__
from ocrsvc.allocator import limit_arenas
from ocrsvc.errors import OcrsvcError, SettingsError
from ocrsvc.plan import plan_for, set_library_threads
from ocrsvc.settings import Settings, read_settings
from ocrsvc.worker.config import configuration

if TYPE_CHECKING:
    from flask import Flask

    from ocrsvc.reader import Reader

_HEARTBEAT_S: Final = 1.0
# By now every request has had its graceful time; what still runs is past its deadline.
_STOP_S: Final = 2.0
# gunicorn's WORKER_BOOT_ERROR: the arbiter stops everything instead of forking the same failure for ever.
_BOOT_ERROR: Final = 3

_REFUSED_FLAGS: Final = {
    "preload_app": "--preload loads the application in the arbiter, where nothing may touch a model or CUDA",
    "reuse_port": "--reuse-port gives each worker an accept queue of its own, which is lost with the worker",
}


class Config(Protocol):
    """The part of gunicorn's configuration that is read here; flags are already in it."""

    workers: int
    threads: int
    worker_class: type
    worker_class_str: str
    preload_app: bool
    reuse_port: bool


class Server(Protocol):
    """gunicorn's arbiter, as far as it is used here."""

    cfg: Config
    log: logging.Logger


class GunicornLog(Protocol):
    """gunicorn's logger, as far as it is used here."""

    error_log: logging.Logger

    def info(self, msg: str, *args: object) -> None:
        """Log at level info."""

    def error(self, msg: str, *args: object) -> None:
        """Log at level error."""


class Worker(Protocol):
    """gunicorn's worker, as far as it is used here."""

    alive: bool
    cfg: Config
    log: GunicornLog

    def notify(self) -> None:
        """Tell the arbiter that this worker is alive."""


class _Process:
    """What gunicorn's hooks leave for each other and for the application; they share nothing else.

    The settings are read once, in the arbiter, and come to the workers by fork: a file that is edited later cannot
    make a worker that is replaced differ from its siblings, or fail.
    """

    settings: Settings | None = None
    reader: Reader | None = None


def configuration_or_exit() -> Mapping[str, object]:
    """gunicorn's settings, from ours; for gunicorn.conf.py.

    Runs in the arbiter, at the start and at each SIGHUP, before any numeric library is loaded. Wrong settings are told
    on stderr, and end the process with exit code 78.
    """
    set_library_threads(os.environ)
    try:
        settings = read_settings()
    except SettingsError as error:
        sys.stderr.write(f"ocrsvc cannot start: {error.title.lower()}.\n{error}\n")
        sys.exit(error.exit_code)
    _Process.settings = settings
    return configuration(settings, plan_for(settings))


def build_app() -> Flask:
    """The application over this process's reader; for wsgi.py. Loads no model."""
    from ocrsvc.app import create_app

    return create_app(current_settings(), current_reader())


def current_settings() -> Settings:
    """The settings that this process started with; without gunicorn's configuration file, those of the environment."""
    return _Process.settings or read_settings()


def current_reader() -> Reader:
    """The reader that `post_fork` made in this process; without gunicorn's hooks a new one, not started."""
    return _Process.reader or _make_reader()


def on_starting(server: Server) -> None:
    """Arbiter: refuse what cannot work, and say what starts."""
    try:
        check_server(server.cfg)
    except SettingsError as error:
        server.log.error("%s", error)
        sys.exit(error.exit_code)
    settings = current_settings()
    plan = plan_for(settings, workers=server.cfg.workers, threads=server.cfg.threads)
    server.log.info("ocrsvc %s engine=%s device=%s plan: %s", __version__, settings.engine, settings.device, plan)


def check_server(config: Config) -> None:
    """Raises SettingsError when gunicorn was told to serve in a way that loses requests."""
    if not issubclass(config.worker_class, ThreadWorker):
        raise SettingsError(
            f"-k {config.worker_class_str}: this worker class cannot serve an OCR engine: gevent and asgi run native "
            "calls one after the other in the loop that sends the heartbeat, and sync reads one request at a time.",
            "Leave -k out; gthread is set.",
        )
    for name, reason in _REFUSED_FLAGS.items():
        if getattr(config, name):
            raise SettingsError(f"{reason}.", "Leave the flag out.")


def post_fork(_server: Server, worker: Worker) -> None:
    """Worker, before it imports the application: make its reader, planned with its real workers and threads."""
    # Until gunicorn installs the worker's own handlers, the arbiter's inherited one would swallow the signal.
    signal.signal(signal.SIGTERM, _leave)
    logger = logging.getLogger("ocrsvc")
    logger.handlers = list(worker.log.error_log.handlers)
    logger.setLevel(worker.log.error_log.level)
    logger.propagate = False
    limit_arenas()
    _Process.reader = _make_reader(workers=worker.cfg.workers, threads=worker.cfg.threads)


def post_worker_init(worker: Worker) -> None:
    """Worker, before it accepts requests: load and warm the engine, or end and make the arbiter stop."""
    began = time.monotonic()
    reader = current_reader()
    try:
        with _leaving_at_sigterm(worker), _heartbeat(worker):
            worker.log.info("Loading the engine %s", current_settings().engine)
            reader.start()
    except OcrsvcError as error:
        worker.log.error("The engine cannot be opened: %s", error)
        sys.exit(_BOOT_ERROR)
    engine = reader.describe()
    worker.log.info(
        "READY in %.1f s: engine=%s model=%s device=%s provider=%s",
        *(time.monotonic() - began, engine.name, engine.model, engine.device, engine.provider),
    )


def worker_exit(_server: Server, _worker: Worker) -> None:
    """Worker, last (gunicorn has already waited for the requests): stop the engine threads, close the engine."""
    reader, _Process.reader = _Process.reader, None
    if reader is not None:
        reader.stop(_STOP_S)


def _make_reader(workers: int | None = None, threads: int | None = None) -> Reader:
    """A reader that is not started; imports the numeric libraries, so never in the arbiter."""
    from ocrsvc.reader import Reader

    settings = current_settings()
    return Reader(settings, plan_for(settings, workers=workers, threads=threads))


@contextmanager
def _leaving_at_sigterm(worker: Worker) -> Iterator[None]:
    """Leave at once at SIGTERM, also at one that came before: a worker that is still loading has nothing to finish."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        if not worker.alive:
            sys.exit(0)
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(_signal: int, _frame: object) -> NoReturn:
    """End the process from the main thread."""
    sys.exit(0)


@contextmanager
def _heartbeat(worker: Worker) -> Iterator[None]:
    """Tell the arbiter that the worker lives while its main thread is busy."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_S):
            worker.notify()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
