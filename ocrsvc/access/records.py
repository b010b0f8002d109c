"""The records of API keys: who may do what, how much of it, and what was used. All frozen.

Times are Unix seconds. A page is an image or a page of a document that is answered, read by the engine or found in the
result cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

Scope = Literal["read", "jobs", "operate"]
"""Read images and documents; leave documents to be read later, and fetch them; metrics and operators' routes."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

KeyPriority = Literal["interactive", "batch"]
"""As `ocrsvc.serving.work_queue.Priority`."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the holder of a key may use, over all workers and machines that share the store; None is no limit.

    Attributes:
        requests_per_s: Requests a second in the mean; as many may come at once as come in a second, one at least.
        concurrency: Requests under way at once: admitted, and not answered yet.
        pages_a_day, pages_a_month: Pages answered, by the calendar of UTC.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None
    pages_a_day: int | None = None
    pages_a_month: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no limit at all."""
        return self == _NO_LIMITS

    @property
    def is_timeless(self) -> bool:
        """Whether no limit counts over time."""
        return self.requests_per_s is None and self.pages_a_day is None and self.pages_a_month is None


_NO_LIMITS: Final = KeyLimits()
# No name has a blank in it.
_BEFORE_MOMENT: Final = " "


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One named API key, without its secret.

    Attributes:
        name: By which operators know it; usage is counted by it.
        scopes: What it is for.
        adapters: The wire formats it is for, by their names in the registry, `api` for the native API; None is all.
        limits: How much of it.
        priority: The highest priority its requests may have.
        may_cache: Whether its pages may be kept in the result cache, and be answered from it.
        created_at: When it was added.
        expires_at: When it ends; None is never.
        revoked_at: When it was revoked; None if it was not.
    """

    name: str
    scopes: frozenset[Scope] = frozenset({"read"})
    adapters: frozenset[str] | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)
    priority: KeyPriority = "interactive"
    may_cache: bool = True
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None

    @property
    def identity(self) -> str:
        """What no other key has, nor one that is added under this name later; begins with the name."""
        return f"{self.name}{_BEFORE_MOMENT}{self.created_at:.6f}"

    def is_valid(self, now_s: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now_s < self.expires_at)


def name_in(identity: str) -> str:
    """The name of the key with this identity."""
    return identity.partition(_BEFORE_MOMENT)[0]


def caller_of(entry: KeyEntry) -> str:
    """Under which name the requests of a key count together; no address looks like this."""
    return f"key {entry.name}"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What is kept of a key's secret text; a key has two of them for a while after it was rotated.

    Attributes:
        id: The public part of the text, by which it is found.
        digest: SHA-256 of the whole text.
        expires_at: When it ends, besides the key's own end; None is never.
    """

    id: str
    digest: bytes
    expires_at: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Whether it has not ended."""
        return self.expires_at is None or now_s < self.expires_at


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as the store holds it: its entry, and the secrets that are accepted for it.

    Attributes:
        document: What was read from the store, and must still be there when the key is changed; None of a new key.
    """

    entry: KeyEntry
    secrets: tuple[KeySecret, ...]
    document: str | None = field(default=None, compare=False, repr=False)


class Need(NamedTuple):
    """What is to be reserved of a key.

    Attributes:
        requests: That may be under way.
        tokens: Requests that may begin, by its rate.
        pages: That may be counted.
    """

    requests: int = 0
    tokens: int = 0
    pages: int = 0

    @property
    def is_something(self) -> bool:
        """Whether it is not nothing."""
        return any(self)


class Hold(NamedTuple):
    """What one worker has reserved of a key: requests under way, and pages that are not counted in the store yet."""

    requests: int = 0
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used of one key.

    Attributes:
        requests: Under way now.
        reserved: Pages of these that are reserved and not counted yet.
        today, this_month: Pages counted.
        full_s: Seconds until the whole of `requests_per_s` is there again.
    """

    requests: int = 0
    reserved: int = 0
    today: int = 0
    this_month: int = 0
    full_s: float = 0.0
