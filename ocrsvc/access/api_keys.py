"""API keys: what one may do and use, the secrets it is known by, and the JSON document a store keeps of it.

Times are Unix seconds. A page is an image or a document page in an answer, read by the engine or found in the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

import orjson

LOGGER: Final = logging.getLogger("ocrsvc.access")

Scope = Literal["read", "jobs", "operate"]
"""Read images and documents; submit jobs and fetch them; metrics and operators' routes."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

KeyPriority = Literal["interactive", "batch"]
"""As `ocrsvc.serving.work_queue.Priority`."""

# No key name contains a blank.
_IDENTITY_SEPARATOR: Final = " "


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the holder of a key may use, over all workers and machines that share the store; None is no limit.

    Attributes:
        requests_per_s: Mean rate; one second's worth may come at once, at least one request.
        concurrency: Requests admitted and not answered yet.
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


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One named API key, without its secret.

    Attributes:
        name: By which operators know it and usage is counted.
        adapters: The wire formats it is for, `api` for the native API; None is all.
        priority: The highest priority its requests may have.
        may_cache: Whether its pages may be stored in the result cache and answered from it.
        expires_at: None is never.
        revoked_at: None while it is not revoked.
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
        """Unique, also among keys that are added under the same name later; begins with the name."""
        return f"{self.name}{_IDENTITY_SEPARATOR}{self.created_at:.6f}"

    def is_valid(self, now_s: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now_s < self.expires_at)


def name_in(identity: str) -> str:
    """The name of the key with this identity."""
    return identity.partition(_IDENTITY_SEPARATOR)[0]


def caller_of(entry: KeyEntry) -> str:
    """The caller name under which all requests of a key count; no network address looks like this."""
    return f"key {entry.name}"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What is kept of a secret text; a key has two for a while after a rotation.

    Attributes:
        id: The public part of the text.
        digest: SHA-256 of the whole text.
        expires_at: Its own end, beside the key's; None is never.
    """

    id: str
    digest: bytes
    expires_at: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now_s < self.expires_at


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as the store has it: its entry, and the secrets that are accepted for it.

    Attributes:
        document: What was read from the store; a change is refused unless it is still there. None for a new key.
    """

    entry: KeyEntry
    secrets: tuple[KeySecret, ...]
    document: str | None = field(default=None, compare=False, repr=False)


def state_of(entry: KeyEntry, now_s: float) -> Literal["valid", "expired", "revoked"]:
    """Whether a key is accepted now, and why not."""
    if entry.revoked_at is not None:
        return "revoked"
    return "valid" if entry.is_valid(now_s) else "expired"


def entry_to_dict(entry: KeyEntry) -> dict[str, Any]:
    """The members of an entry, ready to become JSON."""
    adapters = None if entry.adapters is None else sorted(entry.adapters)
    return asdict(entry) | {"scopes": sorted(entry.scopes), "adapters": adapters}


def write_key(key: StoredKey) -> str:
    """The document of a key."""
    kept = [{"id": one.id, "sha256": one.digest.hex(), "expires_at": one.expires_at} for one in key.secrets]
    return orjson.dumps({"entry": entry_to_dict(key.entry), "secrets": kept}).decode()


def read_keys(documents: Iterable[str | bytes]) -> list[StoredKey]:
    """The keys in these documents; an unreadable one, as of a later version, is logged and admits no request."""
    found = []
    for document in documents:
        try:
            found.append(_read_key(document.decode() if isinstance(document, bytes) else document))
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.error("Skipped an API key that cannot be read: %s: %s", type(error).__name__, error)
    return found


def _read_key(document: str) -> StoredKey:
    value = orjson.loads(document)
    members = value["entry"]
    adapters = members["adapters"]
    members["scopes"] = frozenset(members["scopes"])
    members["adapters"] = None if adapters is None else frozenset(adapters)
    members["limits"] = KeyLimits(**members["limits"])
    kept = (KeySecret(one["id"], bytes.fromhex(one["sha256"]), one["expires_at"]) for one in value["secrets"])
    return StoredKey(KeyEntry(**members), tuple(kept), document)
