"""The thread that loads and closes versions of models, one after the other as they were asked for."""

from __future__ import annotations

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
from ocrsvc.models.loaded_version import EngineThreads, LoadedVersion, ModelMemory, VersionKey
from ocrsvc.models.model_name import without_paths
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.metrics_store import WorkerMetrics
from ocrsvc.telemetry.model_metrics import MODEL_LOAD_SECONDS, MODEL_LOADS, MODEL_UNLOADS

LOG: Final = logging.getLogger("ocrsvc.models")
# How long the requests of a version that is to make room are waited for, before it is left and another one tried.
DRAIN_S: Final = 10.0
# They are waited for at least this long, however soon other requests would rather be read by that version.
LEAST_DRAIN_S: Final = 2.0
# A version stays for as long as its load took before it makes room for another, but no longer than this: whatever is
# asked for, versions that push each other out take half of the time at most.
MOST_STAY_S: Final = 10.0
# How long a version may wait for room at most; then its requests are refused, and the next version has its turn.
ROOM_S: Final = 30.0
# Between two tries to load a version that could not be loaded.
LONGEST_BACKOFF_S: Final = 60.0
# Models that have series of their own in a worker; their names are an operator's.
MOST_NAMES: Final = 32
OTHERS: Final = "other"
# As much of a name as a series has room for.
_NAME_CHARACTERS: Final = 48


class LoadState(Enum):
    """Where a version is: requests begin to read with it only while it is LOADED."""

    CLOSED = "closed"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a version: done when it has its lease, or a failure.

    From `patience_s` on, on the clock, another version that is loaded is better for it than to wait.
    """

    is_done: bool = False
    failure: OcrsvcError | None = None
    patience_s: float = math.inf


@dataclass(slots=True, eq=False)
class Entry:
    """What is known of one version here; guarded by the lock of LoadedModels. Times are on its clock.

    `size_bytes` is expected while it is being loaded; before `stays_until_s` it makes no room for another. One that is
    retired is closed when its last lease has ended; one that replaces another that has left is waited for by all its
    requests, however many; it is late when some of them would rather have another by now.
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
        """Whether it was retired, and no request uses it any more."""
        return self.is_retired and self.state is LoadState.LOADED and not self.leases

    def expected_s(self, now_s: float) -> float:
        """How long loading it will still take, by what it took the last time."""
        spent_s = now_s - self.began_s if self.state is LoadState.LOADING else 0.0
        return max(0.0, self.load_s - spent_s)

    def refusal(self, now_s: float) -> ModelUnavailable:
        """The answer to requests after a failure, until it is tried again."""
        assert self.failure is not None, "only asked after a failure"
        error = ModelUnavailable(
            f"The model {self.version} cannot be loaded: {without_paths(self.failure.detail)}",
            without_paths(self.failure.remedy) or "Ask for another model, or send the request again later.",
            max(1, math.ceil(self.retry_at_s - now_s)),
        )
        error.__cause__ = self.failure
        return error


