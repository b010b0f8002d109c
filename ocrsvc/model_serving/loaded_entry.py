"""What LoadedModels knows of one version: its state, who uses it and who waits for it. Guarded by its lock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.model_repository.reasons import without_paths
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.loaded_version import LoadedVersion


class LoadState(Enum):
    """Where a version is: requests read with it only while it is LOADED, or as long as they have a lease."""

    CLOSED = "closed"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """One version as an operator sees it.

    Attributes:
        name, number: Which.
        state: See LoadState.
        size_bytes: What it takes, or is expected to while it is being loaded; 0 while it is not loaded.
        leases: Requests and pages that read with it now.
        reason: Why it could not be loaded the last time; empty otherwise.
    """

    name: str
    number: int
    state: LoadState
    size_bytes: int
    leases: int
    reason: str = ""

    @property
    def order(self) -> tuple[str, int]:
        """What they are sorted by."""
        return self.name, self.number


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a version: done when it has its lease, or a failure.

    Attributes:
        is_done: Whether it waits no more.
        failure: Why it has no lease.
        patience_s: On the clock: from then on another version that is loaded is better for it than to wait.
    """

    is_done: bool = False
    failure: OcrsvcError | None = None
    patience_s: float = math.inf


@dataclass(slots=True, eq=False)
class Entry:
    """One version here.

    Attributes:
        version: Which.
        state: See LoadState.
        loaded: Its engine, while there is one.
        leases: Requests and pages that read with it now.
        waiters: Those that wait for it.
        size_bytes: What it takes, or is expected to while it is being loaded; 0 while it is not loaded.
        used_s: When it was used last, on the clock; minus infinity is never.
        load_s: How long it took to load, the last time.
        began_s: When it was last begun to be loaded, on the clock.
        stays_until_s: Before, it makes no room for another version.
        is_retired: It is closed when its last lease has ended.
        is_replacing: It takes the place of a version that has left, whose requests all wait for it, however many.
        is_late: Some of those who wait for it would rather have another version by now.
        failure, failures: Why it could not be loaded the last time, and how many times in a row.
        retry_at_s: It is not tried again before, on the clock.
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
    def opened(self) -> LoadedVersion:
        """What is loaded; only asked by those who have a lease."""
        assert self.loaded is not None, "a lease keeps it loaded"
        return self.loaded

    @property
    def is_to_close(self) -> bool:
        """Whether it was retired, and nobody uses or awaits it any more."""
        return self.is_retired and self.state is LoadState.LOADED and not self.leases

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing of it is left."""
        return self.state is LoadState.CLOSED and not self.waiters

    def expected_s(self, now_s: float) -> float:
        """How long loading it will still take, by what it took the last time."""
        spent_s = now_s - self.began_s if self.state is LoadState.LOADING else 0.0
        return max(0.0, self.load_s - spent_s)

    def refusal(self, now_s: float) -> ModelUnavailable:
        """What requests are told after a failure, until it is tried again."""
        assert self.failure is not None, "only asked after a failure"
        error = ModelUnavailable(
            f"The model {self.version} cannot be loaded: {without_paths(self.failure.detail)}",
            without_paths(self.failure.remedy) or "Ask for another model, or send the request again later.",
            max(1, math.ceil(self.retry_at_s - now_s)),
        )
        error.__cause__ = self.failure
        return error

    def not_loaded(self) -> NotReady:
        """What a request is told that cannot wait for it."""
        return NotReady(
            f"The model {self.version} is still being loaded.",
            "Send the request again in a moment.",
            max(1, math.ceil(self.load_s)),
        )

    def status(self) -> LoadStatus:
        """For operators."""
        version, reason = self.version, "" if self.failure is None else str(self.failure)
        return LoadStatus(version.name, version.number, self.state, self.size_bytes, self.leases, reason)
