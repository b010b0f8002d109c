"""Encrypted model files: keys, and AES-256-GCM over whole files. For the format see _HEAD.

HKDF derives a key per file from the operator's key and a random salt, so a constant nonce is safe. The header and the
file's name are authenticated too, so files cannot be swapped within a model or between models.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import importlib.util
import re
import secrets
import struct
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import BadModel

if TYPE_CHECKING:
    # From the optional extra `encrypt`.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ACCEPTED: Final = "32 bytes as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints"
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{43}=?")
_ID_LABEL: Final = b"ocrsvc: id of a key of models"
_LABELS: Final = b"ocrsvc: key of "
_MAGIC: Final = b"OCRSVCE\x02"
_SET_BYTES: Final = 16
_SALT_BYTES: Final = 32
# Magic and version; key id; set id; salt. The AES-GCM ciphertext with its tag follows.
_HEAD: Final = struct.Struct(f">8s{_ID_BYTES}s{_SET_BYTES}s{_SALT_BYTES}s")
_NONCE: Final = bytes(12)
_INFO: Final = b"ocrsvc: one file"


class ModelKey:
    """A 32-byte key that cannot leak by printing, comparing, pickling or serializing; `id` is a digest of it in hex."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.digest(secret, _ID_LABEL, "sha256")[:_ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")

    def expose(self) -> str:
        """The key as text, for a child process's socket and `ocrsvc models new-key`; never log it."""
        return base64.b64encode(self._secret).decode("ascii")

    def derive(self, use: str) -> bytes:
        """Derive a 32-byte key for one use; it reveals neither this key nor the keys of other uses."""
        return hmac.digest(self._secret, _LABELS + use.encode("ascii"), "sha256")


def parse_key(text: str) -> ModelKey:
    """Parse a key in a form of ACCEPTED, ignoring surrounding white space. Raises ValueError, without quoting it."""
    stripped = text.strip()
    if _HEXADECIMAL.fullmatch(stripped):
        return ModelKey(bytes.fromhex(stripped))
    if not _BASE64.fullmatch(stripped):
        raise ValueError("not a key")
    altchars = b"-_" if "-" in stripped or "_" in stripped else b"+/"
    try:
        return ModelKey(base64.b64decode(f"{stripped[:43]}=", altchars=altchars, validate=True))
    except binascii.Error:
        raise ValueError("not a key") from None


def new_key() -> ModelKey:
    """A random key."""
    return ModelKey(secrets.token_bytes(_KEY_BYTES))


class CannotDecrypt(Exception):
    """A file cannot be decrypted; the message completes a sentence that begins with its name."""


class EncryptionMissing(BadModel):
    """The package `cryptography` is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Encrypted models need the package `cryptography`, which is not installed.",
            "Install the extra: pip install '.[encrypt]'.",
        )


def new_set_id() -> str:
    """A random id for files that are encrypted together."""
    return secrets.token_hex(_SET_BYTES)


def read_head(content: bytes) -> tuple[str, str] | None:
    """The key id and set id of an encrypted file, in hexadecimal digits; None for any other file."""
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        return None
    _, key_id, set_id, _ = _HEAD.unpack_from(content)
    return key_id.hex(), set_id.hex()


def encrypt(plain: bytes, name: str, set_id: str, key: ModelKey) -> bytes:
    """Encrypt a file's content; its name in the model's folder is authenticated. Raises EncryptionMissing."""
    salt = secrets.token_bytes(_SALT_BYTES)
    head = _HEAD.pack(_MAGIC, bytes.fromhex(key.id), bytes.fromhex(set_id), salt)
    return head + _cipher(key, salt).encrypt(_NONCE, plain, head + name.encode())


def decrypt(content: bytes, name: str, key: ModelKey) -> bytes:
    """Decrypt a file's content once all of it is authenticated. Raises CannotDecrypt, EncryptionMissing."""
    head = read_head(content)
    if head is None:
        raise CannotDecrypt("is not encrypted")
    if head[0] != key.id:
        raise CannotDecrypt(f"is encrypted with the key {head[0]}, but the given key is {key.id}")
    cipher, bound = _cipher(key, content[_HEAD.size - _SALT_BYTES : _HEAD.size]), content[: _HEAD.size] + name.encode()
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(_NONCE, memoryview(content)[_HEAD.size :], bound)
    except InvalidTag:
        raise CannotDecrypt("is damaged, or is not the file that was encrypted under this name") from None


def _cipher(key: ModelKey, salt: bytes) -> AESGCM:
    check_installed()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt, _INFO).derive(key.derive("model files")))


def check_installed() -> None:
    """Raises EncryptionMissing if the package cryptography is not installed, without importing it."""
    if importlib.util.find_spec("cryptography") is None:
        raise EncryptionMissing