class VersionLoader:
    """Loads what is wanted and closes what was retired; the thread lives while there is something to do.

    `open_engine` is called in it, and engine threads may take `load_limit_s` to open their handles; `most_waiting`
    requests may wait at once. Each version is opened in a block of `guard`; one that `is_pinned` stays loaded.
    """

    def __init__(
        self,
        open_engine: Callable[[ModelVersion], Engine],
        threads: EngineThreads,
        memory: ModelMemory,
        *,
        load_limit_s: float = 600.0,
        most_waiting: int = 64,
        metrics: WorkerMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_waiting = most_waiting
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
        """Count under the model's name; under OTHERS where many have been seen already."""
        if self._metrics is None:
            return
        name = version.name[:_NAME_CHARACTERS]
        if name not in self._names:
            with self._changed:
                name = name if len(self._names) < MOST_NAMES else OTHERS
                self._names.add(name)
        self._metrics.count(metric, name, outcome)

    def _work_if_needed(self) -> None:
        """Start the loading thread unless it runs. Under the lock."""
        if not self._is_working and self._has_work():
            self._is_working = True
            try:
                threading.Thread(target=self._work, name="models", daemon=True).start()
            except RuntimeError:
                # Requests that wait are refused at their deadline, and the next request or lease tries again.
                self._is_working = False
                LOG.exception("There is no thread in which models could be loaded or closed")

    def _has_work(self) -> bool:
        return bool(self._wanted) or any(entry.is_to_close for entry in self._entries.values())

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            try:
                if entry.state is LoadState.CLOSING:
                    self._close(entry, "retired")
                else:
                    self._load(entry)
            except Exception:
                LOG.exception("The model %s: loading or closing it went wrong", entry.version)

    def _next(self) -> Entry | None:
        with self._changed:
            entry = next((one for one in self._entries.values() if one.is_to_close), None)
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
        except BaseException as error:  # noqa: BLE001  the loading thread, which all versions need, goes on
            failure = _as_failure(version, error)
            self._note_failure(entry, failure)
            self._count(MODEL_LOADS, version, "fail")
            return
        seconds = self._clock() - began_s
        with self._changed:
            entry.load_s, entry.failure, entry.failures = seconds, None, 0
            entry.stays_until_s = self._clock() + min(seconds, MOST_STAY_S)
            self._grant(entry)
        LOG.info("LOADED the model %s in %.2f s: %s bytes", version, seconds, entry.size_bytes)
        self._count(MODEL_LOADS, version, "success")
        if self._metrics is not None:
            self._metrics.record((), ((MODEL_LOAD_SECONDS.of(), seconds),))

    def _open(self, entry: Entry) -> None:
        """Open a version within the budget. Raises OcrsvcError, or what an engine throws."""
        version, memory = entry.version, self._memory
        memory.check(version)
        self._make_room(entry, memory.expected_bytes(version))
        entry.size_bytes = memory.expected_bytes(version)
        before_bytes = memory.before()
        with self.guard(version):
            beside_others = any(one.loaded is not None for one in list(self._entries.values()))
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
        """Close the least recently used versions until there is room. Raises OcrsvcError."""
        end_s = self._clock() + ROOM_S
        # What takes more than when it was loaded counts with that. Only this thread opens and closes versions.
        for one in list(self._entries.values()):
            if one is not entry and one.loaded is not None:
                one.size_bytes = self._memory.measure_again(one.loaded, one.size_bytes)
        while (victim := self._victim_for(entry, needed_bytes)) is not None:
            if self._is_closed:
                raise NotReady("This worker is shutting down.", "Send the request again.")
            if not victim.is_retired and self._clock() < min(end_s, victim.stays_until_s):
                self._let_stay(victim)
            elif self._drain(victim, min(end_s, self._clock() + DRAIN_S), entry):
                self._close(victim, "memory")
            elif self._clock() >= min(end_s, self._patience_s(entry)):
                raise ModelUnavailable(f"There is no room for the model {entry.version}: all others are being used.")

    def _victim_for(self, entry: Entry, needed_bytes: int) -> Entry | None:
        """The version that is to make room; None where there is room. Raises EngineUnavailable."""
        with self._changed:
            others = [one for one in self._entries.values() if one is not entry and one.loaded is not None]
            if self._memory.is_room(needed_bytes, (one.size_bytes for one in others)):
                return None
            unpinned = [one for one in others if one.is_retired or not self.is_pinned(one.version)]
            if not unpinned:
                raise EngineUnavailable(
                    f"There is no room for the model {entry.version} beside those that are pinned "
                    "(OCRSVC_MODELS_MEMORY).",
                    "Raise OCRSVC_MODELS_MEMORY, or pin fewer models.",
                )
            # What was retired leaves anyhow: no other version makes room for what replaces it.
            now_s = self._clock()
            return min(
                unpinned,
                key=lambda one: (not one.is_retired, one.stays_until_s > now_s, one.leases > 0, one.used_s),
            )

    def _let_stay(self, entry: Entry) -> None:
        """Wait a moment for a version that was loaded just now, and goes on reading."""
        with self._changed:
            left_s = entry.stays_until_s - self._clock()
            if left_s > 0 and not self._is_closed:
                self._changed.wait(min(left_s, CLIENT_CHECK_S))

    def _drain(self, entry: Entry, until_s: float, heir: Entry) -> bool:
        """Wait for the leases of a version, which grants no new ones meanwhile; whether it may be closed now.

        No longer than requests that wait for the heir can do without the version.
        """
        least_s = self._clock() + LEAST_DRAIN_S
        with self._changed:
            entry.state = LoadState.DRAINING
            while entry.leases and not self._is_closed:
                left_s = min(until_s, max(least_s, self._patience_s(heir))) - self._clock()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, CLIENT_CHECK_S))
            if not entry.leases:
                entry.state = LoadState.CLOSING
                return True
            self._grant(entry)
            return False

    def _patience_s(self, entry: Entry) -> float:
        """On the clock: when the first of those who wait for a version would rather have another."""
        with self._changed:
            ends_s = [waiter.patience_s for waiter in entry.waiters]
            return -math.inf if entry.is_late else min(ends_s, default=math.inf)

    def _grant(self, entry: Entry) -> None:
        """The version is there for requests: those that wait get their leases. Under the lock."""
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
        """The version could not be loaded: from now on wait 1, 2, 4, … 60 s between tries."""
        level = logging.INFO if self._is_closed else logging.ERROR
        LOG.log(level, "The model %s cannot be loaded: %s", entry.version, failure)
        with self._changed:
            entry.state, entry.failure, entry.failures = LoadState.CLOSED, failure, entry.failures + 1
            entry.size_bytes = 0
            now_s = self._clock()
            entry.retry_at_s = now_s + min(2.0 ** min(entry.failures - 1, 16), LONGEST_BACKOFF_S)
            for waiter in entry.waiters:
                # That this worker ends is not the model's fault.
                waiter.failure = failure if isinstance(failure, NotReady) else entry.refusal(now_s)
            self._end_waiting(entry)

    def _close(self, entry: Entry, why: str) -> None:
        """Close a version that has no leases, and give its memory back. In the loading thread."""
        loaded, entry.loaded = entry.loaded, None
        try:
            if loaded is not None:
                loaded.close()
        except Exception:
            LOG.exception("The model %s was not closed as it should be", entry.version)
        del loaded
        self._memory.release_free_memory()
        with self._changed:
            entry.state, entry.size_bytes = LoadState.CLOSED, 0
            self._changed.notify_all()
        LOG.info("UNLOADED the model %s: %s", entry.version, why)
        self._count(MODEL_UNLOADS, entry.version, why)


def _as_failure(version: ModelVersion, error: BaseException) -> OcrsvcError:
    """The error as one of ours, without the frames that would keep what was opened."""
    if isinstance(error, CancelledError):
        return EngineUnavailable(f"The model {version} was not opened: the engine threads ended.")
    if isinstance(error, OcrsvcError):
        return error.without_frames()
    LOG.error("The model %s: the engine threw", version, exc_info=error)
    return EngineFailed(f"The model {version} cannot be opened: {type(error).__name__}: {error}.")
