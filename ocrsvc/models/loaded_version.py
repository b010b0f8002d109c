"""A loaded model version: its engine, a warm handle per engine thread, and its memory.

Memory is estimated from the files, then measured when a version is loaded, and remembered.
"""

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

CLOSE_S: Final = 10.0  # time limit for engine threads to close their handles
# Before its first load, a version is estimated to need this multiple of its files' size; see docs/design/models.md.
FILES_FACTOR: Final = 11
MIN_BYTES: Final = 8 << 20  # smallest estimate of a version's memory
_KEPT: Final = 3  # measurements that are remembered per version
VersionKey = tuple[str, int, str]  # name, number and digest: changed files make another version
EngineThreads = Executor[Any]


@runtime_checkable
class MeasuredEngine(Protocol):
    """An engine that measures its memory itself, because it runs in other processes."""

    def memory_bytes(self) -> int:
        """Private memory that the engine's processes use now."""
        ...


class LoadedVersion:
    """A version's engine with its handles."""

    def __init__(self, version: ModelVersion, engine: Engine, threads: EngineThreads) -> None:
        self.version, self.engine = version, engine
        self._threads = threads
        self._handles: dict[int, Handle] = {}

    def handle(self) -> Handle:
        """The handle of the calling engine thread."""
        return self._handles[threading.get_ident()]

    def open_handles(self, limit_s: float, *, beside_others: bool) -> None:
        """Open and warm up a handle per engine thread, in that thread; on failure all are closed again.

        `beside_others` says that engine threads are using other versions. An engine with `any_thread` then opens its
        handles in this thread. Raises the engine's errors, and EngineUnavailable after `limit_s`.
        """
        try:
            self._open_handles(limit_s, beside_others=beside_others)
        except BaseException:
            self.close()
            raise

    def _open_handles(self, limit_s: float, *, beside_others: bool) -> None:
        threads, traits = self._threads.idents(), self.engine.traits
        if traits.any_thread and beside_others:
            # Open all handles in this thread: the engine threads stay free to read with other versions.
            for thread in threads:
                self._open_handle(thread)
            return
        # Open the handles one after the other if the engine requires it, else concurrently.
        groups = [(thread,) for thread in threads] if traits.serial_open else [threads]
        end_s = time.monotonic() + limit_s
        for group in groups:
            _wait(self._threads.run_in_each(lambda: self._open_handle(threading.get_ident()), group), end_s)

    def close(self) -> None:
        """Close the handles and the engine, which must be idle; if an engine thread hangs, leave the engine open."""
        if self.engine.traits.any_thread:
            for thread in list(self._handles):
                self._handles.pop(thread).close()
        elif self._handles:
            with suppress(EngineUnavailable):
                _wait(self._threads.run_in_each(self.close_own_handle), time.monotonic() + CLOSE_S)
        if not self._handles:
            self.engine.close()

    def close_own_handle(self) -> None:
        """Close the handle of the calling engine thread, if it has one."""
        handle = self._handles.pop(threading.get_ident(), None)
        if handle is not None:
            handle.close()

    def _open_handle(self, thread: int) -> None:
        # Store the handle before its warm-up: if the warm-up fails, all stored handles are closed.
        handle = self._handles[thread] = self.engine.open_handle()
        handle.warm_up()


def _wait(futures: Sequence[Future[None]], end_s: float) -> None:
    """Wait for all futures until `end_s`, then cancel the rest. Raises the first failure, or EngineUnavailable."""
    try:
        for future in futures:
            future.result(max(0.0, end_s - time.monotonic()))
    except TimeoutError:
        raise EngineUnavailable("The engine threads did not open the model in time.") from None
    finally:
        for future in futures:
            future.cancel()


class _LoadMemory(NamedTuple):
    """Memory of loading a version, before (`peak_bytes`) and after (`held_bytes`) free memory went to the system."""

    held_bytes: int
    peak_bytes: int


def key_of(version: ModelVersion) -> VersionKey:
    """The key of a version in dicts of loaded models."""
    return version.name, version.number, version.digest


