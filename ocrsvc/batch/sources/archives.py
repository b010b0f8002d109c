"""Zip and tar archives, compressed or not: members are listed by zipfile and tarfile, and loaded by position."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final

from ocrsvc.batch.objects import is_local, open_file
from ocrsvc.batch.sources.source_files import (
    HEAD_BYTES,
    MAX_MEMBERS,
    Found,
    MemberNames,
    read_fully,
    too_large,
    too_many_members,
)
from ocrsvc.errors import BrokenArchive, SourceGone

# Limit of a single read by tarfile, which reads headers and long names; a larger read is an attack on memory.
_MAX_READ_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
_HISTORY_BYTES: Final = 16 * 1024 * 1024
_MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024
# Any archive may unpack to this size; a large one to _MAX_RATIO times its own size.
_FREE_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 1000
_MAX_DIRECTORY_BYTES: Final = 128 * 1024 * 1024
_ENCRYPTED, _UTF8 = 0x1, 0x800
# RuntimeError includes NotImplementedError, which zipfile raises for features that it lacks, such as patched data.
_ZIP_ERRORS: Final = (zipfile.BadZipFile, RuntimeError, ValueError, struct.error, zlib.error, EOFError)


class TarArchive:
    """A tar archive; see Archive. A compressed one (gzip, Zstandard, bzip2, xz) is read by `_Unpacked`."""

    def __init__(self, address: str, *, is_packed: bool = False) -> None:
        self._file: Any = _Unpacked(address) if is_packed else open_file(address)
        self._lock = threading.Lock()
        self.close = self._file.close

    def members(self, archive: Found) -> Iterator[Found]:
        """Members except folders; if the tar is cut off within a member, only loading that member reports it."""
        names = MemberNames()
        try:
            for info in self._headers():
                is_plain = info.isreg() and not info.issparse()
                problem = "" if is_plain else "It is no plain file, but a link, a sparse file or a device."
                head = b"" if problem else self._read_at(info.offset_data, min(HEAD_BYTES, info.size))
                name = names.name(info.name.encode(errors="surrogateescape"))
                yield archive.member(name, f"{info.offset_data},{info.size}", info.size, head, problem)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
            raise BrokenArchive(f"The tar is cut off or damaged: {error}.", "Make it again.") from error

    def load(self, place: str, max_bytes: int) -> bytes:
        offset, size = map(int, place.split(","))
        if size > max_bytes:
            raise too_large(size, max_bytes)
        data = self._read_at(offset, size)
        if len(data) < size:
            raise BrokenArchive("The tar is cut off in it.", "Make the tar again.")
        return data

    def _headers(self) -> Iterator[tarfile.TarInfo]:
        """Headers of all members except folders. Raises TarError, ValueError and similar errors, and BrokenArchive."""
        file: Any = _HeaderFile(self._file)
        with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as tar:
            end = -1
            while (info := tar.next()) is not None:
                # Drop the list of members, which takes 1 kB of memory per member.
                tar.members.clear()  # type: ignore[attr-defined]
                if info.size < 0 or info.offset_data <= end:
                    raise tarfile.ReadError("a size is negative")
                end = info.offset_data
                if not info.isdir():
                    yield info
            # tarfile takes a damaged header for the archive's end, but a real end consists of zero bytes.
            if self._read_at(tar.offset, 512).strip(b"\0"):
                raise tarfile.ReadError(f"there is no header at byte {tar.offset}")

    def _read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            return read_fully(self._file, size)


class _HeaderFile:
    """The file from which tarfile reads headers; reads above _MAX_READ_BYTES raise BrokenArchive."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.tell, self.seek = file, file.tell, file.seek

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            what = f"The tar is damaged: the header at byte {self.tell()} has {size} bytes."
            raise BrokenArchive(what, "Make it again.")
        return read_fully(self._file, size)


class _Unpacked:
    """The decompressed content of a file, with `seek`; seeking back beyond the held bytes decompresses from the start.

    The last 16 to 32 MiB are held, as threads read slightly out of order. Bombs are not decompressed to the end: one
    MB of bzip2 may hold a terabyte, which would take hours. Raises OSError, SourceGone and BrokenArchive.
    """

    def __init__(self, address: str) -> None:
        self._address, self._at = address, 0
        self._begin()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, size: int) -> bytes:
        if self._at < self._first:
            self.close()
            self._begin()
        while self._first + len(self._held) < self._at + size and (piece := self._unpack()):
            self._held += piece
            if len(self._held) > size + 2 * _HISTORY_BYTES:
                passed = min(self._at - self._first, len(self._held) - _HISTORY_BYTES)
                del self._held[:passed]
                self._first += passed
        begin = self._at - self._first
        data = bytes(self._held[begin : begin + size])
        self._at += len(data)
        return data

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        self._file = open_file(self._address)
        self._stream = _unpacker(self._address.rpartition(".")[2].lower(), self._file)
        self._first, self._held = 0, bytearray()

    def _unpack(self) -> bytes:
        try:
            piece: bytes = self._stream.read(_PIECE_BYTES)
        except Exception as error:
            # Errors with an errno are from the system; damaged data raise a different exception in each library.
            if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
                raise
            raise BrokenArchive(f"The archive is cut off or damaged: {error}.", "Make it again.") from error
        if self._first + len(self._held) > max(_FREE_BYTES, _MAX_RATIO * self._file.tell()):
            what = f"The archive unpacks to more than {_MAX_RATIO} times its size, as no archive of images does."
            raise BrokenArchive(what, "Leave it out; or unpack it, and name its folder.")
        return piece


