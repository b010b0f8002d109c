"""Reads the boxes of a HEIC or AVIF file, and has a child process decode its primary image.

A few bytes of HEVC or AV1 can declare any size, whatever the boxes say, so the child has limits of memory and time. The
boxes are those of ISO 14496-12, the items and their properties those of HEIF, ISO 23008-12.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np

from ocrsvc.errors import UnsupportedImage
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, Samples, broken
from ocrsvc.results import Check, no_check
from ocrsvc.system.child_process import ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import READ_ONLY, open_memory

LIMIT_S: Final = 10.0  # for decoding; 50 megapixels take two seconds
MAX_BOXES: Final = 10_000  # in one box, and of items with properties; a telephone's file has some fifty
_MAX_BRANDS_BYTES: Final = 512
_PROGRAM: Final = "ocrsvc.imaging.codecs.heif_child"
_PROGRAM_BYTES: Final = 64 << 20  # of the child's libraries and stacks
_CANVAS_BYTES_PER_PIXEL: Final = 4
# Of the child, by lowering its limit: 4:2:0 of up to 10 bits, or of 8 with transparency; then any other kind.
_BYTES_PER_PIXEL: Final = {"HEIC": (8, 16), "AVIF": (12, 16)}
# The EXIF orientation of `irot`, in quarter turns to the left, then `imir`: none, top to bottom, left to right.
_ORIENTATIONS: Final = ((1, 4, 2), (8, 5, 7), (3, 2, 4), (6, 7, 5))

Box = tuple[bytes, int, int]  # its kind, and where its content begins and ends


def open_heif(raw: bytes) -> EncodedImage:
    """Read the size of the primary image, and how it is turned. Raises BrokenImage."""
    brands = raw[8 : min(_MAX_BRANDS_BYTES, int.from_bytes(raw[:4], "big"))]
    is_avif = not brands.startswith(b"he") and (b"avif" in brands or b"avis" in brands)
    name = "AVIF" if is_avif else "HEIC"
    try:
        known, primary = _read_properties(raw, name)
        width, height = struct.unpack_from(">II", raw, primary[b"ispe"] + 4)
        turn = raw[primary[b"irot"]] & 3 if b"irot" in primary else 0
        mirror = 1 + (raw[primary[b"imir"]] & 1) if b"imir" in primary else 0
        child = _BYTES_PER_PIXEL[name][any(_is_finer(raw, kind, at) for kind, at, _ in known)]
    except (LookupError, struct.error) as cause:
        raise broken(name, "does not declare the size of its primary image") from cause
    need = child + _CANVAS_BYTES_PER_PIXEL
    decode = partial(_decode, raw, name, width * height, child)
    # libheif turns HEIC itself. EXIF does not count: HEIF says so. The child holds the file, its bytes, and a copy.
    orientation = _ORIENTATIONS[turn][mirror] if is_avif else 1
    return EncodedImage(
        name.lower(),
        width,
        height,
        lambda _gray: decode(no_check),
        orientation,
        bytes_per_pixel=(need, need),
        copied_bytes=3 * len(raw),
        read_in_child=decode,
    )


def _is_finer(raw: bytes, kind: bytes, at: int) -> bool:
    """Whether a property says that the colour is finer than 4:2:0."""
    return raw[at + 16] & 2 > 0 if kind == b"hvcC" else kind == b"av1C" and raw[at + 2] & 12 != 12


def _read_properties(raw: bytes, name: str) -> tuple[list[Box], dict[bytes, int]]:
    """All properties, and where each of the primary image begins by its kind."""
    start, end = _by_kind(raw, 0, len(raw), name)[b"meta"]
    meta = _by_kind(raw, start + 4, end, name)
    at, _ = meta[b"pitm"]
    item = int.from_bytes(raw[at + 4 : at + (8 if raw[at] else 6)], "big")
    container = _by_kind(raw, *meta[b"iprp"], name)
    known = list(_boxes(raw, *container[b"ipco"], name))
    numbers = reversed(_numbers_of(raw, *container[b"ipma"], item))
    return known, {known[number - 1][0]: known[number - 1][1] for number in numbers if number}


def _numbers_of(raw: bytes, start: int, end: int, item: int) -> list[int]:
    """The numbers, from 1, of an item's properties in an `ipma` box."""
    id_bytes, number_bytes, at = 4 if raw[start] else 2, 1 + (raw[start + 3] & 1), start + 8
    for _ in range(MAX_BOXES):
        first = at + id_bytes + 1
        if first > end:
            break
        found, at = int.from_bytes(raw[at : at + id_bytes], "big"), first + raw[first - 1] * number_bytes
        if found == item:
            # The highest bit says whether the property is essential.
            mask, places = 0x7FFF if number_bytes > 1 else 0x7F, range(first, min(at, end), number_bytes)
            return [int.from_bytes(raw[place : place + number_bytes], "big") & mask for place in places]
    return []


def _by_kind(raw: bytes, start: int, end: int, name: str) -> dict[bytes, tuple[int, int]]:
    """Where the first box of each kind begins and ends."""
    return {kind: (first, last) for kind, first, last in reversed(list(_boxes(raw, start, end, name)))}


def _boxes(raw: bytes, start: int, end: int, name: str) -> Iterator[Box]:
    """The boxes between two offsets, up to bytes that are none. Raises BrokenImage for one that ends behind `end`."""
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


def _decode(raw: bytes, name: str, pixels: int, child_bytes: int, check: Check) -> Samples:
    memory_bytes = _PROGRAM_BYTES + 2 * len(raw) + pixels * child_bytes
    with ExitStack() as opened:
        with resources_exhausted():
            file = open_memory("image", raw, READ_ONLY)
            opened.callback(os.close, file)
            # It cannot shrink: a compromised child must not remove memory that this process reads.
            canvas = open_memory("pixels", seals=fcntl.F_SEAL_SHRINK)
            opened.callback(os.close, canvas)
            os.ftruncate(canvas, pixels * _CANVAS_BYTES_PER_PIXEL)
        child = ChildProcess(_PROGRAM, memory_bytes, 0, (file, canvas), check)
        opened.callback(child.close)
        width, height, channels = _ask(child, name, check)
        child.close()
        if min(width, height) < 1 or width * height > pixels or channels not in (1, 3, 4):
            raise broken(name, f"declares {pixels} pixels, and holds {width} x {height}")
        with resources_exhausted(), mmap.mmap(canvas, 0, access=mmap.ACCESS_READ) as shared:
            samples = np.frombuffer(shared, np.uint8, width * height * channels).copy()
    return samples.reshape((height, width, channels) if channels > 1 else (height, width))


def _ask(child: ChildProcess, name: str, check: Check) -> tuple[int, int, int]:
    """Decode; returns the image's width, height and channels. Raises BrokenImage, UnsupportedImage."""
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
