"""What LoadedModels knows of one version: its state, who uses it and who waits for it. Guarded by its lock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from ocrsvc.errors import ModelUnavailable, NotReady, OcrsvcError
from ocrsvc.model_repository.reasons import without_paths
from ocrsvc.model_repository.version import ModelVersion
from ocrsvc.model_serving.loaded_version import LoadedVersion


class State(Enum):
    """Where a version is: requests read with it only while it is LOADED, or as long as they have a lease."""

    CLOSED = "closed"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One version as an operator sees it.

    Attributes:
        name, number, digest: Which.
        state: See State.
        size_bytes: What it takes, or is expected to while it is being loaded; 0 while it is not loaded.
        leases: Requests and pages that read with it now.
        is_pinned: It stays loaded.
        load_s: How long it took to load, the last time.
        used_s: When it was used last, on the clock; minus infinity is never.
        reason: Why it could not be loaded the last time; empty otherwise.
    """

    name: str
    number: int
    digest: str
    state: State
    size_bytes: int
    leases: int
    is_pinned: bool
    load_s: float
    used_s: float
    reason: str = ""

    @property
    def order(self) -> tuple[str, int]:
        """What they are sorted by."""
        return self.name, self.number


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a version: done when it has its lease, or a failure."""

    is_done: bool = False
    failure: OcrsvcError | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """See LoadedModel; `waiters` wait for it, and after a failure it is not tried again before `retry_at_s`.

    Before `stays_until_s` it makes no room for another version.
    """

    version: ModelVersion
    state: State = State.CLOSED
    loaded: LoadedVersion | None = None
    leases: int = 0
    waiters: list[Waiter] = field(default_factory=list)
    size_bytes: int = 0
    used_s: float = -math.inf
    load_s: float = 0.0
    stays_until_s: float = -math.inf
    is_pinned: bool = False
    is_retired: bool = False
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
        return self.is_retired and self.state is State.LOADED and not self.leases

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing of it is left."""
        return self.state is State.CLOSED and not self.waiters

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

    def status(self) -> LoadedModel:
        """For operators."""
        version, reason = self.version, "" if self.failure is None else str(self.failure)
        return LoadedModel(
            *(version.name, version.number, version.digest, self.state, self.size_bytes, self.leases),
            *(self.is_pinned, self.load_s, self.used_s, reason),
        )