def _unpacker(extension: str, file: BinaryIO) -> Any:
    if extension in {"gz", "tgz"}:
        return gzip.GzipFile(fileobj=file, mode="rb")
    if extension in {"bz2", "tbz2", "tbz"}:
        return bz2.BZ2File(file)
    if extension in {"xz", "txz"}:
        return _Xz(file)
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise SourceGone("Zstandard is not installed.", "Install the extra: pip install '.[zstd]'.") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    return unpacker.stream_reader(file, read_across_frames=True, closefd=False)


class _Xz:
    """A reader of xz with a memory limit, which lzma.LZMAFile does not have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(memlimit=_MAX_WINDOW_BYTES)

    def read(self, size: int) -> bytes:
        while not self._unpacker.eof:
            data = self._file.read(_PIECE_BYTES) if self._unpacker.needs_input else b""
            if not data and self._unpacker.needs_input:
                raise EOFError("it ends early")
            if piece := self._unpacker.decompress(data, size):
                return piece
        return b""


class ZipArchive:
    """A zip archive; see Archive. A member's `place` is its index in the zip's directory."""

    def __init__(self, address: str) -> None:
        with ExitStack() as opened, _broken("The zip"):
            # Buffered, because zipfile reads members in pieces of 4 KiB.
            file: Any = open_file(address)
            reader = opened.enter_context(io.BufferedReader(file))
            _check_directory(reader)
            self._zip = opened.enter_context(zipfile.ZipFile(reader))
            self.close = opened.pop_all().close
        self._reads_heads = is_local(address)

    def members(self, archive: Found) -> Iterator[Found]:
        names = MemberNames()
        for place, info in enumerate(self._zip.infolist()):
            if info.is_dir():
                continue
            problem = "It is encrypted in the zip." if info.flag_bits & _ENCRYPTED else ""
            if not problem and info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                problem = f"It is packed in a way that is not read here (method {info.compress_type} of the zip)."
            head = b"" if problem or not self._reads_heads else self._read_head(info)
            # Restore the name's bytes: zipfile decodes them as code page 437 if the UTF-8 flag is missing.
            is_utf8 = info.flag_bits & _UTF8
            path = info.orig_filename.encode(*(("utf-8", "surrogateescape") if is_utf8 else ("cp437",)))
            yield archive.member(names.name(path), str(place), info.file_size, head, problem)

    def load(self, place: str, max_bytes: int) -> bytes:
        info = self._zip.infolist()[int(place)]
        if max(info.file_size, info.compress_size) > max_bytes:
            raise too_large(info.file_size, max_bytes)
        with _broken("It"), self._zip.open(info) as member:
            data = member.read()
        if len(data) != info.file_size:
            raise BrokenArchive("It is damaged: the zip says another size.", "Make the zip again.")
        return data

    def _read_head(self, info: zipfile.ZipInfo) -> bytes:
        """The first bytes of a member; empty if it cannot be read: loading it will report the error."""
        try:
            with self._zip.open(info) as member:
                return member.read(HEAD_BYTES)
        except _ZIP_ERRORS:
            return b""


@contextmanager
def _broken(what: str) -> Iterator[None]:
    try:
        yield
    except _ZIP_ERRORS as error:
        raise BrokenArchive(f"{what} is damaged or cut off: {error}.", "Make the zip again.") from error


def _check_directory(file: BinaryIO) -> None:
    """Raises BrokenArchive for a zip directory that would take zipfile too much memory."""
    # Only this private function reads the zip's end record without the directory.
    if (end := zipfile._EndRecData(file)) is None:  # type: ignore[attr-defined]  # noqa: SLF001
        return
    _, disk, _, _, members, directory_bytes, *_ = end
    if disk not in {0, 0xFFFF}:
        raise zipfile.BadZipFile("it is one of several volumes")
    if members > MAX_MEMBERS or directory_bytes > _MAX_DIRECTORY_BYTES:
        raise too_many_members(f"a directory of {directory_bytes:,} bytes for {members:,}")
