"""Reads the header of a HEIC or AVIF file (ISO 14496-12, ISO 23008-12); a child process decodes the primary image.

The compressed data can declare a larger image than the header, so the child has limits of memory and time.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

import numpy as np

from ocrsvc.errors import UnsupportedImage
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken
from ocrsvc.results import Check
from ocrsvc.system.child_process import ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import KEEPS_LENGTH, READ_ONLY, open_memory

LIMIT_S: Final = 10.0  # time limit of decoding; 50 megapixels take two seconds
MAX_BOXES: Final = 10_000  # most boxes directly inside a box, and most items with properties; phone photos have 50
_MAX_BRANDS_BYTES: Final = 512
_PROGRAM: Final = "ocrsvc.imaging.codecs.heif_child"
_PROGRAM_BYTES: Final = 64 << 20  # memory for the child's libraries and stacks
_CANVAS_BYTES_PER_PIXEL: Final = 4
# Measured bytes per pixel in the child: for 4:2:0 chroma of up to 10 bits, or 8 bits and alpha; for finer chroma.
_BYTES_PER_PIXEL: Final = {"HEIC": (8, 16), "AVIF": (12, 16)}
# EXIF orientation, by quarter turns to the left (`irot`) and mirroring (`imir`): none, top to bottom, left to right.
_ORIENTATIONS: Final = ((1, 4, 2), (8, 5, 7), (3, 2, 4), (6, 7, 5))

Box = tuple[bytes, int, int]  # four-letter type, start and end offset of the content


def open_heif(raw: bytes) -> EncodedImage:
    """Read the size and orientation of the primary image. Raises BrokenImage."""
    brands = raw[8 : min(_MAX_BRANDS_BYTES, int.from_bytes(raw[:4], "big"))]
    is_avif = not brands.startswith(b"he") and (b"avif" in brands or b"avis" in brands)
    name = "AVIF" if is_avif else "HEIC"
    try:
        every, primary = _read_properties(raw, name)
        width, height = struct.unpack_from(">II", raw, primary[b"ispe"] + 4)
        turn = raw[primary[b"irot"]] & 3 if b"irot" in primary else 0
        mirror = 1 + (raw[primary[b"imir"]] & 1) if b"imir" in primary else 0
        # Finer than 4:2:0: HEVC's chroma_format_idc is 2 or 3; AV1's chroma_subsampling_x and _y are not both 1.
        is_finer = any(raw[at + 16] & 2 for kind, at, _ in every if kind == b"hvcC")
        is_finer |= any(raw[at + 2] & 12 != 12 for kind, at, _ in every if kind == b"av1C")
    except (LookupError, struct.error) as cause:
        raise broken(name, "does not declare the size of its primary image") from cause
    child = _BYTES_PER_PIXEL[name][is_finer]
    read = partial(_decode, raw, name, width * height, child)
    # libheif applies a HEIC's orientation itself; HEIF requires readers to ignore the orientation in EXIF.
    orientation = _ORIENTATIONS[turn][mirror] if is_avif else 1
    # The file is copied three times: into the memory file, and twice in the child.
    need, copied = (child + _CANVAS_BYTES_PER_PIXEL,) * 2, 3 * len(raw)
    return EncodedImage(name.lower(), width, height, read, orientation, bytes_per_pixel=need, copied_bytes=copied)


def _read_properties(raw: bytes, name: str) -> tuple[list[Box], dict[bytes, int]]:
    """The property boxes of all images; and offsets of the primary image's properties by type, such as "ispe"."""
    start, end = _by_kind(raw, 0, len(raw), name)[b"meta"]
    meta = _by_kind(raw, start + 4, end, name)
    at, _ = meta[b"pitm"]
    item = int.from_bytes(raw[at + 4 : at + (8 if raw[at] else 6)], "big")
    container = _by_kind(raw, *meta[b"iprp"], name)
    every = list(_boxes(raw, *container[b"ipco"], name))
    numbers = reversed(_numbers_of(raw, *container[b"ipma"], item))
    return every, {every[number - 1][0]: every[number - 1][1] for number in numbers if number}


