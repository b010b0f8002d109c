"""Reads the headers of BMP, binary PNM and WebP files, and decodes their pixels."""

import re
import struct
from functools import partial

import cv2
import numpy as np

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, bands, broken, decode_with_opencv
from ocrsvc.imaging.codecs.tiff_directories import read_orientation
from ocrsvc.results import Check

BMP_HEADER_AT = 14
OS2_HEADER_BYTES = 12
WEBP_CHUNKS_AT = 12
MAX_CHUNKS = 10_000
SIDE_MASK = 0x3FFF  # width and height of a WebP frame have 14 bits
GAP = rb"(?:[ \t\r\n]|#[^\r\n]*[\r\n])+"
NUMBER = rb"(\d{1,10})"
BITMAP = re.compile(rb"P4" + GAP + NUMBER + GAP + NUMBER + rb"\s")
LEVELS = re.compile(rb"P[56]" + GAP + NUMBER + GAP + NUMBER + GAP + NUMBER + rb"\s")
PNM_HEADER_BYTES = 4096
MAX_BYTE, MAX_LEVEL = 255, 65_535


def open_bmp(raw: bytes) -> EncodedImage:
    """Read the size; a negative height means that rows are stored from the top. Raises BrokenImage."""
    try:
        (header_bytes,) = struct.unpack_from("<I", raw, BMP_HEADER_AT)
        sides = "<HH" if header_bytes == OS2_HEADER_BYTES else "<ii"
        width, height = struct.unpack_from(sides, raw, BMP_HEADER_AT + 4)
    except struct.error as cause:
        raise broken("BMP", "ends inside its header") from cause
    return EncodedImage("bmp", max(width, 0), abs(height), partial(_unchanged, raw, "BMP"), bytes_per_pixel=(8, 8))


def _unchanged(raw: bytes, name: str, _gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
    return decode_with_opencv(raw, cv2.IMREAD_UNCHANGED, name)


def open_webp(raw: bytes) -> EncodedImage:
    """Read the size of the canvas and the EXIF chunk; decodes an animation's first frame. Raises BrokenImage."""
    width, height = _webp_size(raw)
    orientation = read_orientation(_webp_exif(raw)) if raw[12:16] == b"VP8X" else 1
    # Memory in bytes per pixel. For lossless files, libwebp has a buffer of four channels in addition to the result's.
    need = 6 if raw[12:16] == b"VP8 " else 8
    read = partial(_unchanged, raw, "WebP")
    return EncodedImage("webp", width, height, read, orientation, bytes_per_pixel=(need, need))


def _webp_size(raw: bytes) -> tuple[int, int]:
    kind = raw[12:16]
    if kind == b"VP8X" and len(raw) >= 30:
        return _little(raw, 24, 3) + 1, _little(raw, 27, 3) + 1
    if kind == b"VP8L" and len(raw) >= 25 and raw[20] == 0x2F:
        bits = _little(raw, 21, 4)
        return (bits & SIDE_MASK) + 1, (bits >> 14 & SIDE_MASK) + 1
    if kind == b"VP8 " and len(raw) >= 30 and raw[23:26] == b"\x9d\x01\x2a":
        return _little(raw, 26, 2) & SIDE_MASK, _little(raw, 28, 2) & SIDE_MASK
    raise broken("WebP", "does not declare its size")


def _webp_exif(raw: bytes) -> bytes:
    position = WEBP_CHUNKS_AT
    for _ in range(MAX_CHUNKS):
        body, size = position + 8, _little(raw, position + 4, 4)
        if raw[position : position + 4] == b"EXIF" or position >= len(raw):
            return raw[body : body + size]
        position = body + size + size % 2
    return b""


def _little(raw: bytes, start: int, size: int) -> int:
    return int.from_bytes(raw[start : start + size], "little")


def open_pnm(raw: bytes) -> EncodedImage:
    """Read the header: P4 (1 bit, 1 is black), P5 (gray) or P6 (RGB), levels up to 65535. Raises BrokenImage."""
    bitmap = raw.startswith(b"P4")
    match = (BITMAP if bitmap else LEVELS).match(raw[:PNM_HEADER_BYTES])
    width, height, top = ([*map(int, match.groups()), 1][:3]) if match else (0, 0, 0)
    if match is None or not 0 < top <= MAX_LEVEL:
        raise broken("PNM", "has no readable header")
    channels, start = (3 if raw.startswith(b"P6") else 1), match.end()

    def read(_gray: bool, _check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        if not bitmap:
            return _read_levels(raw, start, (height, width, channels), top)
        row_bytes = (width + 7) // 8
        packed = _take(raw, start, row_bytes * height, np.dtype(np.uint8)).reshape(height, row_bytes)
        bits = np.unpackbits(packed, axis=1, count=width)
        # In PBM 1 is black: 0 wraps to 255 (white), 1 becomes 0. In place, to save memory.
        bits -= 1
        return bits

    sample_bytes = 2 if top > MAX_BYTE else 1
    need = (channels * sample_bytes + 1, channels * (sample_bytes + 1))
    return EncodedImage("pnm", width, height, read, gray=channels == 1, bytes_per_pixel=need)


def _read_levels(raw: bytes, start: int, shape: tuple[int, int, int], top: int) -> Samples:
    full, stored, kind = (MAX_LEVEL, ">u2", np.uint16) if top > MAX_BYTE else (MAX_BYTE, "u1", np.uint8)
    levels = _take(raw, start, int(np.prod(shape)), np.dtype(stored)).reshape(shape)
    scaled = np.empty(shape, kind)
    for rows in bands(*shape[:2]):
        # Multiply as 32 bits: 65535 x 65535 does not fit into 16.
        scaled[rows] = np.minimum(levels[rows], top) * np.uint32(full) // np.uint32(top)
    return scaled[..., 0] if shape[2] == 1 else scaled[..., ::-1]


def _take(raw: bytes, start: int, count: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint16]) -> Samples:
    if len(raw) - start < count * dtype.itemsize:
        raise broken("PNM", f"is cut off: it has {len(raw) - start} bytes of the {count * dtype.itemsize} it declares")
    return np.frombuffer(raw, dtype, count, start)
