"""A worker's loaded model versions: leased to requests, loaded on demand, closed least recently used first.

One thread (`version_loader.py`) loads and closes versions in the order of requests. So a version that was loaded for a
waiting request is not evicted before that request gets it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ocrsvc.engines.contract import Engine, Handle
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.models.loaded_version import LoadedVersion, key_of
from ocrsvc.models.version_loader import DRAIN_S, Entry, LoadState, VersionLoader, Waiter
from ocrsvc.results import Check, EngineInfo, no_check
from ocrsvc.serving.work_queue import CLIENT_CHECK_S
from ocrsvc.telemetry.metric import Metric
from ocrsvc.telemetry.model_metrics import MODEL_LEASES, MODELS_BYTES, MODELS_LIMIT, MODELS_LOADED

# Number of retired versions to remember, so that requests that still refer to one select a version anew.
MAX_RETIRED: Final = 64


class VersionRetired(Exception):
    """The version was retired; a request that had selected it should select again."""


class LoadTakesLong(Exception):
    """Loading the version takes more than half of a request's time; another version should read the request."""


class Lease:
    """The right to read with a loaded version, which stays loaded until the lease is closed. Thread-safe."""

    def __init__(self, models: LoadedModels, entry: Entry) -> None:
        self._models, self._entry = models, entry
        self._is_open = True
        self.version = entry.version

    @property
    def engine(self) -> Engine:
        """The version's engine."""
        return self._loaded.engine

    def describe(self) -> EngineInfo:
        """The engine's description, with the model's name and number."""
        return self._loaded.engine.describe()

    def handle(self) -> Handle:
        """The handle of the calling engine thread."""
        return self._loaded.handle()

    def again(self) -> Lease:
        """Another lease of the same version; only call this while this lease is open."""
        return self._models.lease_again(self._entry)

    def close(self) -> None:
        """End the lease; later calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._models.end_lease(self._entry)

    @property
    def _loaded(self) -> LoadedVersion:
        assert self._entry.loaded is not None, "a lease keeps the version loaded"
        return self._entry.loaded


class LoadedModels(VersionLoader):
    """The loaded versions of a worker. Thread-safe; engine threads must not call methods that wait."""

    def lease(
        self,
        version: ModelVersion,
        deadline: float = math.inf,
        check: Check = no_check,
        *,
        reload: bool = True,
        has_other: bool = False,
    ) -> Lease:
        """Lease a version, and wait until `deadline` for it to be loaded.

        With `reload`, a retired version is loaded again; otherwise VersionRetired is raised. `has_other`: another
        version could read the request, so LoadTakesLong is raised when half of the time is over. Raises
        ModelUnavailable if the version cannot be loaded or too many requests wait; NotReady if the deadline has passed
        or the worker ends; and what `check` raises.
        """
        key = key_of(version)
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None and entry.state is LoadState.LOADED:
                entry.leases += 1
                self._count(MODEL_LEASES, version, "hit")
                return Lease(self, entry)
            if entry is None:
                entry = self._entries[key] = Entry(version)
            waiter = self._begin_waiting(entry, deadline, reload=reload, has_other=has_other)
        self._count(MODEL_LEASES, version, "miss")
        try:
            self._wait(entry, waiter, deadline, check)
        except BaseException:
            self._stop_waiting(entry, waiter)
            raise
        return Lease(self, entry)

    def preload(self, version: ModelVersion, deadline: float = math.inf) -> None:
        """Load a version, even a retired one, and wait for it. Raises the error that prevents it."""
        with self._changed:
            entry = self._entries.setdefault(key_of(version), Entry(version))
            # Clear earlier failures and retirement: the caller wants the version loaded now.
            entry.is_retired, entry.retry_at_s = False, -math.inf
            entry.is_replacing = entry.state is not LoadState.LOADED
        try:
            self.lease(version, deadline).close()
        except ModelUnavailable as error:
            raise (error.__cause__ if isinstance(error.__cause__, OcrsvcError) else error) from None

    def retire(self, version: ModelVersion) -> None:
        """Close a version when its last lease ends; returns without waiting for that."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            if entry is not None:
                entry.is_retired = True
                self._forget_old()
                self._work_if_needed()

    def is_loaded(self, version: ModelVersion) -> bool:
        """Whether a version is loaded, so that requests need not wait."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            return entry is not None and entry.state is LoadState.LOADED

    def versions(self) -> tuple[ModelVersion, ...]:
        """The loaded versions, except retired ones."""
        with self._changed:
            entries = [entry for entry in self._entries.values() if entry.state is LoadState.LOADED]
            return tuple(entry.version for entry in entries if not entry.is_retired)

    def has_room_for(self, version: ModelVersion) -> bool:
        """Whether a version probably fits into the budget in addition to all loaded ones."""
        # Computed outside the lock, because it may stat files.
        needed_bytes = self._memory.expected_bytes(version)
        with self._changed:
            others = [entry.size_bytes for key, entry in self._entries.items() if key != key_of(version)]
        return self._memory.is_room(needed_bytes, others)

    def describe(self, version: ModelVersion) -> EngineInfo | None:
        """The engine of a version; None if it is not loaded."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            return None if entry is None or entry.loaded is None else entry.loaded.engine.describe()

    def list(self) -> list[Entry]:
        """Copies of the entries that are loaded, loading or failed, sorted by name and number."""
        with self._changed:
            entries = [replace(entry) for entry in self._entries.values()]
        shown = (entry for entry in entries if entry.state != LoadState.CLOSED or entry.failure is not None)
        return sorted(shown, key=lambda entry: (entry.version.name, entry.version.number))

    @property
    def budget_bytes(self) -> int | None:
        """Memory limit of all versions together; None: no limit."""
        return self._memory.budget_bytes

    def gauges(self) -> Iterator[tuple[Metric, float]]:
        """Metrics of the loaded versions."""
        sizes_bytes = [entry.size_bytes for entry in self.list() if entry.size_bytes]
        yield MODELS_LOADED, len(sizes_bytes)
        yield MODELS_BYTES, sum(sizes_bytes)
        yield MODELS_LIMIT, self.budget_bytes or 0

    def held_bytes(self) -> int:
        """Memory of all versions that are loaded (as measured at loading) or loading (as expected)."""
        with self._changed:
            return sum(entry.size_bytes for entry in self._entries.values())

    @property
    def is_settled(self) -> bool:
        """Whether no version is being loaded or closed."""
        return not self._is_working

    def stop(self) -> None:
        """Stop loading, and refuse waiting requests. Loaded versions stay for requests with a lease."""
        with self._changed:
            self._is_closed = True
            self._wanted.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all versions; call it after `stop`, when no engine thread is reading."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_working, DRAIN_S)
            entries = [entry for entry in self._entries.values() if entry.state is LoadState.LOADED]
        for entry in entries:
            self._close(entry, "end")

    def close_own_handles(self) -> None:
        """Close the handles of the calling engine thread, which is ending."""
        with self._changed:
            loaded_versions = [entry.loaded for entry in self._entries.values() if entry.loaded is not None]
        for loaded in loaded_versions:
            loaded.close_own_handle()

    def lease_again(self, entry: Entry) -> Lease:
        """Open another lease of the same version; called by Lease.again."""
        with self._changed:
            entry.leases += 1
        return Lease(self, entry)

    def end_lease(self, entry: Entry) -> None:
        """End a lease; called by Lease.close. A retired version may be closed when its last lease has ended."""
        with self._changed:
            entry.leases -= 1
            entry.used_s = self._clock()
            if not entry.leases:
                if entry.is_retired:
                    self._work_if_needed()
                if entry.state is LoadState.DRAINING:
                    self._changed.notify_all()

    def _begin_waiting(self, entry: Entry, deadline: float, *, reload: bool, has_other: bool) -> Waiter:
        """Queue the version for loading, and add a waiter. Call it under the lock. Raises as `lease` does."""
        if self._is_closed:
            raise NotReady("This worker is shutting down.", "Send the request again.")
        now_s = self._clock()
        if entry.failure is not None and now_s < entry.retry_at_s:
            raise entry.refusal(now_s)
        if entry.is_retired and not reload:
            raise VersionRetired(str(entry.version))
        if entry.is_retired:
            entry.is_retired, entry.is_replacing = False, True
        # Do not count requests for a version that replaces a closed one: any number of them may wait.
        waiting = sum(len(other.waiters) for other in self._entries.values() if not other.is_replacing)
        if not entry.is_replacing and waiting >= self._max_waiting:
            raise ModelUnavailable(
                f"{self._max_waiting} requests already wait for models to be loaded.",
                "Send the request again in a moment.",
            )
        if entry not in self._wanted and entry.state is not LoadState.LOADING:
            self._wanted.append(entry)
            self._work_if_needed()
        if now_s + entry.expected_s(now_s) > deadline:
            raise LoadTakesLong(str(entry.version)) if has_other else _not_loaded(entry)
        waiter = Waiter(patience_s=now_s + (deadline - now_s) / 2 if has_other else math.inf)
        entry.waiters.append(waiter)
        return waiter

    def _wait(self, entry: Entry, waiter: Waiter, deadline: float, check: Check) -> None:
        """Wait until the lease is granted. Raises as `lease` does."""
        while True:
            with self._changed:
                left_s = min(deadline, waiter.patience_s) - self._clock()
                if not waiter.is_done and left_s > 0 and not self._is_closed:
                    self._changed.wait(min(left_s, CLIENT_CHECK_S))
                if waiter.is_done and waiter.failure is None:
                    return
                if waiter.failure is not None and not self._is_closed:
                    raise waiter.failure
                if self._is_closed or self._clock() >= deadline:
                    raise _not_loaded(entry)
                if self._clock() >= waiter.patience_s:
                    entry.is_late = True
                    self._changed.notify_all()
                    raise LoadTakesLong(str(entry.version))
            check()

    def _stop_waiting(self, entry: Entry, waiter: Waiter) -> None:
        with self._changed:
            if waiter in entry.waiters:
                entry.waiters.remove(waiter)
                return
        if waiter.failure is None:
            self.end_lease(entry)

    def _forget_old(self) -> None:
        """Forget all but a few retired versions. Call it under the lock."""
        retired = [(key, entry) for key, entry in self._entries.items() if entry.is_retired and not entry.waiters]
        closed = [key for key, entry in retired if entry.state is LoadState.CLOSED and entry not in self._wanted]
        for key in closed[:-MAX_RETIRED]:
            del self._entries[key]


def _not_loaded(entry: Entry) -> NotReady:
    return NotReady(
        f"The model {entry.version} is still being loaded.",
        "Send the request again in a moment.",
        max(1, math.ceil(entry.load_s)),
    )
