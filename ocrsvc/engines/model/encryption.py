"""Encrypted model files: the key, and AES-256-GCM in chunks after the STREAM construction. The format: see _HEAD.

V. T. Hoang, R. Reyhanitabar, P. Rogaway and D. Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance" (CRYPTO 2015). Each file has a key of its own, which HKDF derives from the operator's key and a
random salt, so that nonces need be unique within a file only. The nonce of a chunk is a random prefix, the number of
the chunk, and whether it is the last one: none can be left out, exchanged or added. Every chunk authenticates the head
and the file's name, so that no file can stand for another one of the same model, or of another model.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import importlib.util
import re
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import BadModel

if TYPE_CHECKING:
    # The extra `encrypt`, which only those who have encrypted models install.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ACCEPTED: Final = "32 bytes as 64 hexadecimal digits or in base64, such as `ocrsvc models new-key` prints"
CHUNK_BYTES: Final = 1 << 20  # plain text in each chunk but the last
_KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{43}=?")
_ID_LABEL: Final = b"ocrsvc: id of a key of models"
_LABELS: Final = b"ocrsvc: key of "

_MAGIC: Final = b"OCRSVCE\x01"
_SET_BYTES: Final = 16
_TAG_BYTES: Final = 16
_SALT_BYTES: Final = 32
_PREFIX_BYTES: Final = 7
# Magic and version; id of the key; id of the set of files; salt; prefix of nonces; the chunks' size as a power of two.
_HEAD: Final = struct.Struct(f">8s{_ID_BYTES}s{_SET_BYTES}s{_SALT_BYTES}s{_PREFIX_BYTES}sB")
_NONCE_END: Final = struct.Struct(">I?")
_MOST_CHUNK_BITS: Final = 26
_INFO: Final = b"ocrsvc: one file"


class ModelKey:
    """A key of 32 bytes. It is shown by its id, is never equal to another object, and cannot be pickled or made JSON.

    No dataclass: what writes one down by its fields must not find the secret among them. `id` is 16 hexadecimal digits,
    a digest of the key under a label of its own.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.digest(secret, _ID_LABEL, "sha256")[:_ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def expose(self) -> str:
        """The key as text, for the connection to a child process, and for `ocrsvc models new-key`; never for a log."""
        return base64.b64encode(self._secret).decode("ascii")

    def derive(self, use: str) -> bytes:
        """A key of 32 bytes for one use, from which neither this one nor that of another use follows."""
        return hmac.digest(self._secret, _LABELS + use.encode("ascii"), "sha256")


def parse_key(text: str) -> ModelKey:
    """A key as ACCEPTED says, with or without white space around it. Raises ValueError, which does not quote it."""
    stripped = text.strip()
    if _HEXADECIMAL.fullmatch(stripped):
        return ModelKey(bytes.fromhex(stripped))
    if not _BASE64.fullmatch(stripped):
        raise ValueError("no key")
    altchars = b"-_" if "-" in stripped or "_" in stripped else b"+/"
    try:
        return ModelKey(base64.b64decode(f"{stripped[:43]}=", altchars=altchars, validate=True))
    except binascii.Error:
        raise ValueError("no key") from None


def new_key() -> ModelKey:
    """A random key."""
    return ModelKey(secrets.token_bytes(_KEY_BYTES))


class CannotDecrypt(Exception):
    """Why a file cannot be decrypted, as the end of a sentence that begins with its name."""


class EncryptionMissing(BadModel):
    """The package `cryptography` is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Encrypted models need the package `cryptography`, which is not installed.",
            "Install ocrsvc with the extra encrypt: pip install 'ocrsvc[encrypt]'.",
        )


@dataclass(frozen=True, slots=True)
class Head:
    """Ids of an encrypted file's key and of the files it was encrypted with, in hexadecimal digits."""

    key_id: str
    set_id: str


def new_set_id() -> str:
    """A random id for files that are encrypted together."""
    return secrets.token_hex(_SET_BYTES)


def read_head(content: bytes) -> Head | None:
    """The head of an encrypted file; None of any other file."""
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        return None
    _, key_id, set_id, *_ = _HEAD.unpack_from(content)
    return Head(key_id.hex(), set_id.hex())


def encrypt(plain: bytes, name: str, set_id: str, key: ModelKey) -> bytes:
    """A file's content, encrypted; its name in the model's folder is authenticated. Raises EncryptionMissing."""
    salt, prefix = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_PREFIX_BYTES)
    bits = CHUNK_BYTES.bit_length() - 1
    head = _HEAD.pack(_MAGIC, bytes.fromhex(key.id), bytes.fromhex(set_id), salt, prefix, bits)
    cipher, bound = _cipher(key, salt), head + name.encode()
    view = memoryview(plain)
    sealed = [
        cipher.encrypt(nonce, view[place : place + CHUNK_BYTES], bound)
        for place, nonce in _chunks(len(plain), CHUNK_BYTES, prefix)
    ]
    return b"".join([head, *sealed])


def decrypt(content: bytes, name: str, key: ModelKey) -> bytes:
    """The plain content of an encrypted file; nothing of it unless all of it is authentic.

    Raises CannotDecrypt, EncryptionMissing.
    """
    head = read_head(content)
    if head is None:
        raise CannotDecrypt("is not encrypted")
    if head.key_id != key.id:
        raise CannotDecrypt(f"is encrypted with the key {head.key_id}, and the one given is {key.id}")
    *_, salt, prefix, bits = _HEAD.unpack_from(content)
    if bits > _MOST_CHUNK_BITS:
        raise CannotDecrypt("is damaged")
    return b"".join(_decrypted(content, content[: _HEAD.size] + name.encode(), _cipher(key, salt), prefix, 1 << bits))


def _decrypted(content: bytes, bound: bytes, cipher: AESGCM, prefix: bytes, chunk_bytes: int) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag

    view, whole_bytes = memoryview(content)[_HEAD.size :], chunk_bytes + _TAG_BYTES
    for place, nonce in _chunks(len(view), whole_bytes, prefix):
        try:
            yield cipher.decrypt(nonce, view[place : place + whole_bytes], bound)
        except InvalidTag:
            raise CannotDecrypt("was damaged, or is not the file that was encrypted under this name") from None


def _chunks(length_bytes: int, chunk_bytes: int, prefix: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and nonce of each chunk; there is one at least."""
    places = range(0, max(1, length_bytes), chunk_bytes)
    for number, place in enumerate(places):
        yield place, prefix + _NONCE_END.pack(number, number == len(places) - 1)


def _cipher(key: ModelKey, salt: bytes) -> AESGCM:
    check_installed()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt, _INFO).derive(key.derive("model files")))


def check_installed() -> None:
    """Raises EncryptionMissing without the package cryptography, which is imported once a file is decrypted."""
    if not _is_installed():
        raise EncryptionMissing


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("cryptography") is not None
