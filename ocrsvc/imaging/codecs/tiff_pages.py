"""Finds the pages of a TIFF: the offset of each page's directory.

The chain of directories is followed here and not by Pillow, which unpacks each of them on its way to a page: a file of
the largest size can hold millions.
"""

from __future__ import annotations

import struct
from typing import Final

from ocrsvc.errors import TooManyPages

MOST_DIRECTORIES: Final = 100_000
_NEW_SUBFILE_TYPE: Final = 254
_LONG: Final = 4
# A smaller copy of another page, or a mask for one.
_NO_PAGE: Final = 0b101


def find_pages(raw: bytes) -> list[int]:
    """Where the directory of each page begins, in order; what cannot be followed ends the list.

    Smaller copies and masks are no pages, but the first directory always is one.

    Raises:
        TooManyPages: The file has more than MOST_DIRECTORIES.
    """
    pages: list[int] = []
    seen: set[int] = set()
    at = _first(raw)
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
    order, is_big = _kind(raw)
    offset = struct.pack(f"{order}Q" if is_big else f"{order}I", page)
    start = 8 if is_big else 4
    return raw[:start] + offset + raw[start + len(offset) :]


def _kind(raw: bytes) -> tuple[str, bool]:
    """Byte order as `struct` writes it, and whether it is a BigTIFF."""
    order = "<" if raw[:2] == b"II" else ">"
    return order, struct.unpack_from(f"{order}H", raw, 2)[0] == 43


def _first(raw: bytes) -> int:
    try:
        order, is_big = _kind(raw)
        return int(struct.unpack_from(f"{order}Q" if is_big else f"{order}I", raw, 8 if is_big else 4)[0])
    except struct.error:
        return 0


def _read_directory(raw: bytes, at: int) -> tuple[bool, int] | None:
    """Whether the directory at `at` is a page, and where the next one is; None for one outside the file."""
    order, is_big = _kind(raw)
    count_form, entry_size, next_form = (f"{order}Q", 20, f"{order}Q") if is_big else (f"{order}H", 12, f"{order}I")
    entries = at + struct.calcsize(count_form)
    if entries > len(raw):
        return None
    (count,) = struct.unpack_from(count_form, raw, at)
    end = entries + count * entry_size
    if not count or end + struct.calcsize(next_form) > len(raw):
        return None
    (following,) = struct.unpack_from(next_form, raw, end)
    return _is_page(raw, order, entries, is_big=is_big), int(following)


def _is_page(raw: bytes, order: str, first_entry: int, *, is_big: bool) -> bool:
    """Entries are sorted, and the one that says so has the lowest number of those in use."""
    tag, kind = struct.unpack_from(f"{order}HH", raw, first_entry)
    if (tag, kind) != (_NEW_SUBFILE_TYPE, _LONG):
        return True
    (value,) = struct.unpack_from(f"{order}I", raw, first_entry + (12 if is_big else 8))
    return not value & _NO_PAGE
