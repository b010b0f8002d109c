"""Directories of a TIFF, of which EXIF is one: pages of the file, orientation and resolution of an image.

The chain of directories is followed here and not by Pillow, which unpacks each of them on its way to a page: a file of
the largest size can hold millions. Entries are read one by one, so that loops and huge counts cost nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

from ocrsvc.errors import TooManyPages

MOST_DIRECTORIES: Final = 100_000
_MOST_ENTRIES: Final = 1000
_NEW_SUBFILE_TYPE, _ORIENTATION, _X_RESOLUTION, _Y_RESOLUTION, _UNIT = 254, 274, 282, 283, 296
_SHORT, _LONG = 3, 4
# A smaller copy of another page, or a mask for one.
_NO_PAGE: Final = 0b101
_TIFF_UNITS_IN_INCH: Final = {2: 1.0, 3: 2.54}

_JFIF: Final = b"JFIF\0"
_JFIF_UNITS_IN_INCH: Final = {1: 1.0, 2: 2.54}
_PHYS: Final = b"\0\0\0\x09pHYs"
_METER, _METERS_IN_INCH = 1, 0.0254
# Where a PNG's header stands, before the first pixels.
_HEAD_BYTES: Final = 1 << 16


def read_orientation(exif: bytes) -> int:
    r"""The EXIF orientation, 1 to 8; 1 where the block is broken, silent or holds an illegal value. Never raises.

    EXIF is a TIFF structure ("II*\0..." or "MM\0*..."), with or without "Exif\0\0" in front.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    try:
        order, first = _order_and_first(tiff)
        kind, place = next((kind, place) for tag, kind, place in _entries(tiff, order, first) if tag == _ORIENTATION)
        (value,) = struct.unpack_from(order + "H", tiff, place)
    except (struct.error, StopIteration, KeyError):
        return 1
    return int(value) if kind == _SHORT and 1 <= value <= 8 else 1


def read_resolution(raw: bytes, directory: int | None = None) -> tuple[float, float] | None:
    """Pixels an inch across and down; None where the file states none, or none that is sound. Never raises.

    JPEG states it in its JFIF header, PNG in pHYs, TIFF in the first directory or that at an offset.
    """
    try:
        if raw.startswith(b"\xff\xd8"):
            return _of_jpeg(raw)
        if raw.startswith(b"\x89PNG"):
            return _of_png(raw)
        order, first = _order_and_first(raw)
        return _of_tiff(raw, order, first if directory is None else directory)
    except (struct.error, ZeroDivisionError, KeyError):
        return None


def _of_jpeg(raw: bytes) -> tuple[float, float] | None:
    at = raw.find(_JFIF, 0, 64)
    if at < 0:
        return None
    unit, across, down = struct.unpack_from(">BHH", raw, at + len(_JFIF) + 2)
    scale = _JFIF_UNITS_IN_INCH[unit]
    return across * scale, down * scale


def _of_png(raw: bytes) -> tuple[float, float] | None:
    at = raw.find(_PHYS, 0, _HEAD_BYTES)
    if at < 0:
        return None
    across, down, unit = struct.unpack_from(">IIB", raw, at + len(_PHYS))
    return (across * _METERS_IN_INCH, down * _METERS_IN_INCH) if unit == _METER else None


def _of_tiff(raw: bytes, order: str, directory: int) -> tuple[float, float]:
    found, unit = dict[int, float](), 2
    for tag, _, place in _entries(raw, order, directory):
        if tag in (_X_RESOLUTION, _Y_RESOLUTION):
            (value,) = struct.unpack_from(order + "I", raw, place)
            above, below = struct.unpack_from(order + "II", raw, value)
            found[tag] = above / below
        elif tag == _UNIT:
            (unit,) = struct.unpack_from(order + "H", raw, place)
    scale = _TIFF_UNITS_IN_INCH[unit]
    return found[_X_RESOLUTION] * scale, found[_Y_RESOLUTION] * scale


def _order_and_first(tiff: bytes) -> tuple[str, int]:
    """Byte order as `struct` writes it, and where the first directory is. Raises KeyError, struct.error."""
    order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
    return order, struct.unpack_from(order + "I", tiff, 4)[0]


def _entries(tiff: bytes, order: str, directory: int) -> Iterator[tuple[int, int, int]]:
    """Tag, type and place of the value of each entry. Raises struct.error where the file ends before."""
    (count,) = struct.unpack_from(order + "H", tiff, directory)
    for index in range(min(count, _MOST_ENTRIES)):
        at = directory + 2 + 12 * index
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        yield tag, kind, at + 8


def find_pages(raw: bytes) -> list[int]:
    """Where the directory of each page begins, in order; what cannot be followed ends the list.

    Smaller copies and masks are no pages, but the first directory always is one. Raises TooManyPages for a file of more
    than MOST_DIRECTORIES.
    """
    pages: list[int] = []
    seen: set[int] = set()
    _, offset_bytes, first = _layout(raw)
    at = _number(raw, first, offset_bytes)
    while at and at not in seen:
        if len(seen) == MOST_DIRECTORIES:
            raise TooManyPages(f"This TIFF has more than {MOST_DIRECTORIES} directories.", "Split it.")
        seen.add(at)
        entry = _read_directory(raw, at)
        if entry is None:
            break
        is_page, following = entry
        if is_page or not pages:
            pages.append(at)
        at = following
    return pages


def begin_with(raw: bytes, page: int) -> bytes:
    """The same file with the directory at `page` as its first."""
    _, offset_bytes, first = _layout(raw)
    offset = page.to_bytes(offset_bytes, _byte_order(raw))
    return raw[:first] + offset + raw[first + offset_bytes :]


def _byte_order(raw: bytes) -> Literal["little", "big"]:
    return "little" if raw[:2] == b"II" else "big"


def _number(raw: bytes, at: int, size: int) -> int:
    """A number in the file's byte order; without what lies behind its end."""
    return int.from_bytes(raw[at : at + size], _byte_order(raw))


def _layout(raw: bytes) -> tuple[int, int, int]:
    """Bytes of the count of a directory's entries and of an offset, and where the first is; a BigTIFF has more."""
    return (8, 8, 8) if _number(raw, 2, 2) == 43 else (2, 4, 4)


def _read_directory(raw: bytes, at: int) -> tuple[bool, int] | None:
    """Whether the directory at `at` is a page, and where the next one is; None for one outside the file."""
    count_bytes, offset_bytes, _ = _layout(raw)
    count, first = _number(raw, at, count_bytes), at + count_bytes
    end = first + count * (4 + 2 * offset_bytes)
    if not count or end + offset_bytes > len(raw):
        return None
    # Entries are sorted, and the one that says so has the lowest number of those in use.
    is_typed = (_number(raw, first, 2), _number(raw, first + 2, 2)) == (_NEW_SUBFILE_TYPE, _LONG)
    is_page = not (is_typed and _number(raw, first + 4 + offset_bytes, 4) & _NO_PAGE)
    return is_page, _number(raw, end, offset_bytes)
