"""Reads the header of a WebP, and decodes its pixels; of an animation, the first frame."""

from __future__ import annotations

import cv2

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, broken, decode_with_opencv
from ocrsvc.imaging.codecs.exif import read_orientation

RIFF_HEADER_BYTES = 12
CHUNK_HEADER_BYTES = 8
MAX_CHUNKS = 10_000
SIDE_MASK = 0x3FFF
"""A frame's width and height have 14 bits."""


def open_webp(raw: bytes) -> EncodedImage:
    """Read the size of the canvas and the EXIF chunk. Raises BrokenImage."""
    width, height = _read_size(raw)
    orientation = read_orientation(_find_exif(raw)) if raw[12:16] == b"VP8X" else 1
    # A lossless file is decoded into four channels of libwebp's own first, and may have four itself.
    need = 6 if raw[12:16] == b"VP8 " else 8
    return EncodedImage(
        "webp",
        width,
        height,
        lambda _gray: decode_with_opencv(raw, cv2.IMREAD_UNCHANGED, "WebP"),
        orientation,
        bytes_per_pixel=(need, need),
    )


def _read_size(raw: bytes) -> tuple[int, int]:
    kind = raw[12:16]
    if kind == b"VP8X" and len(raw) >= 30:
        return _little(raw, 24, 3) + 1, _little(raw, 27, 3) + 1
    if kind == b"VP8L" and len(raw) >= 25 and raw[20] == 0x2F:
        bits = _little(raw, 21, 4)
        return (bits & SIDE_MASK) + 1, (bits >> 14 & SIDE_MASK) + 1
    if kind == b"VP8 " and len(raw) >= 30 and raw[23:26] == b"\x9d\x01\x2a":
        return _little(raw, 26, 2) & SIDE_MASK, _little(raw, 28, 2) & SIDE_MASK
    raise broken("WebP", "does not say how large it is")


def _find_exif(raw: bytes) -> bytes:
    position = RIFF_HEADER_BYTES
    for _ in range(MAX_CHUNKS):
        body = position + CHUNK_HEADER_BYTES
        size = _little(raw, position + 4, 4)
        if raw[position : position + 4] == b"EXIF" or position >= len(raw):
            return raw[body : body + size]
        position = body + size + size % 2
    return b""


def _little(raw: bytes, start: int, size: int) -> int:
    return int.from_bytes(raw[start : start + size], "little")
