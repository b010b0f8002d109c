"""Reads TIFF directories: the pages of a TIFF, and the orientation in EXIF. Bytes beyond the end of the file are 0.

Pillow parses all directories before a page, possibly millions; this follows only their offsets and detects loops.
"""

from typing import Final, Literal

from ocrsvc.errors import TooManyPages

MAX_DIRECTORIES: Final = 100_000
_MAX_ENTRIES: Final = 1000
_NEW_SUBFILE_TYPE, _ORIENTATION = 254, 274
_SHORT, _LONG = 3, 4
_NOT_A_PAGE: Final = 0b101  # NewSubfileType bits: a reduced copy of another page, or a transparency mask


def read_orientation(exif: bytes) -> int:
    """Read the orientation, 1 to 8, from EXIF data or the body of a JPEG's APP1 segment; 1 if missing or invalid."""
    tiff = exif.removeprefix(b"Exif\0\0")
    if not tiff.startswith((b"II*\0", b"MM\0*")):
        return 1
    directory = _number(tiff, 4, 4)
    count, first = min(_number(tiff, directory, 2), _MAX_ENTRIES), directory + 2
    for entry in range(first, first + 12 * count, 12):
        if _number(tiff, entry, 2) == _ORIENTATION:
            kind, value = _number(tiff, entry + 2, 2), _number(tiff, entry + 8, 2)
            return value if kind == _SHORT and 1 <= value <= 8 else 1
    return 1


def find_pages(raw: bytes) -> list[int]:
    """List the offsets of the pages' directories, up to the first that is damaged or repeated. Raises TooManyPages."""
    pages: list[int] = []
    seen: set[int] = set()
    count_bytes, offset_bytes, first = _layout(raw)
    at = _number(raw, first, offset_bytes)
    while at and at not in seen:
        if len(seen) == MAX_DIRECTORIES:
            raise TooManyPages(f"This TIFF has more than {MAX_DIRECTORIES} directories.", "Split it.")
        seen.add(at)
        count, entry = _number(raw, at, count_bytes), at + count_bytes
        end = entry + count * (4 + 2 * offset_bytes)
        if not count or end + offset_bytes > len(raw):
            break
        # Entries are sorted by tag and NewSubfileType is the lowest tag, so it can only be the first entry.
        is_typed = (_number(raw, entry, 2), _number(raw, entry + 2, 2)) == (_NEW_SUBFILE_TYPE, _LONG)
        if not pages or not (is_typed and _number(raw, entry + 4 + offset_bytes, 4) & _NOT_A_PAGE):
            pages.append(at)
        at = _number(raw, end, offset_bytes)
    return pages


def begin_with(raw: bytes, page: int) -> bytes:
    """Copy the file; in the copy, the directory at offset `page` is the first one."""
    _, offset_bytes, first = _layout(raw)
    offset = page.to_bytes(offset_bytes, _byte_order(raw))
    return raw[:first] + offset + raw[first + offset_bytes :]


def _byte_order(raw: bytes) -> Literal["little", "big"]:
    return "little" if raw.startswith(b"II") else "big"


def _number(raw: bytes, at: int, size: int) -> int:
    return int.from_bytes(raw[at : at + size], _byte_order(raw))


def _layout(raw: bytes) -> tuple[int, int, int]:
    """Bytes per entry count, bytes per offset, and position of the first directory's offset, in TIFF or BigTIFF."""
    return (8, 8, 8) if _number(raw, 2, 2) == 43 else (2, 4, 4)
