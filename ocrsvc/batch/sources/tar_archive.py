"""Tars, packed or not: listed by tarfile, members loaded by their place."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, Final

from ocrsvc.batch.sources.find_files import open_file
from ocrsvc.batch.sources.source_files import HEAD_BYTES, Member, MemberNames, read_fully, too_large
from ocrsvc.errors import BrokenArchive, SourceGone

_MOST_READ_BYTES: Final = 1024 * 1024
"""What tarfile reads at once of a file are headers and long names; larger ones are bombs."""
_PIECE_BYTES: Final = 256 * 1024
_HISTORY_BYTES: Final = 24 * 1024 * 1024
_MOST_STREAMS: Final = 3
_MOST_WINDOW_BYTES: Final = 128 * 1024 * 1024
_FREE_BYTES: Final = 1 << 30
"""What may be unpacked however small the archive is."""
_MOST_RATIO: Final = 1000
_CUT_OFF: Final = "The tar is cut off in it."

ReadAt = Callable[[int, int], bytes]
"""So many bytes at an offset, fewer at the end."""


class TarArchive:
    """A tar, any place of which can be read; see Archive."""

    def __init__(self, address: str) -> None:
        self._file = open_file(address)
        self._lock = threading.Lock()

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        yield from _members(self._read_at, self._file.seek(0, os.SEEK_END))

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        return _load(self._read_at, place, most_bytes)

    def close(self) -> None:
        """As Archive.close."""
        self._file.close()

    def _read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            return read_fully(self._file, size)


class PackedTarArchive:
    """A tar packed with gzip, Zstandard, bzip2 or xz, read from its beginning; see Archive.

    A few passes are open, each with what it read last, so that threads need not ask quite in order.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._passes: list[_Pass] = []
        self._lock = threading.Lock()

    def members(self) -> Iterator[Member]:
        """As Archive.members."""
        with ExitStack() as opened:
            stream = _Pass(_Unpacked(self._address), 2 * _MOST_READ_BYTES)
            opened.callback(stream.close)
            yield from _members(stream.read_at, None)

    def load(self, place: str, most_bytes: int) -> bytes:
        """As Archive.load."""
        return _load(self._read_at, place, most_bytes)

    def close(self) -> None:
        """As Archive.close."""
        with self._lock:
            while self._passes:
                self._passes.pop().close()

    def _read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            able = [one for one in self._passes if one.begin <= offset]
            if able:
                nearest = max(able, key=lambda one: one.end)
                self._passes.remove(nearest)
            else:
                if len(self._passes) == _MOST_STREAMS:
                    self._passes.pop(0).close()
                nearest = _Pass(_Unpacked(self._address), _HISTORY_BYTES)
            self._passes.append(nearest)
            return nearest.read_at(offset, size)


class _Pass:
    """One pass over what an archive unpacks to, from `begin` to `end` of which is held."""

    def __init__(self, stream: _Unpacked, history_bytes: int) -> None:
        self._stream, self._history_bytes = stream, history_bytes
        self._pieces: deque[bytes] = deque()
        self.begin = self.end = 0

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there, which is not before `begin`; fewer at the end. Raises as the stream."""
        while self.end < offset + size and (piece := self._stream.read(_PIECE_BYTES)):
            self._pieces.append(piece)
            self.end += len(piece)
            while self._pieces and self.begin + len(self._pieces[0]) <= min(offset, self.end - self._history_bytes):
                self.begin += len(self._pieces.popleft())
        found, at = [], self.begin
        for piece in self._pieces:
            if at + len(piece) > offset and at < offset + size:
                found.append(piece[max(0, offset - at) : offset + size - at])
            at += len(piece)
        return b"".join(found)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


class _Unpacked:
    """What a file unpacks to, by the end of its name. Raises OSError, SourceGone and, when read, BrokenArchive.

    No bomb is unpacked to its end: a megabyte of bzip2 may be a terabyte, which would take hours.
    """

    def __init__(self, address: str) -> None:
        with ExitStack() as opened:
            self._file = opened.enter_context(open_file(address))
            self._stream = _unpacker(address.rpartition(".")[2].lower(), self._file)
            opened.pop_all()
        self._bytes = 0

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        try:
            piece: bytes = self._stream.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise _broken(error) from error
        except Exception as error:
            # bz2 says so what is wrong with the data; Zstandard's errors cannot be named without it.
            is_data = isinstance(error, OSError) and error.errno is None
            if is_data or type(error).__name__ == "ZstdError":
                raise _broken(error) from error
            raise
        self._bytes += len(piece)
        if self._bytes > max(_FREE_BYTES, _MOST_RATIO * self._file.tell()):
            raise BrokenArchive(
                f"The archive unpacks to more than {_MOST_RATIO} times its size, as no archive of images does.",
                "Leave it out; or unpack it, and name its folder.",
            )
        return piece

    def close(self) -> None:
        """Close stream and file."""
        try:
            self._stream.close()
        finally:
            self._file.close()


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
        raise SourceGone("Zstandard is not installed.", "Install the extra: ocrsvc[zstd].") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    return unpacker.stream_reader(file, read_across_frames=True, closefd=False)


class _Xz:
    """xz with a limit of memory, which the standard library's file does not have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(memlimit=_MOST_WINDOW_BYTES)

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        while not self._unpacker.eof:
            data = self._file.read(_PIECE_BYTES) if self._unpacker.needs_input else b""
            if not data and self._unpacker.needs_input:
                raise EOFError("it ends early")
            if piece := self._unpacker.decompress(data, size):
                return piece
        return b""

    def close(self) -> None:
        """The file is not this one's."""


