"""The key that models are encrypted with: 32 bytes, told apart from others by an id that says nothing of it."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from typing import Final

KEY_BYTES: Final = 32
ID_BYTES: Final = 8
ACCEPTED: Final = "32 bytes as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints"

_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{43}=?")
_ID_LABEL: Final = b"ocrsvc: id of a key of models"
_LABELS: Final = b"ocrsvc: key of "


class ModelKey:
    """A key. It is shown by its id, is never equal to another object, and cannot be pickled or made JSON.

    No dataclass: what writes one down by its fields must not find the secret among them.

    Attributes:
        id: 16 hexadecimal digits, a digest of the key under a label of its own.

    Args:
        secret: KEY_BYTES bytes.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.digest(secret, _ID_LABEL, "sha256")[:ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def expose(self) -> str:
        """The key as text, for the connection to a child process, and for `ocrsvc models new-key`; never for a log."""
        return base64.b64encode(self._secret).decode("ascii")

    def derive(self, use: str) -> bytes:
        """A key of KEY_BYTES for one use, from which neither this one nor that of another use follows."""
        return hmac.digest(self._secret, _LABELS + use.encode("ascii"), "sha256")


def parse_key(text: str) -> ModelKey:
    """A key as ACCEPTED says, with or without white space around it. Raises ValueError, which does not quote it."""
    stripped = text.strip()
    if _HEXADECIMAL.fullmatch(stripped):
        return ModelKey(bytes.fromhex(stripped))
    if not _BASE64.fullmatch(stripped):
        raise ValueError("no key")
    try:
        return ModelKey(base64.b64decode(f"{stripped[:43]}=", altchars=_altchars(stripped), validate=True))
    except binascii.Error:
        raise ValueError("no key") from None


def new_key() -> ModelKey:
    """A random key."""
    return ModelKey(secrets.token_bytes(KEY_BYTES))


def _altchars(text: str) -> bytes:
    return b"-_" if "-" in text or "_" in text else b"+/"
