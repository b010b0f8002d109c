"""The thread that loads and closes model versions, one after the other in the order of requests."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import EngineFailed, EngineUnavailable, ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.models.loaded_version import EngineThreads, LoadedVersion, MeasuredEngine, ModelMemory, VersionKey
from ocrsvc.models.model_name import without_paths
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_LOAD_SECONDS, MODEL_LOADS, MODEL_UNLOADS

LOG: Final = logging.getLogger("ocrsvc.models")
DRAIN_S: Final = 10.0  # longest wait until a version to be evicted has no leases; then another version is tried
MIN_DRAIN_S: Final = 2.0  # an eviction waits at least this long for leases to end
# A loaded version stays for the time that its load took, but at most this long before it may be evicted; so versions
# that evict each other spend at most half of the time loading.
MAX_STAY_S: Final = 10.0
ROOM_S: Final = 30.0  # longest wait for enough memory; then requests for the version are refused
LONGEST_BACKOFF_S: Final = 60.0
MAX_NAMES: Final = 32  # number of models with their own metric series; all others share one series
OTHERS: Final = "other"
_NAME_CHARACTERS: Final = 48  # longest name in a metric series


class LoadState(Enum):
    """State of a version; new leases are granted only while it is LOADED."""

    CLOSED = "closed"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a version; done when it has its lease or a failure.

    From the time `patience_s` on, another version that is already loaded should read the request.
    """

    is_done: bool = False
    failure: OcrsvcError | None = None
    patience_s: float = math.inf


@dataclass(slots=True, eq=False)
class Entry:
    """A version's state in this worker; guarded by the lock of LoadedModels, whose clock gives the times.

    `size_bytes` is an estimate while loading. The version is not evicted before `stays_until_s`. A retired version is
    closed when its last lease ends. `is_replacing`: its predecessor was closed to make room, so any number of requests
    may wait for it. `is_late`: a waiting request has run out of patience.
    """

    version: ModelVersion
    state: LoadState = LoadState.CLOSED
    loaded: LoadedVersion | None = None
    leases: int = 0
    waiters: list[Waiter] = field(default_factory=list)
    size_bytes: int = 0
    used_s: float = -math.inf
    load_s: float = 0.0
    began_s: float = 0.0
    stays_until_s: float = -math.inf
    is_retired: bool = False
    is_replacing: bool = False
    is_late: bool = False
    failure: OcrsvcError | None = None
    failures: int = 0
    retry_at_s: float = -math.inf

    @property
    def is_to_close(self) -> bool:
        """Whether the version is retired and has no leases."""
        return self.is_retired and self.state is LoadState.LOADED and not self.leases

    def expected_s(self, now_s: float) -> float:
        """Expected remaining time of loading, by the duration of the last load."""
        spent_s = now_s - self.began_s if self.state is LoadState.LOADING else 0.0
        return max(0.0, self.load_s - spent_s)

    def refusal(self, now_s: float) -> ModelUnavailable:
        """The error for requests after a failed load, until the load is retried."""
        assert self.failure is not None, "only called after a failure"
        error = ModelUnavailable(
            f"The model {self.version} cannot be loaded: {without_paths(self.failure.detail)}",
            without_paths(self.failure.remedy) or "Choose another model, or send the request again later.",
            max(1, math.ceil(self.retry_at_s - now_s)),
        )
        error.__cause__ = self.failure
        return error