class _TarFile(io.RawIOBase):
    """What tarfile reads headers from, as a file; it refuses headers that are bombs."""

    def __init__(self, read_at: ReadAt) -> None:
        super().__init__()
        self._read_at, self._at = read_at, 0

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Have the next read begin there."""
        assert whence == os.SEEK_SET, "tarfile does no other"
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """So many bytes. Raises BrokenArchive."""
        if not 0 <= size <= _MOST_READ_BYTES:
            raise BrokenArchive(
                f"The tar is damaged: the header at byte {self._at} has {size} bytes.", "Make it again."
            )
        data = self._read_at(self._at, size)
        self._at += len(data)
        return data


def _members(read_at: ReadAt, size: int | None) -> Iterator[Member]:
    """The members of a tar, without folders; what came before a failure stands. Raises BrokenArchive."""
    names = MemberNames()
    try:
        with tarfile.open(fileobj=_TarFile(read_at), mode="r:", errors="surrogateescape") as tar:
            end = -1
            while (info := tar.next()) is not None:
                # Else it keeps 1 kB for each.
                tar.members.clear()  # type: ignore[attr-defined]
                if info.size < 0 or info.offset_data <= end:
                    raise tarfile.ReadError("a size is negative")
                end = info.offset_data
                if not info.isdir():
                    yield (member := _member(info, names, read_at, size))
                    if member.problem == _CUT_OFF:
                        return
            # tarfile takes a header that is damaged for the end.
            if read_at(tar.offset, 512).strip(b"\0"):
                raise tarfile.ReadError(f"there is no header at byte {tar.offset}")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise BrokenArchive(f"The tar is cut off or damaged: {error}.", "Make it again.") from error


def _member(info: tarfile.TarInfo, names: MemberNames, read_at: ReadAt, size: int | None) -> Member:
    name = names.name(info.name.encode(errors="surrogateescape"))
    is_plain = info.isreg() and not info.issparse()
    kind = "sparse file" if info.issparse() else "links" if info.issym() or info.islnk() else "devices and pipes"
    problem = "" if is_plain else f"It is no plain file ({kind})."
    if size is not None and is_plain and info.offset_data + info.size > size:
        problem = _CUT_OFF
    head = read_at(info.offset_data, min(HEAD_BYTES, info.size)) if is_plain else b""
    return Member(name, f"{info.offset_data},{info.size}", info.size, head, problem)


def _load(read_at: ReadAt, place: str, most_bytes: int) -> bytes:
    offset, size = map(int, place.split(","))
    if size > most_bytes:
        raise too_large(size, most_bytes)
    data = read_at(offset, size)
    if len(data) < size:
        raise BrokenArchive(_CUT_OFF, "Make the tar again.")
    return data


def _broken(error: Exception) -> BrokenArchive:
    return BrokenArchive(f"The archive is cut off or damaged: {error}.", "Make it again.")
