"""The versions of models that this worker has loaded: leased by requests, loaded on demand, the least used closed.

Loading and closing happen in a thread of their own (`version_loader.py`), one version after the other, in the order in
which they were asked for; so a request that has waited for a version gets it before another may push it out again.
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

# Versions that are closed for good, and remembered, so that requests that meant them are resolved again.
MOST_RETIRED: Final = 64


class VersionRetired(Exception):
    """The version was closed for good; a request that was resolved to it before should be resolved again."""


class LoadTakesLong(Exception):
    """The version is not loaded yet, and half of a request's time is over, or all would be before it is."""


class Lease:
    """The right to read with one loaded version, which is not closed before; for any thread."""

    def __init__(self, models: LoadedModels, entry: Entry) -> None:
        self._models, self._entry = models, entry
        self._is_open = True
        self.version = entry.version

    @property
    def engine(self) -> Engine:
        """The engine that has it loaded."""
        return self._loaded.engine

    def describe(self) -> EngineInfo:
        """That engine, under the name and number of a repository's model."""
        return self._loaded.engine.describe()

    def handle(self) -> Handle:
        """The handle of the engine thread that asks."""
        return self._loaded.handle()

    def again(self) -> Lease:
        """Another lease of the same version, while this one is open."""
        return self._models.lease_again(self._entry)

    def close(self) -> None:
        """Give it back; later calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._models.end_lease(self._entry)

    @property
    def _loaded(self) -> LoadedVersion:
        assert self._entry.loaded is not None, "a lease keeps it loaded"
        return self._entry.loaded


class LoadedModels(VersionLoader):
    """All methods may be called from any thread but an engine's, where they might wait."""

    def lease(
        self,
        version: ModelVersion,
        deadline: float = math.inf,
        check: Check = no_check,
        *,
        reload: bool = True,
        has_other: bool = False,
    ) -> Lease:
        """The right to read with a version, which is loaded first if it is not, waiting until `deadline` on the clock.

        With `reload` a version that was retired is so no more, else VersionRetired is raised; where another one reads
        as well, half of the time is left for that, and LoadTakesLong is raised. Raises ModelUnavailable where it cannot
        be loaded or too many wait, NotReady where it is not by the deadline or this worker ends, and as `check`.
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
        """Have a version loaded, also one that was retired; returns when it is. Raises what keeps it from that."""
        with self._changed:
            entry = self._entries.setdefault(key_of(version), Entry(version))
            # Something has changed since it failed or was retired.
            entry.is_retired, entry.retry_at_s = False, -math.inf
            entry.is_replacing = entry.state is not LoadState.LOADED
        try:
            self.lease(version, deadline).close()
        except ModelUnavailable as error:
            raise (error.__cause__ if isinstance(error.__cause__, OcrsvcError) else error) from None

    def retire(self, version: ModelVersion) -> None:
        """Have a version closed as soon as its last lease has ended; returns at once."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            if entry is not None:
                entry.is_retired = True
                self._forget_old()
                self._work_if_needed()

    def is_loaded(self, version: ModelVersion) -> bool:
        """Whether a request could read with it at once."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            return entry is not None and entry.state is LoadState.LOADED

    def versions(self) -> tuple[ModelVersion, ...]:
        """Those that requests could read with at once, without those that were retired."""
        with self._changed:
            entries = [entry for entry in self._entries.values() if entry.state is LoadState.LOADED]
            return tuple(entry.version for entry in entries if not entry.is_retired)

    def has_room_for(self, version: ModelVersion) -> bool:
        """Whether a version can be loaded, as far as is known, and all that are loaded stay."""
        # It may look at files.
        needed_bytes = self._memory.expected_bytes(version)
        with self._changed:
            others = [entry.size_bytes for key, entry in self._entries.items() if key != key_of(version)]
        return self._memory.is_room(needed_bytes, others)

    def describe(self, version: ModelVersion) -> EngineInfo | None:
        """The engine that has a version loaded; None while none has."""
        with self._changed:
            entry = self._entries.get(key_of(version))
            return None if entry is None or entry.loaded is None else entry.loaded.engine.describe()

    def list(self) -> list[Entry]:
        """What is loaded, is being loaded, or could not be, as it is now; by name and number."""
        with self._changed:
            found = [replace(entry) for entry in self._entries.values()]
        shown = (one for one in found if one.state != LoadState.CLOSED or one.failure is not None)
        return sorted(shown, key=lambda one: (one.version.name, one.version.number))

    @property
    def budget_bytes(self) -> int | None:
        """What all may take together; None is no limit."""
        return self._memory.budget_bytes

    def gauges(self) -> Iterator[tuple[Metric, float]]:
        """The gauges of what is loaded."""
        sizes_bytes = [one.size_bytes for one in self.list() if one.size_bytes]
        yield MODELS_LOADED, len(sizes_bytes)
        yield MODELS_BYTES, sum(sizes_bytes)
        yield MODELS_LIMIT, self.budget_bytes or 0

    def held_bytes(self) -> int:
        """What all loaded versions take together, as measured when each was loaded; with what is being loaded."""
        with self._changed:
            return sum(entry.size_bytes for entry in self._entries.values())

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being loaded or closed."""
        return not self._is_working

    def stop(self) -> None:
        """Load nothing any more and refuse what waits. What is loaded stays, for the requests that have a lease."""
        with self._changed:
            self._is_closed = True
            self._wanted.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all versions; after `stop`, when no engine thread reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_working, DRAIN_S)
            entries = [entry for entry in self._entries.values() if entry.state is LoadState.LOADED]
        for entry in entries:
            self._close(entry, "end")

    def close_own_handles(self) -> None:
        """Close the handles of the engine thread that asks, which ends."""
        with self._changed:
            loaded = [entry.loaded for entry in self._entries.values() if entry.loaded is not None]
        for one in loaded:
            one.close_own_handle()

    def lease_again(self, entry: Entry) -> Lease:
        """See Lease.again."""
        with self._changed:
            entry.leases += 1
        return Lease(self, entry)

    def end_lease(self, entry: Entry) -> None:
        """See Lease.close."""
        with self._changed:
            entry.leases -= 1
            entry.used_s = self._clock()
            if not entry.leases:
                if entry.is_retired:
                    self._work_if_needed()
                if entry.state is LoadState.DRAINING:
                    self._changed.notify_all()

    def _begin_waiting(self, entry: Entry, deadline: float, *, reload: bool, has_other: bool) -> Waiter:
        """Have the version loaded, and count the request that waits for it. Under the lock. Raises as `lease`."""
        if self._is_closed:
            raise NotReady("This worker is shutting down.", "Send the request again.")
        now_s = self._clock()
        if entry.failure is not None and now_s < entry.retry_at_s:
            raise entry.refusal(now_s)
        if entry.is_retired and not reload:
            raise VersionRetired(str(entry.version))
        if entry.is_retired:
            entry.is_retired, entry.is_replacing = False, True
        # Requests whose own version has left for another are not counted.
        waiting = sum(len(one.waiters) for one in self._entries.values() if not one.is_replacing)
        if not entry.is_replacing and waiting >= self._most_waiting:
            raise ModelUnavailable(
                f"{self._most_waiting} requests wait for models to be loaded already.",
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
        """Until the lease is granted. Raises as `lease`, and as `check`."""
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
        """Remember a few retired versions only. Under the lock."""
        retired = [key for key, entry in self._entries.items() if self._is_forgettable(entry)]
        for key in retired[:-MOST_RETIRED]:
            del self._entries[key]

    def _is_forgettable(self, entry: Entry) -> bool:
        is_gone = entry.is_retired and entry.state is LoadState.CLOSED and not entry.waiters
        return is_gone and entry not in self._wanted


def _not_loaded(entry: Entry) -> NotReady:
    return NotReady(
        f"The model {entry.version} is still being loaded.",
        "Send the request again in a moment.",
        max(1, math.ceil(entry.load_s)),
    )
