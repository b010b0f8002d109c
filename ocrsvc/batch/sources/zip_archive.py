"""Zips: listed by zipfile, members loaded by their place; only stored and deflated ones."""

from __future__ import annotations

import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from ocrsvc.batch.sources.find_files import is_local, open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, Member, MemberNames, read_fully, too_large
from ocrsvc.errors import BrokenArchive

MOST_MEMBERS: Final = 500_000
"""zipfile takes about 650 bytes for each."""
_MOST_DIRECTORY_BYTES: Final = 128 * 1024 * 1024
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_TAIL_BYTES: Final = 65535 + 22 + 20 + 56
_ENCRYPTED, _UTF8 = 0x1, 0x800
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a member lies: offset of its local header, packed and unpacked bytes, method and CRC-32."""

    offset: int
    packed: int
    size: int
    method: int
    crc: int


class ZipArchive:
    """A zip; see Archive."""

    def __init__(self, address: str) -> None:
        self._file = open_file(address)
        self._is_local = is_local(address)
        self._lock = threading.Lock()

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        names = MemberNames()
        try:
            self._check_directory()
            infos = zipfile.ZipFile(_Unclosed(self._file)).infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
            raise BrokenArchive(f"The zip is damaged or cut off: {error}.", "Make it again.") from error
        for info in infos:
            if info.is_dir():
                continue
            place = _Place(info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC)
            problem = _problem(info.flag_bits, info.compress_type)
            head = self._read_head(place) if self._is_local and not problem else None
            text = f"{place.offset},{place.packed},{place.size},{place.method},{place.crc}"
            yield Member(names.name(_path_of(info)), text, place.size, head, problem)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        where = _Place(*map(int, place.split(",")))
        if max(where.size, where.packed) > most_bytes:
            raise too_large(where.size, most_bytes)
        packed = self._read_content(where, where.packed)
        if len(packed) < where.packed:
            raise BrokenArchive("The zip is cut off in it.", "Make the zip again.")
        data = packed if where.method == zipfile.ZIP_STORED else _inflate(packed, where.size + 1)
        if len(data) != where.size or zlib.crc32(data) != where.crc:
            raise BrokenArchive("It is damaged: the zip says another size or checksum.", "Make the zip again.")
        return data

    def close(self) -> None:
        """As Archive.close."""
        self._file.close()

    def _check_directory(self) -> None:
        """Raises BrokenArchive for a directory that zipfile would take too much memory for."""
        size = self._file.seek(0, os.SEEK_END)
        tail = self._read_at(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
        at = tail.rfind(b"PK\5\6")
        if at < 0 or at + _END.size > len(tail):
            return
        _, disk, _, _, members, directory_bytes, _, _ = _END.unpack_from(tail, at)
        before = tail.rfind(b"PK\6\6", 0, at)
        if before >= 0 and before + _END64.size <= at:
            _, _, _, _, disk, _, _, members, directory_bytes, _ = _END64.unpack_from(tail, before)
        if disk not in {0, 0xFFFF}:
            raise zipfile.BadZipFile("it is one of several volumes")
        if members > MOST_MEMBERS or directory_bytes > _MOST_DIRECTORY_BYTES:
            raise BrokenArchive(
                f"The zip has {members:,} members and a directory of {directory_bytes:,} bytes; at most "
                f"{MOST_MEMBERS:,} and {_MOST_DIRECTORY_BYTES:,} are read.",
                "Unpack it, and name its folder.",
            )

    def _read_head(self, place: _Place) -> bytes:
        """The first bytes of a member; none of one that cannot be read, which loading it will say."""
        try:
            packed = self._read_content(place, min(place.packed, 4 * HEAD_BYTES))
            return packed[:HEAD_BYTES] if place.method == zipfile.ZIP_STORED else _inflate(packed, HEAD_BYTES)
        except BrokenArchive:
            return b""

    def _read_content(self, place: _Place, size: int) -> bytes:
        """Some of a member's packed bytes. Raises BrokenArchive."""
        header = self._read_at(place.offset, _LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
            raise BrokenArchive("It is not where the zip's directory says.", "Make the zip again.")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        return self._read_at(place.offset + _LOCAL.size + name_bytes + extra_bytes, size)

    def _read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            # A zip may say any offset of 64 bits.
            self._file.seek(min(offset, (1 << 63) - 1))
            return read_fully(self._file, size)


class _Unclosed:
    """A file for zipfile, which would close it."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """As a file's read, all at once."""
        return read_fully(self._file, size)


def _path_of(info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member's name; those that are no UTF-8 are taken for code page 437."""
    if info.flag_bits & _UTF8:
        return info.orig_filename.encode(errors="surrogateescape")
    raw = info.orig_filename.encode("cp437")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return info.orig_filename.encode()
    return raw


def _problem(flags: int, method: int) -> str:
    if flags & _ENCRYPTED:
        return "It is encrypted in the zip."
    return "" if method in _METHODS else f"It is packed in a way that is not read here (method {method} of the zip)."


def _inflate(packed: bytes, most_bytes: int) -> bytes:
    """At most so many bytes of a deflated member. Raises BrokenArchive."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most_bytes)
    except zlib.error as error:
        raise BrokenArchive(f"It is damaged in the zip: {error}.", "Make the zip again.") from error
