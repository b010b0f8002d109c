"""One version of a model that is loaded: its engine, a warm handle for each engine thread, and the memory it takes.

Memory is estimated from the files, measured when a version is loaded, and remembered.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from ocrsvc.engines.contract import Engine, Handle
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import EngineUnavailable
from ocrsvc.serving.executor import Executor
from ocrsvc.system.allocator import release_free_memory
from ocrsvc.system.memory import read_private_bytes

# How long engine threads may take to come to closing their handles.
CLOSE_S: Final = 10.0
# Times the bytes of its files that a version is expected to take before it was ever loaded; measured in
# docs/design/loaded-models.md.
FILES_FACTOR: Final = 11
# Expected of any version at first.
LEAST_BYTES: Final = 8 << 20
_KEPT: Final = 3
# Name, number and digest: a version whose files change is another one.
VersionKey = tuple[str, int, str]
# The threads that read.
EngineThreads = Executor[Any]


@runtime_checkable
class MeasuredEngine(Protocol):
    """An engine that knows what it holds, as its memory is that of other processes."""

    def memory_bytes(self) -> int:
        """The private memory of these processes now."""
        ...


class LoadedVersion:
    """The engine of one version with its handles."""

    def __init__(self, version: ModelVersion, engine: Engine, threads: EngineThreads) -> None:
        self.version, self.engine = version, engine
        self._threads = threads
        self._handles: dict[int, Handle] = {}

    def handle(self) -> Handle:
        """The handle of the engine thread that asks."""
        return self._handles[threading.get_ident()]

    def open_handles(self, limit_s: float, *, beside_others: bool) -> None:
        """Open and warm a handle for each engine thread, in it; beside other versions here, where the engine allows it.

        Nothing stays open when that fails. Raises what the engine says, EngineUnavailable after `limit_s`.
        """
        try:
            self._open_handles(limit_s, beside_others=beside_others)
        except BaseException:
            self.close()
            raise

    def _open_handles(self, limit_s: float, *, beside_others: bool) -> None:
        threads, traits = self._threads.idents(), self.engine.traits
        if traits.any_thread and beside_others:
            # Engine threads go on reading with them.
            for thread in threads:
                self._open_handle(thread)
            return
        # One after the other where the engine wants that, else side by side.
        groups = [(thread,) for thread in threads] if traits.serial_open else [threads]
        end_s = time.monotonic() + limit_s
        for group in groups:
            _wait(self._threads.run_in_each(lambda: self._open_handle(threading.get_ident()), group), end_s)

    def close(self) -> None:
        """Close handles and engine; no request reads with them any more. An engine whose thread is stuck stays open."""
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

    def _open_handle(self, thread: int) -> None:
        # It is closed with the others, should its warm-up fail.
        handle = self._handles[thread] = self.engine.open_handle()
        handle.warm_up()


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


class _Taken(NamedTuple):
    """Memory of one load once free memory was given back, and before that: 248 and 343 MiB of PP-OCRv6 small."""

    held_bytes: int
    most_bytes: int


def key_of(version: ModelVersion) -> VersionKey:
    """What a version is known by."""
    return version.name, version.number, version.digest


class ModelMemory:
    """What versions take, and what all of them may; the loading thread measures, any thread asks.

    Without a budget there is no limit; `copies` is how many of an engine's processes load a version. What is free is
    given back to the system before memory is read.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        read_bytes: Callable[[], int] = read_private_bytes,
        release_free_memory: Callable[[], object] = release_free_memory,
        copies: int = 1,
    ) -> None:
        self.budget_bytes, self.release_free_memory = budget_bytes, release_free_memory
        self._read_bytes, self._copies = read_bytes, copies
        # Tuples, which other threads may read meanwhile.
        self._measured: dict[VersionKey, tuple[_Taken, ...]] = {}
        self._largest: dict[str, int] = {}

    def expected_bytes(self, version: ModelVersion) -> int:
        """What loading a version will take at most: what it took the last times, or an estimate rather too high.

        The files of some engines say nothing, so it is no less than what the engine's largest version took.
        """
        if known := self._measured.get(key_of(version)):
            return round(statistics.median(taken.most_bytes for taken in known))
        estimate = self._copies * max(LEAST_BYTES, FILES_FACTOR * _file_bytes(version))
        return max(estimate, self._largest.get(version.description.engine, 0))

    def check(self, version: ModelVersion) -> None:
        """Raises EngineUnavailable where a version can never be loaded within the budget, estimates left aside."""
        known = self._measured.get(key_of(version))
        needed = _held_bytes(known) if known else _file_bytes(version)
        if self.budget_bytes is not None and needed > self.budget_bytes:
            raise EngineUnavailable(
                f"The model {version} takes {needed} bytes, and all models of a worker may take "
                f"{self.budget_bytes} (OCRSVC_MODELS_MEMORY).",
                "Raise OCRSVC_MODELS_MEMORY, or have fewer engine threads.",
            )

    def is_room(self, needed_bytes: int, held_bytes: Iterable[int]) -> bool:
        """Whether so much more may be loaded beside what is held; beside nothing, always."""
        held = sum(held_bytes)
        return self.budget_bytes is None or not held or held + needed_bytes <= self.budget_bytes

    def before(self) -> int:
        """The memory before a load, for `measure`."""
        self.release_free_memory()
        return self._read_bytes()

    def measure(self, loaded: LoadedVersion, before_bytes: int) -> int:
        """What a version that was just loaded takes, remembered: the median of its last loads, and at least its files.

        Requests that were read meanwhile change the memory of this process, too.
        """
        key, engine = key_of(loaded.version), loaded.version.description.engine
        taken = self._taken(loaded, before_bytes)
        known = self._measured[key] = (*self._measured.get(key, ())[1 - _KEPT :], taken)
        self._largest[engine] = max(taken.most_bytes, self._largest.get(engine, 0))
        return _held_bytes(known)

    def measure_again(self, loaded: LoadedVersion, size_bytes: int) -> int:
        """What a version takes now, where its engine knows; else what it took, as measured before."""
        engine = loaded.engine
        return engine.memory_bytes() if isinstance(engine, MeasuredEngine) else size_bytes

    def _taken(self, loaded: LoadedVersion, before_bytes: int) -> _Taken:
        if isinstance(loaded.engine, MeasuredEngine):
            now_bytes = loaded.engine.memory_bytes()
            return _Taken(now_bytes, now_bytes)
        most_bytes = self._read_bytes() - before_bytes
        held_bytes = max(_file_bytes(loaded.version), self.before() - before_bytes)
        return _Taken(held_bytes, max(held_bytes, most_bytes))


def _held_bytes(known: Iterable[_Taken]) -> int:
    return round(statistics.median(taken.held_bytes for taken in known))


def _file_bytes(version: ModelVersion) -> int:
    """The size of the files that a version reads: those of its manifest, or those that its description names."""
    pages = f"{version.description.reference.folder}/"
    paths = (
        version.folder / name for name in version.digests or version.description.files if not name.startswith(pages)
    )
    return sum(path.stat().st_size for path in paths if path.is_file())
