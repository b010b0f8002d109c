"""API keys: what one may do and use, the secret texts it is known by, and the JSON document a store keeps of it.

Times are Unix seconds. A page is an image or a document page in an answer, read by the engine or found in the cache.

A secret text is `ocr_`, twelve hexadecimal digits by which the key is found, `_`, and 32 random bytes in base64url.
256 random bits cannot be guessed, so one SHA-256 protects them in a stolen store as well as a slow hash would.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, get_args

import orjson
from werkzeug.datastructures import Authorization

LOGGER: Final = logging.getLogger("ocrsvc.access")

Scope = Literal["read", "jobs", "operate"]
"""Read images and documents; submit jobs and fetch them; metrics and operators' routes."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

KeyPriority = Literal["interactive", "batch"]
"""As `ocrsvc.serving.work_queue.Priority`."""

LONGEST: Final = 256
"""Characters of the longest text that can be a key; a longer one is truncated and so matches none."""

_PREFIX: Final = "ocr_"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_ID: Final = slice(len(_PREFIX), len(_PREFIX) + 2 * _ID_BYTES)
# Compared with where there is no key, so that an unknown id takes as long as a wrong secret.
_NO_DIGEST: Final = bytes(sha256().digest_size)
_SECRET_PART: Final = re.compile(rf"({_PREFIX}[0-9a-f]{{{2 * _ID_BYTES}}}_)[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits over all workers and machines that share the store; None is no limit.

    One second's requests may come at once, at least one. Days and months are those of UTC.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None
    pages_a_day: int | None = None
    pages_a_month: int | None = None


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One API key, without its secret, by a name without blanks under which its usage is counted.

    `adapters` are the wire formats it is for, `api` for the native API, None for all; `priority` is the highest of its
    requests; `may_cache` allows the result cache for its pages.
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
        """Unique, also among keys that are added under the same name later; begins with the name and a blank."""
        return f"{self.name} {self.created_at:.6f}"

    @property
    def caller(self) -> str:
        """The caller name under which all its requests count; no network address looks like this."""
        return f"key {self.name}"

    def state(self, now_s: float) -> Literal["valid", "expired", "revoked"]:
        """Whether it is accepted now, and why not."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now_s < self.expires_at else "expired"

    def is_valid(self, now_s: float) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.state(now_s) == "valid"

    def as_dict(self) -> dict[str, Any]:
        """Its members, ready to become JSON."""
        adapters = None if self.adapters is None else sorted(self.adapters)
        return asdict(self) | {"scopes": sorted(self.scopes), "adapters": adapters}


@dataclass(frozen=True, slots=True)
class KeySecret:
    """What is kept of a secret text: its public part, SHA-256 of the whole, and the end that a replaced one has."""

    id: str
    digest: bytes
    expires_at: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now_s < self.expires_at


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key with the secrets that are accepted for it; a change is refused unless its `document` is still stored."""

    entry: KeyEntry
    secrets: tuple[KeySecret, ...]
    document: str | None = field(default=None, compare=False, repr=False)


def write_key(key: StoredKey) -> str:
    """The document of a key."""
    kept = [{"id": one.id, "sha256": one.digest.hex(), "expires_at": one.expires_at} for one in key.secrets]
    return orjson.dumps({"entry": key.entry.as_dict(), "secrets": kept}).decode()


def read_keys(documents: Iterable[str | bytes]) -> list[StoredKey]:
    """The keys in these documents, by name; an unreadable one, as of a later version, is logged and left out."""
    found = []
    for document in documents:
        try:
            found.append(_read_key(document.decode() if isinstance(document, bytes) else document))
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.error("Skipped an API key that cannot be read: %s: %s", type(error).__name__, error)
    return sorted(found, key=lambda key: key.entry.name)


def _read_key(document: str) -> StoredKey:
    value = orjson.loads(document)
    members = value["entry"]
    adapters = members["adapters"]
    members["scopes"] = frozenset(members["scopes"])
    members["adapters"] = None if adapters is None else frozenset(adapters)
    members["limits"] = KeyLimits(**members["limits"])
    kept = (KeySecret(one["id"], bytes.fromhex(one["sha256"]), one["expires_at"]) for one in value["secrets"])
    return StoredKey(KeyEntry(**members), tuple(kept), document)


def make_secret() -> tuple[str, KeySecret]:
    """A new secret text, which is stored nowhere, and what is kept of it."""
    found = secrets.token_hex(_ID_BYTES)
    text = f"{_PREFIX}{found}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return text, KeySecret(found, digest_of(text))


def id_of(text: str) -> str:
    """The public part of a secret text, whose form is not checked."""
    return text[_ID]


def digest_of(text: str) -> bytes:
    """SHA-256 of a secret text."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_same(text: str, secret: KeySecret | None) -> bool:
    """Whether the text has the kept digest; takes the same time whatever the answer is."""
    return hmac.compare_digest(digest_of(text), secret.digest if secret else _NO_DIGEST)


@dataclass(frozen=True, slots=True)
class Credential:
    """The key that a caller sends, or ""; `by_browser` by the Basic scheme, which browsers send whichever page asks."""

    secret: str = field(default="", repr=False)
    by_browser: bool = False


def credential_of(authorization: str, *others: str) -> Credential:
    """The key in `Authorization` (Bearer, or Basic with the key as password), else in the first other text if any."""
    sent = Authorization.from_header(authorization.strip())
    # As in `curl -u KEY:`, the user name where the password is empty.
    basic = sent is not None and sent.type == "basic" and (sent.password or sent.username)
    if sent is not None and (secret := basic or (sent.type == "bearer" and sent.token)):
        return Credential(secret.strip()[: LONGEST + 1], by_browser=bool(basic))
    return next((Credential(other.strip()[: LONGEST + 1]) for other in others if other.strip()), Credential())


def hide_secrets(record: logging.LogRecord) -> bool:
    """A filter of log lines: replaces the secret part of keys with …; gunicorn quotes requests that it cannot parse."""
    line = record.getMessage()
    if _PREFIX in line:
        record.msg, record.args = _SECRET_PART.sub(r"\1…", line), None
    return True
