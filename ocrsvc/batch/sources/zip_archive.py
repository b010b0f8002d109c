"""Zips: listed by zipfile, members loaded by their place; only stored and deflated ones."""

from __future__ import annotations

import io
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from ocrsvc.batch.sources.find_files import is_local, open_file
from ocrsvc.batch.sources.source_files import (
    HEAD_BYTES,
    MOST_MEMBERS,
    Member,
    MemberNames,
    read_fully,
    too_large,
    too_many_members,
)
from ocrsvc.errors import BrokenArchive

_MOST_DIRECTORY_BYTES: Final = 128 * 1024 * 1024
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_TAIL_BYTES: Final = 65535 + 22 + 20 + 56
_ENCRYPTED, _UTF8 = 0x1, 0x800


class _Place(NamedTuple):
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
        for info in self._list():
            if info.is_dir():
                continue
            place = _Place(info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC)
            problem = _problem_of(info)
            head = self._read_head(place) if self._is_local and not problem else b""
            yield Member(names.name(_path_of(info)), ",".join(map(str, place)), place.size, head, problem)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        where = _Place(*map(int, place.split(",")))
        if max(where.size, where.packed) > most_bytes:
            raise too_large(where.size, most_bytes)
        data = self._unpack(where, where.packed, where.size + 1)
        if len(data) != where.size or zlib.crc32(data) != where.crc:
            raise BrokenArchive("It is damaged: the zip says another size or checksum.", "Make the zip again.")
        return data

    def close(self) -> None:
        """As Archive.close."""
        self._file.close()

    def _list(self) -> list[zipfile.ZipInfo]:
        file = io.BufferedReader(self._file)  # type: ignore[arg-type]
        try:
            self._check_directory()
            return zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
            raise BrokenArchive(f"The zip is damaged or cut off: {error}.", "Make it again.") from error
        finally:
            # Else it would be closed.
            file.detach()

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
            raise too_many_members(f"a directory of {directory_bytes:,} bytes for {members:,}")

    def _read_head(self, place: _Place) -> bytes:
        """The first bytes of a member; none of one that cannot be read, which loading it will say."""
        try:
            return self._unpack(place, min(place.packed, 4 * HEAD_BYTES), HEAD_BYTES)
        except BrokenArchive:
            return b""

    def _unpack(self, place: _Place, packed_bytes: int, most_bytes: int) -> bytes:
        """What so many packed bytes of a member are, up to a limit. Raises BrokenArchive."""
        header = self._read_at(place.offset, _LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
            raise BrokenArchive("It is not where the zip's directory says.", "Make the zip again.")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        packed = self._read_at(place.offset + _LOCAL.size + name_bytes + extra_bytes, packed_bytes)
        if place.method == zipfile.ZIP_STORED:
            return packed[:most_bytes]
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most_bytes)
        except zlib.error as error:
            raise BrokenArchive(f"It is damaged in the zip: {error}.", "Make the zip again.") from error

    def _read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            # A zip may say any offset of 64 bits.
            self._file.seek(min(offset, (1 << 63) - 1))
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


def _problem_of(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "It is encrypted in the zip."
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return ""
    return f"It is packed in a way that is not read here (method {info.compress_type} of the zip)."
