"""Secret texts of API keys: made, found in a request's headers, compared, and kept out of logs.

A secret text is `ocr_`, twelve hexadecimal digits by which the key is found, `_`, and 32 random bytes in base64url.
256 random bits cannot be guessed, so one SHA-256 protects them in a stolen store as well as a slow hash would.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from werkzeug.datastructures import Authorization

from ocrsvc.access.api_keys import KeySecret

PREFIX: Final = "ocr_"

LONGEST: Final = 256
"""Characters of the longest text that can be a key; a longer one is truncated and so matches none."""

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_ID: Final = slice(len(PREFIX), len(PREFIX) + 2 * _ID_BYTES)
# Compared with where there is no key, so that an unknown id takes as long as a wrong secret.
_NO_DIGEST: Final = bytes(sha256().digest_size)
_SECRET_PART: Final = re.compile(rf"({PREFIX}[0-9a-f]{{{2 * _ID_BYTES}}}_)[A-Za-z0-9_-]+")


def make_secret() -> tuple[str, KeySecret]:
    """A new secret text, which is stored nowhere, and what is kept of it."""
    found = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}{found}_{secrets.token_urlsafe(_SECRET_BYTES)}"
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
    """What a caller sends as its key.

    Attributes:
        secret: As it was sent; empty where there is none. Never printed.
        by_browser: Whether it came by the Basic scheme, which a browser sends by itself whichever page asks.
    """

    secret: str = field(default="", repr=False)
    by_browser: bool = False


def credential_of(authorization: str, *others: str) -> Credential:
    """The key in the header `Authorization`, or else the first other text that is not empty.

    Args:
        authorization: Bearer, or Basic with the key as the password; other schemes are ignored.
        others: Values of other places, such as the header `X-API-Key`.
    """
    sent = Authorization.from_header(authorization.strip())
    # As in `curl -u KEY:`, the user name where the password is empty.
    basic = sent is not None and sent.type == "basic" and (sent.password or sent.username)
    if sent is not None and (secret := basic or (sent.type == "bearer" and sent.token)):
        return Credential(secret.strip()[: LONGEST + 1], by_browser=bool(basic))
    return next((Credential(other.strip()[: LONGEST + 1]) for other in others if other.strip()), Credential())


class SecretsHidden(logging.Filter):
    """Replaces the secret part of each key in a log line with …; gunicorn quotes requests that it cannot parse."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        line = record.getMessage()
        if PREFIX in line:
            record.msg, record.args = _SECRET_PART.sub(r"\1…", line), None
        return True


SECRETS_HIDDEN: Final = SecretsHidden()
"""The one instance: adding it to a logger again does nothing."""