class VersionLoader:
    """Loads wanted versions and closes retired ones, in a thread that exists only while there is work.

    The thread calls `open_engine` inside the context manager `guard`; engine threads have `load_limit_s` to open their
    handles. At most `max_waiting` requests may wait. Versions that `is_pinned` accepts are not evicted.
    """

    def __init__(
        self,
        open_engine: Callable[[ModelVersion], Engine],
        threads: EngineThreads,
        memory: ModelMemory,
        *,
        load_limit_s: float = 600.0,
        max_waiting: int = 64,
        metrics: WorkerMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._open_engine, self._threads, self._memory = open_engine, threads, memory
        self._load_limit_s, self._metrics, self._clock = load_limit_s, metrics, clock
        self._names: set[str] = set()
        self._entries: dict[VersionKey, Entry] = {}
        self._wanted: deque[Entry] = deque()
        self._changed = threading.Condition()
        self._is_working = self._is_closed = False
        self.is_pinned: Callable[[ModelVersion], bool] = lambda _version: False
        self.guard: Callable[[ModelVersion], AbstractContextManager[object]] = lambda _version: nullcontext()

    def _count(self, metric: Metric, version: ModelVersion, outcome: str) -> None:
        """Increment a metric with the model's name as label, or with OTHERS if MAX_NAMES names are in use."""
        if self._metrics is None:
            return
        name = version.name[:_NAME_CHARACTERS]
        if name not in self._names:
            with self._changed:
                name = name if len(self._names) < MAX_NAMES else OTHERS
                self._names.add(name)
        self._metrics.count(metric, name, outcome)

    def _work_if_needed(self) -> None:
        """Start the loading thread if there is work and it is not running. Call it under the lock."""
        has_work = bool(self._wanted) or any(entry.is_to_close for entry in self._entries.values())
        if has_work and not self._is_working:
            self._is_working = True
            try:
                threading.Thread(target=self._work, name="models", daemon=True).start()
            except RuntimeError:
                # No thread: requests wait. The next request, or the end of a lease, tries again to start it.
                self._is_working = False
                LOG.exception("No thread can be started to load or close models")

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            try:
                if entry.state is LoadState.CLOSING:
                    self._close(entry, "retired")
                else:
                    self._load(entry)
            except Exception:
                LOG.exception("The model %s cannot be loaded or closed", entry.version)

    def _next(self) -> Entry | None:
        with self._changed:
            entry = next((other for other in self._entries.values() if other.is_to_close), None)
            if entry is not None:
                entry.state = LoadState.CLOSING
            while entry is None and self._wanted:
                first = self._wanted.popleft()
                if first.state is LoadState.CLOSED:
                    entry, first.state = first, LoadState.LOADING
            if entry is None:
                self._is_working = False
                self._changed.notify_all()
            return entry

    def _load(self, entry: Entry) -> None:
        version, began_s = entry.version, self._clock()
        entry.began_s = began_s
        LOG.info("LOADING the model %s", version)
        try:
            self._open(entry)
        except BaseException as error:  # noqa: BLE001  the loading thread must survive, for all versions need it
            self._note_failure(entry, _as_failure(version, error))
            self._count(MODEL_LOADS, version, "fail")
            return
        seconds = self._clock() - began_s
        with self._changed:
            entry.load_s, entry.failure, entry.failures = seconds, None, 0
            entry.stays_until_s = self._clock() + min(seconds, MAX_STAY_S)
            self._grant(entry)
        LOG.info("LOADED the model %s in %.2f s: %.0f MiB", version, seconds, entry.size_bytes / 2**20)
        self._count(MODEL_LOADS, version, "success")
        if self._metrics is not None:
            self._metrics.record((), ((MODEL_LOAD_SECONDS.of(), seconds),))

    def _open(self, entry: Entry) -> None:
        """Open a version within the memory budget. Raises OcrsvcError, or any error of the engine."""
        version, memory = entry.version, self._memory
        memory.check(version)
        self._make_room(entry, memory.expected_bytes(version))
        entry.size_bytes = memory.expected_bytes(version)
        before_bytes = memory.read_before_load()
        with self.guard(version):
            beside_others = any(other.loaded is not None for other in list(self._entries.values()))
            loaded = LoadedVersion(version, self._open_engine(version), self._threads)
            loaded.open_handles(self._load_limit_s, beside_others=beside_others)
        try:
            entry.size_bytes = size_bytes = memory.measure(loaded, before_bytes)
            memory.check(version)
            self._make_room(entry, size_bytes)
        except BaseException:
            loaded.close()
            raise
        entry.loaded = loaded

    def _make_room(self, entry: Entry, needed_bytes: int) -> None:
        """Close the least recently used versions until `needed_bytes` fit. Raises OcrsvcError."""
        end_s = self._clock() + ROOM_S
        # Measure again, as versions may have grown. No lock is needed: only this thread opens and closes versions.
        for other in list(self._entries.values()):
            engine = other.loaded.engine if other.loaded is not None else None
            if other is not entry and isinstance(engine, MeasuredEngine):
                other.size_bytes = engine.memory_bytes()
        while (victim := self._victim_for(entry, needed_bytes)) is not None:
            if self._is_closed:
                raise NotReady("This worker is shutting down.", "Send the request again.")
            if not victim.is_retired and self._clock() < min(end_s, victim.stays_until_s):
                self._wait_for_stay(victim)
            elif self._drain(victim, min(end_s, self._clock() + DRAIN_S), entry):
                self._close(victim, "memory")
            elif self._clock() >= min(end_s, self._patience_s(entry)):
                raise ModelUnavailable(f"There is no room for the model {entry.version}: all others are in use.")

    def _victim_for(self, entry: Entry, needed_bytes: int) -> Entry | None:
        """The version to evict next; None if there is room. Raises EngineUnavailable."""
        with self._changed:
            others = [other for other in self._entries.values() if other is not entry and other.loaded is not None]
            if self._memory.is_room(needed_bytes, (other.size_bytes for other in others)):
                return None
            unpinned = [other for other in others if other.is_retired or not self.is_pinned(other.version)]
            if not unpinned:
                raise EngineUnavailable(
                    f"There is no room for the model {entry.version} beside the pinned ones (OCRSVC_MODELS_MEMORY).",
                    "Raise OCRSVC_MODELS_MEMORY, or pin fewer models.",
                )
            # Evict retired versions first, because they are to be closed anyway.
            now_s = self._clock()
            return min(
                unpinned,
                key=lambda other: (not other.is_retired, other.stays_until_s > now_s, other.leases > 0, other.used_s),
            )

    def _wait_for_stay(self, entry: Entry) -> None:
        """Wait a moment, as a version that was just loaded may not be evicted yet."""
        with self._changed:
            left_s = entry.stays_until_s - self._clock()
            if left_s > 0 and not self._is_closed:
                self._changed.wait(min(left_s, CLIENT_CHECK_S))

    def _drain(self, entry: Entry, until_s: float, successor: Entry) -> bool:
        """Grant no new leases of a version, and wait for the open ones to end; returns whether it may be closed.

        It gives up at `until_s`, or when requests for its successor run out of patience; then the version serves again.
        """
        min_s = self._clock() + MIN_DRAIN_S
        with self._changed:
            entry.state = LoadState.DRAINING
            while entry.leases and not self._is_closed:
                left_s = min(until_s, max(min_s, self._patience_s(successor))) - self._clock()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, CLIENT_CHECK_S))
            if not entry.leases:
                entry.state = LoadState.CLOSING
                return True
            self._grant(entry)
            return False

    def _patience_s(self, entry: Entry) -> float:
        """Time, on `_clock`, when the patience of the first waiting request ends."""
        with self._changed:
            ends_s = [waiter.patience_s for waiter in entry.waiters]
            return -math.inf if entry.is_late else min(ends_s, default=math.inf)

    def _grant(self, entry: Entry) -> None:
        """Mark the version as loaded, and grant leases to waiting requests. Call it under the lock."""
        entry.state, entry.used_s = LoadState.LOADED, self._clock()
        entry.leases += len(entry.waiters)
        self._end_waiting(entry)

    def _end_waiting(self, entry: Entry) -> None:
        for waiter in entry.waiters:
            waiter.is_done = True
        entry.waiters.clear()
        entry.is_replacing = entry.is_late = False
        if entry in self._wanted:
            self._wanted.remove(entry)
        self._changed.notify_all()

    def _note_failure(self, entry: Entry, failure: OcrsvcError) -> None:
        """After a failed load: refuse waiting requests, and load again no sooner than after 1, 2, 4, … 60 s."""
        level = logging.INFO if self._is_closed else logging.ERROR
        LOG.log(level, "The model %s cannot be loaded: %s", entry.version, failure)
        with self._changed:
            entry.state, entry.failure, entry.failures = LoadState.CLOSED, failure, entry.failures + 1
            entry.size_bytes = 0
            now_s = self._clock()
            entry.retry_at_s = now_s + min(2.0 ** min(entry.failures - 1, 16), LONGEST_BACKOFF_S)
            for waiter in entry.waiters:
                # NotReady: the worker ends, which is not the model's fault.
                waiter.failure = failure if isinstance(failure, NotReady) else entry.refusal(now_s)
            self._end_waiting(entry)

    def _close(self, entry: Entry, why: str) -> None:
        """Close a version without leases, and free its memory. Call it in the loading thread."""
        loaded, entry.loaded = entry.loaded, None
        try:
            if loaded is not None:
                loaded.close()
        except Exception:
            LOG.exception("The model %s could not be closed", entry.version)
        del loaded
        self._memory.release_free_memory()
        with self._changed:
            entry.state, entry.size_bytes = LoadState.CLOSED, 0
            self._changed.notify_all()
        LOG.info("UNLOADED the model %s: %s", entry.version, why)
        self._count(MODEL_UNLOADS, entry.version, why)


def _as_failure(version: ModelVersion, error: BaseException) -> OcrsvcError:
    """Convert to OcrsvcError, without traceback frames, which would keep the engine alive."""
    if isinstance(error, CancelledError):
        return EngineUnavailable(f"The model {version} was not opened: the engine threads ended.")
    if isinstance(error, OcrsvcError):
        return error.without_frames()
    LOG.error("The model %s: unexpected error of the engine", version, exc_info=error)
    return EngineFailed(f"The model {version} cannot be opened: {type(error).__name__}: {error}.")