def _numbers_of(raw: bytes, start: int, end: int, item: int) -> list[int]:
    """Look up the numbers, from 1, of an item's properties in the `ipma` box at [start, end)."""
    id_bytes, number_bytes, at = 4 if raw[start] else 2, 1 + (raw[start + 3] & 1), start + 8
    for _ in range(MAX_BOXES):
        first = at + id_bytes + 1
        if first > end:
            break
        item_id, at = int.from_bytes(raw[at : at + id_bytes], "big"), first + raw[first - 1] * number_bytes
        if item_id == item:
            # The highest bit is a flag (essential property), not part of the number.
            mask, offsets = 0x7FFF if number_bytes > 1 else 0x7F, range(first, min(at, end), number_bytes)
            return [int.from_bytes(raw[offset : offset + number_bytes], "big") & mask for offset in offsets]
    return []


def _by_kind(raw: bytes, start: int, end: int, name: str) -> dict[bytes, tuple[int, int]]:
    """Start and end offset of the content of the first box of each type."""
    return {kind: (first, last) for kind, first, last in reversed(list(_boxes(raw, start, end, name)))}


def _boxes(raw: bytes, start: int, end: int, name: str) -> Iterator[Box]:
    """Yield the boxes in [start, end), up to bytes that are no box. Raises BrokenImage if a box exceeds `end`."""
    for _ in range(MAX_BOXES):
        body, kind = start + 8, raw[start + 4 : start + 8]
        if body > end or not kind.isalnum():
            return
        size = int.from_bytes(raw[start : start + 4], "big")
        if size == 1:
            body += 8
            size = int.from_bytes(raw[start + 8 : body], "big")
        last = start + size if size else end
        if not body <= last <= end:
            raise broken(name, f"is truncated or damaged at byte {start}: a box of {size} bytes ends at byte {end}")
        yield kind, body, last
        start = last
    raise broken(name, f"has more than {MAX_BOXES} boxes in one")


def _decode(raw: bytes, name: str, pixels: int, child_bytes: int, _gray: bool, check: Check) -> Samples:  # noqa: FBT001  as EncodedImage asks for it
    memory_bytes = _PROGRAM_BYTES + 2 * len(raw) + pixels * child_bytes
    with ExitStack() as opened:
        with resources_exhausted():
            file = open_memory("image", raw, READ_ONLY)
            opened.callback(os.close, file)
            canvas = open_memory("pixels", seals=KEEPS_LENGTH)
            opened.callback(os.close, canvas)
            os.ftruncate(canvas, pixels * _CANVAS_BYTES_PER_PIXEL)
        with closing(ChildProcess(_PROGRAM, memory_bytes, 0, (file, canvas), check)) as child:
            width, height, channels = _ask(child, name, check)
        if min(width, height) < 1 or width * height > pixels or channels not in (1, 3, 4):
            raise broken(name, f"declares {pixels} pixels, and holds {width} x {height}")
        with resources_exhausted(), mmap.mmap(canvas, 0, access=mmap.ACCESS_READ) as shared:
            samples = np.frombuffer(shared, np.uint8, width * height * channels).copy()
    return samples.reshape((height, width, channels) if channels > 1 else (height, width))


def _ask(child: ChildProcess, name: str, check: Check) -> tuple[int, int, int]:
    """Have the child decode; returns the image's width, height and channels. Raises BrokenImage, UnsupportedImage."""
    try:
        answer, numbers = child.ask(name.lower(), LIMIT_S, check)
    except ChildLate as late:
        raise broken(name, f"takes longer than {LIMIT_S:g} seconds to decode") from late
    except ChildFailed as failure:
        raise broken(name, "makes its decoder crash, or takes too much memory") from failure
    if answer == "unsupported":
        raise UnsupportedImage(f"This {name} has a kind of image that is not read.", "Send it as a JPEG or PNG.")
    if (answer, len(numbers)) != ("decoded", 3):
        raise broken(name, "is truncated or damaged: its pixels cannot be decoded")
    width, height, channels = map(int, numbers)
    return width, height, channels
