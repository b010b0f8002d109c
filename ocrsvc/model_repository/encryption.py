"""Encrypts and decrypts one file: AES-256-GCM in chunks, after the STREAM construction. The format: see _HEAD.

V. T. Hoang, R. Reyhanitabar, P. Rogaway and D. Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance" (CRYPTO 2015). Each file has a key of its own, which HKDF derives from the operator's key and a
random salt, so that nonces need be unique within a file only. The nonce of a chunk is a random prefix, the number of
the chunk, and whether it is the last one: none can be left out, exchanged or added. Every chunk authenticates the head
and the file's name, so that no file can stand for another one of the same model, or of another model.
"""

from __future__ import annotations

import importlib.util
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import BadModel
from ocrsvc.model_repository.model_key import ID_BYTES, KEY_BYTES, ModelKey

if TYPE_CHECKING:
    # The extra `encrypt`, which only those who have encrypted models install.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC: Final = b"OCRSVCE\x01"
SET_BYTES: Final = 16
CHUNK_BYTES: Final = 1 << 20
"""Of plain text in each chunk but the last."""

_TAG_BYTES: Final = 16
_SALT_BYTES: Final = 32
_PREFIX_BYTES: Final = 7
# Magic and version; id of the key; id of the set of files; salt; prefix of nonces; the chunks' size as a power of two.
_HEAD: Final = struct.Struct(f">8s{ID_BYTES}s{SET_BYTES}s{_SALT_BYTES}s{_PREFIX_BYTES}sB")
_NONCE_END: Final = struct.Struct(">I?")
_MOST_CHUNK_BITS: Final = 26
_USE: Final = "model files"
_INFO: Final = b"ocrsvc: one file"


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
    """What an encrypted file says of itself before it is decrypted; in hexadecimal digits.

    Attributes:
        key_id: Of the key that it wants.
        set_id: Of the files that were encrypted together with it.
    """

    key_id: str
    set_id: str


def new_set_id() -> str:
    """A random id for files that are encrypted together."""
    return secrets.token_hex(SET_BYTES)


def read_head(content: bytes) -> Head | None:
    """What an encrypted file says of itself; None of any other file."""
    if len(content) < _HEAD.size or not content.startswith(MAGIC):
        return None
    _, key_id, set_id, *_ = _HEAD.unpack_from(content)
    return Head(key_id.hex(), set_id.hex())


def encrypt(plain: bytes, name: str, set_id: str, key: ModelKey) -> bytes:
    """A file's content, encrypted.

    Args:
        plain: It.
        name: Of the file, relative to the folder of its model; it is part of what is authenticated.
        set_id: Of the files that are encrypted together, from `new_set_id`.
        key: The operator's.

    Raises:
        EncryptionMissing: The package cryptography is not installed.
    """
    salt, prefix = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_PREFIX_BYTES)
    bits = CHUNK_BYTES.bit_length() - 1
    head = _HEAD.pack(MAGIC, bytes.fromhex(key.id), bytes.fromhex(set_id), salt, prefix, bits)
    cipher, bound = _cipher(key, salt), head + name.encode()
    view = memoryview(plain)
    sealed = [
        cipher.encrypt(nonce, view[place : place + CHUNK_BYTES], bound)
        for place, nonce in _chunks(len(plain), CHUNK_BYTES, prefix)
    ]
    return b"".join([head, *sealed])


def decrypt(content: bytes, name: str, key: ModelKey) -> bytes:
    """The plain content of an encrypted file. Nothing of it is returned unless all of it is authentic.

    Args:
        content: Of the file.
        name, key: As for `encrypt`.

    Raises:
        CannotDecrypt: It is not encrypted, or with another key, or was damaged, cut, added to or exchanged.
        EncryptionMissing: The package cryptography is not installed.
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
    """Where each chunk begins, and its nonce; there is one at least."""
    places = range(0, max(1, length_bytes), chunk_bytes)
    for number, place in enumerate(places):
        yield place, prefix + _NONCE_END.pack(number, number == len(places) - 1)


def _cipher(key: ModelKey, salt: bytes) -> AESGCM:
    check_installed()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, _INFO).derive(key.derive(_USE)))


def check_installed() -> None:
    """Raises EncryptionMissing without the package cryptography; it is imported once a file is decrypted."""
    if not _is_installed():
        raise EncryptionMissing


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("cryptography") is not None
