"""Reads the header of a binary PBM, PGM or PPM file, and decodes its pixels."""

from __future__ import annotations

import re

import numpy as np

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken
from ocrsvc.imaging.codecs.pixel_depth import bands

GAP = rb"(?:[ \t\r\n]|#[^\r\n]*[\r\n])+"
NUMBER = rb"(\d{1,10})"
BITMAP = re.compile(rb"P4" + GAP + NUMBER + GAP + NUMBER + rb"\s")
LEVELS = re.compile(rb"P[56]" + GAP + NUMBER + GAP + NUMBER + GAP + NUMBER + rb"\s")
HEADER_BYTES = 4096
MAX_BYTE, MAX_LEVEL = 255, 65_535


def open_pnm(raw: bytes) -> EncodedImage:
    """Read the header: P4 (1 bit, 1 is black), P5 (gray) or P6 (RGB), levels up to 65535. Raises BrokenImage."""
    bitmap = raw.startswith(b"P4")
    match = (BITMAP if bitmap else LEVELS).match(raw[:HEADER_BYTES])
    width, height, top = ([*map(int, match.groups()), 1][:3]) if match else (0, 0, 0)
    if match is None or not 0 < top <= MAX_LEVEL:
        raise broken("PNM", "has no readable header")
    channels, start = (3 if raw.startswith(b"P6") else 1), match.end()

    def read(_gray: bool) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        if bitmap:
            return _read_bits(raw, start, width, height)
        return _read_levels(raw, start, (height, width, channels), top)

    sample_bytes = 2 if top > MAX_BYTE else 1
    need = (channels * sample_bytes + 1, channels * (sample_bytes + 1))
    return EncodedImage("pnm", width, height, read, gray=channels == 1, bytes_per_pixel=need)


def _read_bits(raw: bytes, start: int, width: int, height: int) -> Samples:
    row_bytes = (width + 7) // 8
    packed = _take(raw, start, row_bytes * height, np.dtype(np.uint8)).reshape(height, row_bytes)
    bits = np.unpackbits(packed, axis=1, count=width)
    # In place: 1 is black.
    bits -= 1
    return bits


def _read_levels(raw: bytes, start: int, shape: tuple[int, int, int], top: int) -> Samples:
    wide = top > MAX_BYTE
    height, width, channels = shape
    levels = _take(raw, start, height * width * channels, np.dtype(">u2" if wide else np.uint8)).reshape(shape)
    full = MAX_LEVEL if wide else MAX_BYTE
    scaled = np.empty(shape, np.uint16 if wide else np.uint8)
    for rows in bands(height, width):
        # Multiplied as 32 bits, so that 65535 times 65535 fits.
        scaled[rows] = np.minimum(levels[rows], top) * np.uint32(full) // np.uint32(top)
    return scaled[..., 0] if channels == 1 else scaled[..., ::-1]


def _take(raw: bytes, start: int, count: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint16]) -> Samples:
    if len(raw) - start < count * dtype.itemsize:
        raise broken("PNM", f"is cut off: it has {len(raw) - start} bytes of the {count * dtype.itemsize} it declares")
    return np.frombuffer(raw, dtype, count, start)
