"""Decompresses zlib and gzip data, with limits on the output size and on memory. Knows nothing about HTTP."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Final

from ocrsvc.serving.memory_budget import Share

_STEP_BYTES: Final = 1 << 16


class TooLarge(Exception):
    """The data unpacks to more bytes than the limit."""


class Damaged(Exception):
    """The data is not valid zlib data, or is truncated."""


def decompress(data: bytes | memoryview, window_bits: int, max_bytes: int, share: Share | None = None) -> bytes:
    """Decompress zlib data (zlib's `window_bits`), taking memory from `share`. Raises TooLarge, Damaged, QueueFull."""
    decompressor, out, size = zlib.decompressobj(window_bits), BytesIO(), 0
    # Pass the input in slices, because zlib copies the part of its input that it has not consumed.
    rest, at, part = memoryview(data), 0, memoryview(b"")
    while not decompressor.eof:
        if not part:
            part, at = rest[at : at + _STEP_BYTES], at + _STEP_BYTES
        step = min(_STEP_BYTES, max_bytes + 1 - size)
        if share is not None:
            share.take(step)
        piece = _step(decompressor, part, step)
        if share is not None:
            share.give_back(step - len(piece))
        part, size = memoryview(decompressor.unconsumed_tail), size + len(piece)
        if size > max_bytes:
            raise TooLarge
        if not piece and not part and at >= len(rest) and not decompressor.eof:
            raise Damaged("it ends too early")
        out.write(piece)
    # BytesIO returns its buffer without a copy.
    return out.getvalue()


def _step(decompressor: zlib._Decompress, data: memoryview, max_bytes: int) -> bytes:
    try:
        return decompressor.decompress(data, max_bytes)
    except zlib.error as error:
        raise Damaged(str(error)) from error
