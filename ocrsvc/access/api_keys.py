"""API keys: permissions and limits, secrets, and the JSON document that a store keeps.

Times are Unix seconds. A page is an image or a document page in a response, read by the engine or found in the cache.

A secret is `ocr_`, the secret's id of twelve hexadecimal digits, `_`, and 32 random bytes in base64url. As 256 random
bits cannot be guessed, one SHA-256 protects them in a stolen store like a slow hash would.
"""

import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl

import orjson

LOGGER: Final = logging.getLogger("ocrsvc.access")

Scope = Literal["read", "jobs", "operate"]
"""What a key permits, in this order: images and documents; submitting and fetching jobs; metrics, operators' routes."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

KeyPriority = Literal["interactive", "batch"]
"""The values of `ocrsvc.serving.work_queue.Priority`, which this layer must not import."""

MAX_SECRET_CHARS: Final = 256
"""A longer secret is cut to one character more than this, which matches no key and is quick to hash."""

_PREFIX: Final = "ocr_"
# Authorization schemes before a key: `token` is that of AI Studio, which serves PaddleOCR-VL.
_TOKENS: Final = frozenset({"bearer", "token"})
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_ID: Final = slice(len(_PREFIX), len(_PREFIX) + 2 * _ID_BYTES)
# Compared with a secret whose id is unknown, so that this takes as long as for a wrong secret.
_NO_DIGEST: Final = bytes(sha256().digest_size)
# Secrets in URLs: any character may be percent-encoded. A match ends at the first character that secrets cannot have.
_PREFIX_IN_URL: Final = "".join(f"(?:{character}|%{ord(character):02x})" for character in _PREFIX)
_SECRET_PART: Final = re.compile(
    rf"({_PREFIX_IN_URL}(?:[0-9a-f]|%3[0-9]|%6[1-6]){{{2 * _ID_BYTES}}}(?:_|%5f))[a-z0-9_%-]+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits over all workers and machines that share the store; None means no limit.

    Bursts of up to one second's requests, and at least one request, are allowed. Days and months are in UTC.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None
    pages_a_day: int | None = None
    pages_a_month: int | None = None


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One API key without its secrets. Usage is counted by its name, which has no spaces.

    `adapters` are the wire formats that it may use (`api` is the native API), None for all; `priority` is the highest
    that its requests may have; `may_cache` allows the result cache for its pages.
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
        """Name, a space, and the creation time: differs from a later key of the same name."""
        return f"{self.name} {self.created_at:.6f}"

    @property
    def caller(self) -> str:
        """The caller name of the key's requests, which no network address can equal."""
        return f"key {self.name}"

    def state(self, now_s: float) -> Literal["valid", "expired", "revoked"]:
        """The key's state at a time."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now_s < self.expires_at else "expired"

    def is_valid(self, now_s: float) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.state(now_s) == "valid"

    def as_dict(self) -> dict[str, Any]:
        """The key as JSON values."""
        adapters = None if self.adapters is None else sorted(self.adapters)
        return asdict(self) | {"scopes": sorted(self.scopes), "adapters": adapters}


@dataclass(frozen=True, slots=True)
class KeySecret:
    """The stored data of a secret: its id, its SHA-256 and, once a newer secret replaces it, the time it expires."""

    id: str
    digest: bytes
    expires_at: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Whether the secret has not expired."""
        return self.expires_at is None or now_s < self.expires_at


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key with its accepted secrets; `document` is the JSON from which it was read (see `KeyStore.put`)."""

    entry: KeyEntry
    secrets: tuple[KeySecret, ...]
    document: str | None = field(default=None, compare=False, repr=False)


def write_key(key: StoredKey) -> str:
    """The JSON document of a key."""
    stored = [{"id": each.id, "sha256": each.digest.hex(), "expires_at": each.expires_at} for each in key.secrets]
    return orjson.dumps({"entry": key.entry.as_dict(), "secrets": stored}).decode()


def read_keys(documents: Iterable[str | bytes]) -> list[StoredKey]:
    """The keys in these documents, sorted by name; unreadable documents, such as of a later version, are logged."""
    keys = []
    for document in documents:
        try:
            keys.append(_read_key(document.decode() if isinstance(document, bytes) else document))
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.error("Skipped an API key that cannot be read: %s: %s", type(error).__name__, error)
    return sorted(keys, key=lambda key: key.entry.name)


def _read_key(document: str) -> StoredKey:
    value = orjson.loads(document)
    members = value["entry"]
    adapters = members["adapters"]
    members["scopes"] = frozenset(members["scopes"])
    members["adapters"] = None if adapters is None else frozenset(adapters)
    members["limits"] = KeyLimits(**members["limits"])
    stored = (KeySecret(each["id"], bytes.fromhex(each["sha256"]), each["expires_at"]) for each in value["secrets"])
    return StoredKey(KeyEntry(**members), tuple(stored), document)


def make_secret() -> tuple[str, KeySecret]:
    """Make a secret, which must not be stored, and the data that are stored instead."""
    secret_id = secrets.token_hex(_ID_BYTES)
    text = f"{_PREFIX}{secret_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return text, KeySecret(secret_id, digest_of(text))


def id_of(text: str) -> str:
    """The id in a secret; the secret's format is not checked."""
    return text[_ID]