class ModelMemory:
    """Memory of versions, and their common budget. Only the loading thread measures; other methods are thread-safe.

    If the budget is None, there is no limit. `copies` returns how many processes load a version. Free memory is
    returned to the system before each measurement.
    """

    def __init__(
        self,
        budget_bytes: int | None,
        read_bytes: Callable[[], int] = read_private_bytes,
        release_free_memory: Callable[[], object] = release_free_memory,
        copies: Callable[[ModelVersion], int] = lambda _version: 1,
    ) -> None:
        self.budget_bytes, self.release_free_memory = budget_bytes, release_free_memory
        self._read_bytes, self._copies = read_bytes, copies
        # The values are tuples, as other threads may read them at the same time.
        self._measured: dict[VersionKey, tuple[_LoadMemory, ...]] = {}
        self._largest: dict[str, int] = {}

    def expected_bytes(self, version: ModelVersion) -> int:
        """Peak memory of loading a version: the median of its last loads, or a generous estimate.

        The estimate is at least that of the engine's largest version, as some engines' files say nothing about memory.
        """
        if known := self._measured.get(key_of(version)):
            return round(statistics.median(load.peak_bytes for load in known))
        estimate = self._copies(version) * max(MIN_BYTES, FILES_FACTOR * _file_bytes(version))
        return max(estimate, self._largest.get(version.description.engine, 0))

    def check(self, version: ModelVersion) -> None:
        """Raises EngineUnavailable if this version alone exceeds the memory budget, as measured or by its files."""
        known = self._measured.get(key_of(version))
        needed = _held_bytes(known) if known else _file_bytes(version)
        if self.budget_bytes is not None and needed > self.budget_bytes:
            raise EngineUnavailable(
                f"The model {version} takes {needed} bytes, but all models of a worker may take only "
                f"{self.budget_bytes} (OCRSVC_MODELS_MEMORY).",
                "Raise OCRSVC_MODELS_MEMORY, or use fewer engine threads.",
            )

    def is_room(self, needed_bytes: int, held_bytes: Iterable[int]) -> bool:
        """Whether the budget allows `needed_bytes` in addition to `held_bytes`; always True if nothing is held."""
        held = sum(held_bytes)
        return self.budget_bytes is None or not held or held + needed_bytes <= self.budget_bytes

    def read_before_load(self) -> int:
        """Memory of this process before a load, for `measure`."""
        self.release_free_memory()
        return self._read_bytes()

    def measure(self, loaded: LoadedVersion, before_bytes: int) -> int:
        """Measure the memory of a version that was just loaded; returns the median of its last loads in bytes.

        The result is at least the size of the files, because requests change this process's memory at the same time.
        """
        key, engine = key_of(loaded.version), loaded.version.description.engine
        load = self._load_memory(loaded, before_bytes)
        known = self._measured[key] = (*self._measured.get(key, ())[1 - _KEPT :], load)
        self._largest[engine] = max(load.peak_bytes, self._largest.get(engine, 0))
        return _held_bytes(known)

    def _load_memory(self, loaded: LoadedVersion, before_bytes: int) -> _LoadMemory:
        if isinstance(loaded.engine, MeasuredEngine):
            now_bytes = loaded.engine.memory_bytes()
            return _LoadMemory(now_bytes, now_bytes)
        peak_bytes = self._read_bytes() - before_bytes
        held_bytes = max(_file_bytes(loaded.version), self.read_before_load() - before_bytes)
        return _LoadMemory(held_bytes, max(held_bytes, peak_bytes))


def _held_bytes(known: Iterable[_LoadMemory]) -> int:
    return round(statistics.median(load.held_bytes for load in known))


def _file_bytes(version: ModelVersion) -> int:
    """Size of a version's files, without its reference pages."""
    pages, names = f"{version.description.reference.folder}/", version.digests or version.description.files
    paths = (version.folder / name for name in names if not name.startswith(pages))
    return sum(path.stat().st_size for path in paths if path.is_file())
