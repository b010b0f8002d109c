"""One version of a model that is loaded: its engine, and one warm handle for each engine thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol, runtime_checkable

from ocrsvc.engines.contract import Engine, Handle
from ocrsvc.errors import EngineUnavailable
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.readings import EngineInfo

CLOSE_S: Final = 10.0
"""How long engine threads may take to come to closing their handles."""


class EngineThreads(Protocol):
    """The threads that read, as `serving.executor.Executor` has them."""

    def idents(self) -> tuple[int, ...]:
        """What threading.get_ident() returns in each of them."""
        ...

    def run_in_each(self, call: Callable[[], object], threads: Sequence[int] | None = None) -> list[Future[None]]:
        """Have these threads, or all, run something between two pieces of work; idle ones wake up for it."""
        ...


@runtime_checkable
class MeasuredEngine(Protocol):
    """An engine that knows what it holds, as its memory is that of other processes."""

    def memory_bytes(self) -> int:
        """The private memory of these processes now."""
        ...


class LoadedVersion:
    """The engine of one version with its handles; made by `open_version_in`.

    Attributes:
        version, engine: What is loaded.
    """

    def __init__(self, version: ModelVersion, engine: Engine, threads: EngineThreads) -> None:
        self.version, self.engine = version, engine
        self._threads = threads
        self._handles: dict[int, Handle] = {}

    def describe(self) -> EngineInfo:
        """The engine, under the name and the number of the model."""
        return replace(self.engine.describe(), model=self.version.name, version=str(self.version.number))

    def handle(self) -> Handle:
        """The handle of the engine thread that asks."""
        return self._handles[threading.get_ident()]

    def open_handles(self, limit_s: float) -> None:
        """Open and warm a handle for each engine thread, in this thread where the engine allows that.

        Args:
            limit_s: How long engine threads, which may be busy or stuck, may take together.

        Raises:
            OcrsvcError: What the engine says; EngineUnavailable when the threads take too long.
        """
        threads, traits = self._threads.idents(), self.engine.traits
        if traits.any_thread:
            for thread in threads:
                self._open_handle(thread)
            return
        # One after the other where the engine wants that, else side by side.
        groups = [(thread,) for thread in threads] if traits.serial_open else [threads]
        end_s = time.monotonic() + limit_s
        for group in groups:
            _wait(self._threads.run_in_each(self._open_own_handle, group), end_s)

    def close(self) -> None:
        """Close handles and engine; nobody reads with them any more. An engine whose thread is stuck stays open."""
        if self.engine.traits.any_thread:
            for thread in list(self._handles):
                self._handles.pop(thread).close()
        elif self._handles:
            with suppress(EngineUnavailable):
                _wait(self._threads.run_in_each(self.close_own_handle), time.monotonic() + CLOSE_S)
        if not self._handles:
            self.engine.close()

    def close_own_handle(self) -> None:
        """Close the handle of the engine thread that asks, if it has one."""
        handle = self._handles.pop(threading.get_ident(), None)
        if handle is not None:
            handle.close()

    def _open_own_handle(self) -> None:
        self._open_handle(threading.get_ident())

    def _open_handle(self, thread: int) -> None:
        # It is closed with the others, should its warm-up fail.
        handle = self._handles[thread] = self.engine.open_handle()
        handle.warm_up()


def open_version_in(
    threads: EngineThreads, version: ModelVersion, open_version: Callable[[ModelVersion], Engine], limit_s: float
) -> LoadedVersion:
    """A version with a warm handle for each thread; nothing stays open when that fails.

    Args:
        threads: That will read.
        version: What is opened.
        open_version: Opens it.
        limit_s: As for `LoadedVersion.open_handles`.

    Raises:
        OcrsvcError: What the engine, or the version's files, say.
    """
    loaded = LoadedVersion(version, open_version(version), threads)
    try:
        loaded.open_handles(limit_s)
    except BaseException:
        loaded.close()
        raise
    return loaded


def _wait(futures: Sequence[Future[None]], end_s: float) -> None:
    """Raises the first failure, or EngineUnavailable at the end; what has not begun by then never will."""
    try:
        for future in futures:
            future.result(max(0.0, end_s - time.monotonic()))
    except TimeoutError:
        raise EngineUnavailable("The engine threads did not come to open the model in time.") from None
    finally:
        for future in futures:
            future.cancel()
