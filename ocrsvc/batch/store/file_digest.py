"""Reads files of a store a piece at a time, and takes their size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from ocrsvc.batch.store.contract import Store

_PIECE_BYTES: Final = 4 * 1024 * 1024


def pieces_of(store: Store, name: str) -> Iterator[bytes]:
    """The bytes of a file, piece by piece; a read behind its end, which may be a request, is spared where it can be.

    Raises FileNotFoundError and OSError.
    """
    offset, piece = 0, bytes(_PIECE_BYTES)
    while len(piece) == _PIECE_BYTES:
        piece = store.read(name, offset, _PIECE_BYTES)
        yield piece
        offset += len(piece)


def size_and_digest(store: Store, name: str) -> tuple[int, str]:
    """The size of a file in bytes, and its SHA-256 in hexadecimal. Raises FileNotFoundError and OSError."""
    size, digest = 0, hashlib.sha256()
    for piece in pieces_of(store, name):
        size += len(piece)
        digest.update(piece)
    return size, digest.hexdigest()


def check_file(store: Store, name: str, size: int, digest: str) -> str | None:
    """A sentence about a file that is not what was written; None where it is. Raises OSError.

    Args:
        store, name: Where it is.
        size: Bytes that were written.
        digest: The beginning of their SHA-256 in hexadecimal, or all of it.
    """
    try:
        found, hashed = size_and_digest(store, name)
    except FileNotFoundError:
        return f"{name} is not there."
    if found == size and hashed.startswith(digest):
        return None
    return f"{name} is not what was written: it has {found} bytes, and {size} were written."
