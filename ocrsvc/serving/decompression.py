"""Decompresses zlib data within a bound on its size and in memory. Knows no HTTP."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Final

from ocrsvc.serving.memory_budget import Share

_STEP_BYTES: Final = 1 << 16


class TooLarge(Exception):
    """It unpacks to more bytes than it may."""


class Damaged(Exception):
    """It is no such data, or not all of it."""


def decompress(data: bytes | memoryview, window_bits: int, most_bytes: int, share: Share | None = None) -> bytes:
    """What zlib data holds; each step is counted in the share, which keeps what it took, before it is made.

    zlib's window bits say which head and tail it has. Raises TooLarge, Damaged, and QueueFull where others hold the
    memory.
    """
    decompressor, out, size = zlib.decompressobj(window_bits), BytesIO(), 0
    # In slices, because zlib copies whatever it leaves of its input.
    rest, at, part = memoryview(data), 0, memoryview(b"")
    while not decompressor.eof:
        if not part:
            part, at = rest[at : at + _STEP_BYTES], at + _STEP_BYTES
        step = min(_STEP_BYTES, most_bytes + 1 - size)
        if share is not None:
            share.take(step)
        piece = _step(decompressor, part, step)
        if share is not None:
            share.give_back(step - len(piece))
        part, size = memoryview(decompressor.unconsumed_tail), size + len(piece)
        if size > most_bytes:
            raise TooLarge
        if not piece and not part and at >= len(rest) and not decompressor.eof:
            raise Damaged("it ends too early")
        out.write(piece)
    # Hands over what it holds, without a copy.
    return out.getvalue()


def _step(decompressor: zlib._Decompress, data: memoryview, most: int) -> bytes:
    try:
        return decompressor.decompress(data, most)
    except zlib.error as error:
        raise Damaged(str(error)) from error
