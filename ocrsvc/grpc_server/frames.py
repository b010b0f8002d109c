"""Cuts what arrives on a connection into HTTP/2 frames.

Given several frames in one piece, h2 answers a connection error and ignores those behind it; given one frame at a time,
its caller can stop between two of them. h2 also holds a frame of any announced length until it is complete; here its
header is checked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9


class Frames:
    """Holds what came until a frame is complete. What is not HTTP/2 is cut somewhere.

    Args:
        check: Called with the type, the flags and the length of each frame once its head is there; what it raises
            comes out of `cut`.
    """

    def __init__(self, check: Callable[[int, int, int], object]) -> None:
        self._check = check
        self._data = bytearray()
        self._preface_bytes = _PREFACE_BYTES
        self._frame_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that came and were not cut off."""
        return len(self._data)

    @property
    def waiting(self) -> bool:
        """Whether `cut` has more to give."""
        held_bytes = len(self._data)
        if self._preface_bytes:
            return held_bytes > 0
        return held_bytes >= _HEAD_BYTES and held_bytes >= _HEAD_BYTES + self._length

    def feed(self, data: bytes) -> None:
        """What came."""
        self._data += data

    def cut(self) -> bytes:
        """The next frame, or as much of the preface as is there; nothing if the frame is not complete."""
        if self._preface_bytes:
            piece = self._take(min(self._preface_bytes, len(self._data)))
            self._preface_bytes -= len(piece)
            return piece
        if not self._frame_bytes and len(self._data) >= _HEAD_BYTES:
            self._frame_bytes = _HEAD_BYTES + self._length
            self._check(self._data[3], self._data[4], self._length)
        if not self._frame_bytes or len(self._data) < self._frame_bytes:
            return b""
        size, self._frame_bytes = self._frame_bytes, 0
        return self._take(size)

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._data = bytearray()
        self._frame_bytes = 0

    @property
    def _length(self) -> int:
        return int.from_bytes(self._data[:3])

    def _take(self, size: int) -> bytes:
        piece = bytes(self._data[:size])
        del self._data[:size]
        return piece
