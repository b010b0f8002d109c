"""Reads the header of a PNG, and decodes its pixels.

OpenCV is given the critical chunks only. What is left out (text, colour profile, EXIF, animation) can inflate to any
size, may be damaged, and makes libpng write warnings to stderr.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import cv2

from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken, decode_with_opencv
from ocrsvc.imaging.codecs.exif import read_orientation

MAGIC = b"\x89PNG\r\n\x1a\n"
IHDR = struct.Struct(">IIBBBBB")
FRAME_BYTES = 12
"""Length, type and checksum around a chunk's body."""
END_CHUNK = b"\0\0\0\0IEND\xaeB`\x82"
CRITICAL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
MAX_CHUNKS = 100_000
_INTERLACED = 28

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGB_ALPHA: (8, 16)}


@dataclass(slots=True)
class _Chunks:
    """Byte ranges of the critical chunks, and what the other chunks say."""

    ranges: list[tuple[int, int]]
    palette: bytes = b""
    exif: bytes = b""
    transparent: bool = False
    pixels: bool = False
    ended: bool = False


def open_png(raw: bytes) -> EncodedImage:
    """Read the header and list the chunks; nothing is inflated. Raises BrokenImage."""
    width, height, depth, kind = _read_ihdr(raw)
    chunks = _read_chunks(raw)
    if not chunks.pixels:
        raise broken("PNG", "holds no pixels: its IDAT chunk is missing")
    if kind == PALETTE and not chunks.palette:
        raise broken("PNG", "has no palette")

    def read(gray: bool) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
        return decode_with_opencv(_critical_only(raw, chunks), _flags(kind, chunks, gray=gray), "PNG")

    # With transparency all four channels are decoded before they are flattened.
    samples = 2 * 4 * (2 if depth == 16 else 1)
    need = (samples, samples) if _may_be_transparent(kind, chunks) else (2, 6)
    colourless = kind in (GRAY, GRAY_ALPHA) or (kind == PALETTE and _is_gray(chunks.palette))
    return EncodedImage(
        "png",
        width,
        height,
        read,
        read_orientation(chunks.exif),
        colourless,
        need,
        0 if _has_only_critical(chunks) else len(raw),
    )


@dataclass(frozen=True, slots=True)
class PngSamples:
    """The samples of a PNG as they are packed in it.

    Attributes:
        width, height: Pixels.
        depth: Bits of a sample.
        kind: GRAY, RGB or PALETTE.
        palette: Red, green and blue of each colour; empty without.
        packed: The rows, each with its filter, packed by zlib: to be joined.
    """

    width: int
    height: int
    depth: int
    kind: int
    palette: bytes
    packed: list[memoryview]


def read_samples(raw: bytes) -> PngSamples | None:
    """The samples of a PNG, not unpacked; None where it is transparent or interlaced. Raises BrokenImage."""
    width, height, depth, kind = _read_ihdr(raw)
    chunks = _read_chunks(raw)
    if chunks.transparent or kind in (GRAY_ALPHA, RGB_ALPHA) or raw[_INTERLACED]:
        return None
    view = memoryview(raw)
    packed = [view[start + 8 : stop - 4] for name, start, stop in _walk(raw) if name == b"IDAT"]
    return PngSamples(width, height, depth, kind, chunks.palette, packed)


def _read_ihdr(raw: bytes) -> tuple[int, int, int, int]:
    if len(raw) < 33 or raw[8:16] != b"\0\0\0\rIHDR":
        raise broken("PNG", "does not begin with a header")
    width, height, depth, kind, *_ = IHDR.unpack_from(raw, 16)
    if depth not in DEPTHS.get(kind, ()):
        raise broken("PNG", f"declares colour type {kind} with {depth} bits, which does not exist")
    return width, height, depth, kind


def _read_chunks(raw: bytes) -> _Chunks:
    chunks = _Chunks(ranges=[(0, len(MAGIC))])
    for name, start, stop in _walk(raw):
        body = slice(start + 8, stop - 4)
        if name in CRITICAL_CHUNKS:
            _append_range(chunks.ranges, start, stop)
        if name == b"IDAT":
            chunks.pixels = True
        elif name == b"PLTE":
            chunks.palette = raw[body]
        elif name == b"tRNS":
            chunks.transparent = True
        elif name == b"eXIf" and not chunks.exif:
            chunks.exif = raw[body]
        elif name == b"IEND":
            chunks.ended = True
    return chunks


def _walk(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, first and past-the-last byte of each chunk up to IEND, or to the end of a file that lacks it."""
    position, name = len(MAGIC), b""
    for _ in range(MAX_CHUNKS):
        if name == b"IEND" or position == len(raw):
            return
        start, position = position, position + FRAME_BYTES + int.from_bytes(raw[position : position + 4], "big")
        name = raw[start + 4 : start + 8]
        if position > len(raw):
            raise broken("PNG", f"is cut off at byte {len(raw)}, inside a chunk that goes on to byte {position}")
        yield name, start, position
    raise broken("PNG", f"has more than {MAX_CHUNKS} chunks")


def _append_range(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    if ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], stop)
    else:
        ranges.append((start, stop))


def _has_only_critical(chunks: _Chunks) -> bool:
    return len(chunks.ranges) == 1 and chunks.ended


def _critical_only(raw: bytes, chunks: _Chunks) -> bytes:
    if _has_only_critical(chunks):
        return raw
    parts = [memoryview(raw)[start:stop] for start, stop in chunks.ranges]
    return b"".join([*parts, b"" if chunks.ended else END_CHUNK])


def _flags(kind: int, chunks: _Chunks, *, gray: bool) -> int:
    if _may_be_transparent(kind, chunks):
        return cv2.IMREAD_UNCHANGED
    return cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR


def _may_be_transparent(kind: int, chunks: _Chunks) -> bool:
    return kind in (GRAY_ALPHA, RGB_ALPHA) or (kind in (RGB, PALETTE) and chunks.transparent)


def _is_gray(palette: bytes) -> bool:
    return palette[0::3] == palette[1::3] == palette[2::3]