def digest_of(text: str) -> bytes:
    """SHA-256 of a secret."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_same(text: str, secret: KeySecret | None) -> bool:
    """Whether the text has the stored digest, compared in constant time."""
    return hmac.compare_digest(digest_of(text), secret.digest if secret else _NO_DIGEST)


@dataclass(frozen=True, slots=True)
class Credential:
    """The secret that a caller sent, or "". `by_browser`: by the Basic scheme, which browsers send automatically."""

    secret: str = field(default="", repr=False)
    by_browser: bool = False


def no_value(_name: str) -> str:
    """Return "" for every form field, because the body was not read yet."""
    return ""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A request as a wire format's `credentials` function sees it (`AdapterEntry.credentials`).

    `header` and `field` return a header or a form field by its name, or "". The function is called before the body is
    read, and at `AdapterEntry.key_body_paths` again with its form fields. As the format may be unknown at the first
    call, a function that reads a common name, such as `key`, must check the path.
    """

    method: str
    path: str
    query: str
    header: Callable[[str], str]
    field: Callable[[str], str] = no_value

    def argument(self, name: str) -> str:
        """The first value of this name in the query, or ""."""
        return next((value for other, value in parse_qsl(self.query) if other == name), "")


CredentialsFunction = Callable[[KeyRequest], str]
"""Returns the API key from where the wire format puts it, or ""; it may run in the event loop, so it must not wait."""


def no_credentials(_request: KeyRequest) -> str:
    """The CredentialsFunction of wire formats that send the API key only in the usual headers."""
    return ""


def credential_of(authorization: str, *others: str) -> Credential:
    """The key in `Authorization` (Bearer, token, Basic with it as password), else the first non-blank of `others`."""
    # The arbiter imports this file but checks no key: werkzeug takes 2 MB.
    from werkzeug.datastructures import Authorization

    header = Authorization.from_header(authorization.strip())
    # The user name, as in `curl -u KEY:`, if the password is empty.
    basic = header is not None and header.type == "basic" and (header.password or header.username)
    if header is not None and (secret := basic or (header.type in _TOKENS and header.token)):
        return Credential(secret.strip()[: MAX_SECRET_CHARS + 1], by_browser=bool(basic))
    return next((Credential(other.strip()[: MAX_SECRET_CHARS + 1]) for other in others if other.strip()), Credential())


def hide_secrets(record: logging.LogRecord) -> bool:
    """Log filter: replace secrets with "…", because gunicorn logs queries, and requests that it cannot parse."""
    line, found = _SECRET_PART.subn(r"\1…", record.getMessage())
    if found:
        record.msg, record.args = line, None
    return True
