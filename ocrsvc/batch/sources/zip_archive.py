"""Zips: the images in them, by the directory at the end, which is read piece by piece; loaded by their offsets."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.sources.address_access import access_of
from ocrsvc.batch.sources.archive import Member, too_large
from ocrsvc.batch.sources.member_names import MemberNames
from ocrsvc.batch.sources.page_count import HEAD_BYTES
from ocrsvc.batch.sources.random_access import RandomAccess
from ocrsvc.errors import BrokenArchive

_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_END64_PLACE: Final = struct.Struct("<4sLQL")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_EXTRA: Final = struct.Struct("<2H")
_MOST_COMMENT_BYTES: Final = 65535
_PIECE_BYTES: Final = 1024 * 1024
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x1, 0x800
_MOST_32: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a member lies: offset of its local header, its packed and unpacked bytes, method and CRC-32."""

    offset: int
    packed: int
    size: int
    method: int
    crc: int

    def to_text(self) -> str:
        return f"{self.offset},{self.packed},{self.size},{self.method},{self.crc}"


class ZipArchive:
    """A zip.

    Args:
        address: Of the zip.
    """

    def __init__(self, address: str) -> None:
        access = access_of(address)
        self._file = RandomAccess(access.open(address))
        self._is_local = access.is_local

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        names = MemberNames()
        for path, flags, place in _read_directory(self._file):
            if path.endswith(b"/"):
                continue
            name = names.name(path if flags & _UTF8 or _is_utf8(path) else path.decode("cp437").encode())
            problem = _problem(flags, place.method)
            head = self._read_head(place) if self._is_local and not problem else None
            yield Member(name, place.to_text(), place.size, head, problem)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        where = _Place(*map(int, place.split(",")))
        if max(where.size, where.packed) > most_bytes:
            raise too_large(where.size, most_bytes)
        packed = self._file.read_at(self._content_of(where), where.packed)
        if len(packed) < where.packed:
            raise BrokenArchive("The zip is cut off in it.", "Make the zip again.")
        data = packed if where.method == _STORED else _inflate(packed, where.size + 1)
        if len(data) != where.size or zlib.crc32(data) != where.crc:
            raise BrokenArchive("It is damaged: the zip says another size or checksum.", "Make the zip again.")
        return data

    def close(self) -> None:
        """As Archive.close."""
        self._file.close()

    def _read_head(self, place: _Place) -> bytes:
        """The first bytes of a member; none of one that cannot be read, which loading it will say."""
        try:
            packed = self._file.read_at(self._content_of(place), min(place.packed, 4 * HEAD_BYTES))
            return packed[:HEAD_BYTES] if place.method == _STORED else _inflate(packed, HEAD_BYTES)
        except BrokenArchive:
            return b""

    def _content_of(self, place: _Place) -> int:
        """The offset of a member's content. Raises BrokenArchive."""
        header = self._file.read_at(place.offset, _LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
            raise BrokenArchive("It is not where the zip's directory says.", "Make the zip again.")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        return int(place.offset + _LOCAL.size + name_bytes + extra_bytes)


def _problem(flags: int, method: int) -> str:
    if flags & _ENCRYPTED:
        return "It is encrypted in the zip."
    if method not in {_STORED, _DEFLATED}:
        return f"It is packed in a way that is not read here (method {method} of the zip)."
    return ""


def _inflate(packed: bytes, most_bytes: int) -> bytes:
    """At most so many bytes of a deflated member. Raises BrokenArchive."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most_bytes)
    except zlib.error as error:
        raise BrokenArchive(f"It is damaged in the zip: {error}.", "Make the zip again.") from error


def _read_directory(file: RandomAccess) -> Iterator[tuple[bytes, int, _Place]]:
    """Each entry of the directory: its path, flags and place. Raises BrokenArchive."""
    offset, size, before = _find_directory(file)
    buffer, end = b"", offset + size
    while buffer or offset < end:
        if len(buffer) < _ENTRY.size + 3 * _MOST_COMMENT_BYTES and offset < end:
            piece = file.read_at(offset, min(_PIECE_BYTES, end - offset))
            if not piece:
                raise _damaged("its directory is cut off")
            buffer, offset = buffer + piece, offset + len(piece)
        used = 0
        while len(buffer) - used >= (_ENTRY.size + 3 * _MOST_COMMENT_BYTES if offset < end else 1):
            entry, used = _parse_entry(buffer, used, before)
            yield entry
        buffer = buffer[used:]


def _parse_entry(buffer: bytes, at: int, before: int) -> tuple[tuple[bytes, int, _Place], int]:
    """The entry at a place of the buffer, and where the next one begins."""
    if len(buffer) < at + _ENTRY.size or buffer[at : at + 4] != b"PK\1\2":
        raise _damaged("its directory holds something else")
    values = _ENTRY.unpack_from(buffer, at)
    flags, method, crc, packed, size = values[3], values[4], *values[7:10]
    name_bytes, extra_bytes, comment_bytes, offset = *values[10:13], values[16]
    begin = at + _ENTRY.size
    end = begin + name_bytes + extra_bytes + comment_bytes
    if end > len(buffer):
        raise _damaged("its directory is cut off")
    path = buffer[begin : begin + name_bytes]
    if _MOST_32 in {packed, size, offset}:
        extra = buffer[begin + name_bytes : begin + name_bytes + extra_bytes]
        size, packed, offset = _sizes64(extra, size, packed, offset)
    place = _Place(offset + before, packed, size, method, crc)
    return (path, flags, place), end


def _sizes64(extra: bytes, *values: int) -> tuple[int, int, int]:
    """Sizes and offset, of which those that do not fit into 32 bits are in the extra field 1."""
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        if kind == 1:
            field = extra[at + _EXTRA.size : at + _EXTRA.size + length]
            numbers = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            size, packed, offset = (next(numbers, value) if value == _MOST_32 else value for value in values)
            return size, packed, offset
        at += _EXTRA.size + length
    size, packed, offset = values
    return size, packed, offset


def _find_directory(file: RandomAccess) -> tuple[int, int, int]:
    """Offset and size of the directory, and the bytes that lie before the zip. Raises BrokenArchive."""
    tail_bytes = min(file.size, _END.size + _MOST_COMMENT_BYTES + _END64_PLACE.size)
    begin = file.size - tail_bytes
    tail = file.read_at(begin, tail_bytes)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise _damaged("it has no directory at its end, as if it were cut off")
    _, disk, _, _, _, size, offset, _ = _END.unpack_from(tail, at)
    end = begin + at
    if at >= _END64_PLACE.size and tail[at - _END64_PLACE.size :].startswith(b"PK\6\7"):
        disk, size, offset, end = _find_directory64(file, tail[at - _END64_PLACE.size : at], end)
    if disk not in {0, 0xFFFF}:
        raise _damaged("it is one of several volumes")
    before = end - size - offset
    if before < 0 or size > file.size:
        raise _damaged("its directory lies outside")
    return offset + before, size, before


def _find_directory64(file: RandomAccess, place: bytes, end: int) -> tuple[int, int, int, int]:
    """Disk, size, offset and end of the directory of a zip64. Raises BrokenArchive."""
    # The record lies directly before its place, unless it is extended or bytes were put before the zip.
    for offset in (end - _END64_PLACE.size - _END64.size, _END64_PLACE.unpack(place)[2]):
        record = file.read_at(max(0, offset), _END64.size)
        if len(record) == _END64.size and record.startswith(b"PK\6\6"):
            values = _END64.unpack(record)
            return values[4], values[8], values[9], offset
    raise _damaged("its directory is not where it says")


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _damaged(what: str) -> BrokenArchive:
    return BrokenArchive(f"The zip is damaged: {what}.", "Make it again.")
