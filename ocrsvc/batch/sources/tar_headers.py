"""Reads the headers of a tar, one after another: old, ustar, pax and GNU; memory holds one of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.sources.page_count import HEAD_BYTES
from ocrsvc.errors import BrokenArchive

BLOCK_BYTES: Final = 512
# Of a long name or a pax header.
_MOST_EXTENSION_BYTES: Final = 1024 * 1024
_ZEROS: Final = bytes(BLOCK_BYTES)
_PAX_RECORD: Final = re.compile(rb"(\d{1,7}) ([^=]{1,255})=", re.DOTALL)
# More bytes than any file has; what is longer is no number.
_PAX_SIZE: Final = re.compile(rb"[0-9]{1,20}")

ReadAt = Callable[[int, int], bytes]
"""So many bytes at an offset, fewer at the end."""


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A file in a tar.

    Attributes:
        name: Its path, as bytes.
        offset: Of its content in the tar.
        size: Of its content, in bytes.
        head: The content's first bytes.
        kind: "file", or what else it is: "link", "sparse file" and the like.
    """

    name: bytes
    offset: int
    size: int
    head: bytes
    kind: str


def read_headers(read_at: ReadAt) -> Iterator[TarEntry]:
    """The entries of a tar, without folders.

    Args:
        read_at: Called with growing offsets.

    Raises:
        BrokenArchive: A header is cut off or damaged; what came before stands.
    """
    offset, long_name, pax = 0, b"", dict[bytes, bytes]()
    while True:
        block = read_at(offset, BLOCK_BYTES + HEAD_BYTES)
        header = block[:BLOCK_BYTES]
        if not header or header == _ZEROS:
            return
        kind, size = _check(header, offset)
        content = offset + BLOCK_BYTES
        if kind in b"xLg":
            extension = _read_extension(read_at, content, size)
            if kind == b"L":
                long_name = extension.rstrip(b"\0")
            elif kind == b"x":
                pax = _parse_pax(extension, offset)
        elif kind != b"K":
            content += _sparse_bytes(read_at, content) if kind == b"S" and header[482] else 0
            size = int(pax[b"size"]) if _PAX_SIZE.fullmatch(pax.get(b"size", b"")) else size
            name = pax.get(b"path") or long_name or _name_of(header)
            what = "sparse file" if any(key.startswith(b"GNU.sparse") for key in pax) else _kind_of(kind, name)
            if what != "folder":
                yield TarEntry(name, content, size, block[BLOCK_BYTES : BLOCK_BYTES + min(HEAD_BYTES, size)], what)
            long_name, pax = b"", {}
            if what not in {"file", "sparse file"}:
                size = 0
        offset = content + (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def _check(header: bytes, offset: int) -> tuple[bytes, int]:
    """Type and size of what a header describes. Raises BrokenArchive."""
    if len(header) < BLOCK_BYTES:
        raise BrokenArchive(f"The tar is cut off at byte {offset + len(header)}.", "Make it again.")
    # The sum of all bytes with the checksum's own as blanks; Adler-32 has it, modulo 65521, in its lower half.
    total = (zlib.adler32(header[156:], zlib.adler32(header[:148])) - 1 + 8 * 32) & 0xFFFF_FFFF
    said = _parse_number(header[148:156])
    size = _parse_number(header[124:136])
    if said is None or size is None or (total & 0xFFFF) % 65521 != said % 65521:
        raise BrokenArchive(f"The tar is damaged: there is no header at byte {offset}.", "Make it again.")
    return header[156:157], size


def _parse_number(field: bytes) -> int | None:
    """Octal digits, or a big-endian number behind a byte 128; None for what is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _name_of(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    # GNU's own form has a blank there, and other things in the place of the prefix.
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _kind_of(kind: bytes, name: bytes) -> str:
    if kind in b"0\0007":
        return "folder" if name.endswith(b"/") else "file"
    return {b"5": "folder", b"1": "links", b"2": "links", b"S": "sparse file"}.get(kind, "devices and pipes")


def _sparse_bytes(read_at: ReadAt, offset: int) -> int:
    """What further blocks of a sparse file's map take, which lie before its content."""
    size = BLOCK_BYTES
    while (block := read_at(offset + size - BLOCK_BYTES, BLOCK_BYTES)[504:505]) and block != b"\0":
        size += BLOCK_BYTES
    return size


def _read_extension(read_at: ReadAt, offset: int, size: int) -> bytes:
    if size > _MOST_EXTENSION_BYTES:
        raise BrokenArchive(f"The tar is damaged: the header at byte {offset} has {size} bytes.", "Make it again.")
    extension = read_at(offset, size)
    if len(extension) < size:
        raise BrokenArchive(f"The tar is cut off at byte {offset + len(extension)}.", "Make it again.")
    return extension


def _parse_pax(extension: bytes, offset: int) -> dict[bytes, bytes]:
    """The records "LENGTH KEY=VALUE" of a pax header. Raises BrokenArchive."""
    values: dict[bytes, bytes] = {}
    begin = 0
    while begin < len(extension) and extension[begin]:
        match = _PAX_RECORD.match(extension, begin)
        end = begin + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(extension):
            raise BrokenArchive(f"The tar is damaged: the pax header at byte {offset} is none.", "Make it again.")
        values[match[2]] = extension[match.end() : end - 1]
        begin = end
    return values
