"""The secret text of an API key: how it is made, taken apart, and compared.

`ocr_`, twelve hexadecimal digits by which the key is found, `_`, and 32 random bytes in base64url. What is random in
256 bits cannot be guessed, so that one SHA-256 keeps it from a thief of the store as well as a slow hash would.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import Final

from ocrsvc.access.records import KeySecret

PREFIX: Final = "ocr_"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_ID: Final = slice(len(PREFIX), len(PREFIX) + 2 * _ID_BYTES)
# Compared with where there is no key, so that a wrong id takes as long as a wrong secret.
_NO_DIGEST: Final = bytes(sha256().digest_size)


def make_secret() -> tuple[str, KeySecret]:
    """A new secret text, which is stored nowhere, and what is kept of it."""
    found = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}{found}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return text, KeySecret(found, digest_of(text))


def id_of(text: str) -> str:
    """What is the public part if the text is a secret text; nothing else of its form is checked."""
    return text[_ID]


def digest_of(text: str) -> bytes:
    """What is kept of a secret text."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_same(text: str, secret: KeySecret | None) -> bool:
    """Whether the text is the one whose digest was kept; takes as long whatever the answer is."""
    return hmac.compare_digest(digest_of(text), secret.digest if secret else _NO_DIGEST)
