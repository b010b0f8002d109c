"""Frames of a ledger's log: a length, a checksum, a kind and what it says; a torn end is recognised and left out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

_HEAD: Final = struct.Struct("<IIB")
_COVERED: Final = struct.Struct("<IB")
HEAD_BYTES: Final = _HEAD.size
"""What a frame takes beside its payload."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""What one frame may say; more is a damaged length."""


def to_frame(kind: int, payload: bytes) -> bytes:
    """One frame. The checksum (CRC-32, as zlib's) covers length, kind and payload; that of zeros is not zero."""
    return _HEAD.pack(len(payload), _checksum(kind, payload), kind) + payload


def read_frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, payload and end of each whole frame, up to the first that is torn or damaged.

    Args:
        data: A log from a frame's beginning.
    """
    begin = 0
    while begin + _HEAD.size <= len(data):
        size, checksum, kind = _HEAD.unpack_from(data, begin)
        end = begin + _HEAD.size + size
        payload = data[begin + _HEAD.size : end]
        if size > MOST_BYTES or len(payload) < size or _checksum(kind, payload) != checksum:
            return
        yield kind, payload, end
        begin = end


def _checksum(kind: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_COVERED.pack(len(payload), kind)))
