"""Encrypted model files: keys, and AES-256-GCM over whole files. _HEAD defines the file's header.

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
    # Part of the optional extra `encrypt`, so it may be missing.
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
# Magic number and version; key id; set id; salt. The ciphertext follows, with AES-GCM's authentication tag.
_HEAD: Final = struct.Struct(f">8s{_ID_BYTES}s{_SET_BYTES}s{_SALT_BYTES}s")
_NONCE: Final = bytes(12)
_INFO: Final = b"ocrsvc: one file"


class ModelKey:
    """A 32-byte key that printing, pickling or serializing cannot reveal; `id` is a digest of it in hexadecimal."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.digest(secret, _ID_LABEL, "sha256")[:_ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")

    def expose(self) -> str:
        """The key as text, to send it to a child process and to print it in `ocrsvc models new-key`; never log it."""
        return base64.b64encode(self._secret).decode("ascii")

    def derive(self, use: str) -> bytes:
        """Derive a 32-byte key for one use; from it, neither this key nor keys for other uses can be computed."""
        return hmac.digest(self._secret, _LABELS + use.encode("ascii"), "sha256")


def parse_key(text: str) -> ModelKey:
    """Parse a key in one of the forms in ACCEPTED, with optional white space around it. Raises ValueError."""
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
    """Make a random key."""
    return ModelKey(secrets.token_bytes(_KEY_BYTES))


class CannotDecrypt(Exception):
    """A file cannot be decrypted; the file's name and this message together form a sentence."""


class EncryptionMissing(BadModel):
    """The package `cryptography` is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Encrypted models need the package `cryptography`, which is not installed.",
            "Install the extra: pip install '.[encrypt]'.",
        )


def new_set_id() -> str:
    """Make a random id for a set of files that are encrypted together."""
    return secrets.token_hex(_SET_BYTES)


def read_head(content: bytes) -> tuple[str, str] | None:
    """The key id and set id of an encrypted file, in hexadecimal; None if the file is not encrypted."""
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        return None
    _, key_id, set_id, _ = _HEAD.unpack_from(content)
    return key_id.hex(), set_id.hex()


def encrypt(plain: bytes, name: str, set_id: str, key: ModelKey) -> bytes:
    """Encrypt a file's content and bind it to its name in the model's folder. Raises EncryptionMissing."""
    salt = secrets.token_bytes(_SALT_BYTES)
    head = _HEAD.pack(_MAGIC, bytes.fromhex(key.id), bytes.fromhex(set_id), salt)
    return head + _cipher(key, salt).encrypt(_NONCE, plain, head + name.encode())


def decrypt(content: bytes, name: str, key: ModelKey) -> bytes:
    """Decrypt a file's content if all of it is authentic. Raises CannotDecrypt, EncryptionMissing."""
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
    """Raise EncryptionMissing if the package cryptography is not installed; does not import it."""
    if importlib.util.find_spec("cryptography") is None:
        raise EncryptionMissing
