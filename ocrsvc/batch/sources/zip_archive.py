"""Zips, listed and read by zipfile; only stored and deflated members are unpacked."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final

from ocrsvc.batch.sources.find_files import is_local, open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, MOST_MEMBERS, Found, MemberNames, too_large, too_many_members
from ocrsvc.errors import BrokenArchive

_MOST_DIRECTORY_BYTES: Final = 128 * 1024 * 1024
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_TAIL_BYTES: Final = 65535 + 22 + 20 + 56
_ENCRYPTED, _UTF8 = 0x1, 0x800
_ERRORS: Final = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error, EOFError)


class ZipArchive:
    """A zip; see Archive. A member's place is its number in the directory."""

    def __init__(self, address: str) -> None:
        with ExitStack() as opened, _broken("The zip"):
            # A member is read in pieces of 4 KiB.
            file: Any = open_file(address)
            self._file = opened.enter_context(io.BufferedReader(file))
            _check_directory(self._file)
            self._zip = zipfile.ZipFile(self._file)
            opened.pop_all()
        self._reads_heads = is_local(address)

    def members(self, archive: Found) -> Iterator[Found]:
        """As Archive.members."""
        names = MemberNames()
        for place, info in enumerate(self._zip.infolist()):
            if not info.is_dir():
                problem = _problem_of(info)
                head = b"" if problem or not self._reads_heads else self._read_head(info)
                yield archive.member(names.name(_path_of(info)), str(place), info.file_size, head, problem)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        info = self._zip.infolist()[int(place)]
        if max(info.file_size, info.compress_size) > most_bytes:
            raise too_large(info.file_size, most_bytes)
        with _broken("It"), self._zip.open(info) as member:
            data = member.read()
        if len(data) != info.file_size:
            raise BrokenArchive("It is damaged: the zip says another size.", "Make the zip again.")
        return data

    def close(self) -> None:
        """As Archive.close."""
        self._zip.close()
        self._file.close()

    def _read_head(self, info: zipfile.ZipInfo) -> bytes:
        """The first bytes of a member; none of one that cannot be read, which loading it will say."""
        try:
            with self._zip.open(info) as member:
                return member.read(HEAD_BYTES)
        except _ERRORS:
            return b""


@contextmanager
def _broken(what: str) -> Iterator[None]:
    """What zipfile raises is BrokenArchive."""
    try:
        yield
    except _ERRORS as error:
        raise BrokenArchive(f"{what} is damaged or cut off: {error}.", "Make the zip again.") from error


def _check_directory(file: BinaryIO) -> None:
    """Raises BrokenArchive for a directory that zipfile would take too much memory for."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
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


def _path_of(info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member's name: zipfile takes those that are not said to be UTF-8 for code page 437."""
    is_utf8 = info.flag_bits & _UTF8
    return info.orig_filename.encode("utf-8", "surrogateescape") if is_utf8 else info.orig_filename.encode("cp437")


def _problem_of(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "It is encrypted in the zip."
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return ""
    return f"It is packed in a way that is not read here (method {info.compress_type} of the zip)."
