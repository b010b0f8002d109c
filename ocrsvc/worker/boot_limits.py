"""Limits around the boot of a worker: how it ends when it fails, is told to go, or takes too long."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from ocrsvc.errors import OcrsvcError, OperatorError
from ocrsvc.telemetry.worker_table import Head, State
from ocrsvc.worker.gunicorn_worker import RecyclingWorker
from ocrsvc.worker.replacement_policy import BOOT_FAILED

_HEARTBEAT_S: Final = 1.0
_STDERR: Final = 2


@contextmanager
def ending_at_failure(worker: RecyclingWorker, head: Head) -> Iterator[None]:
    """End a worker that cannot boot; the arbiter ends the whole service if none was ever ready."""
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
def leaving_at_sigterm(worker: RecyclingWorker) -> Iterator[None]:
    """Leave at once at SIGTERM, also at one that came before: a worker that is still loading has nothing to finish."""
    leave = leaver(worker)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        if not worker.alive:
            leave(signal.SIGTERM, None)
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leaver(worker: RecyclingWorker) -> Callable[[int, object], NoReturn]:
    """A handler that ends the process from the main thread, and says that it went because it was told to."""

    def leave(_signal: int, _frame: object) -> NoReturn:
        # The arbiter kills who has drained for too long, by this time.
        worker.entry.drained_s = time.monotonic()
        worker.entry.state = State.DRAINING
        sys.exit(0)

    return leave


@contextmanager
def limited_boot(worker: RecyclingWorker, limit_s: float) -> Iterator[None]:
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
def heartbeat(worker: RecyclingWorker) -> Iterator[None]:
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
