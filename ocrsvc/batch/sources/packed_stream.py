"""Unpacks a file from its beginning: gzip, bzip2, xz and Zstandard, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from contextlib import ExitStack
from typing import BinaryIO, Final, cast

from ocrsvc.batch.sources.address_access import open_file
from ocrsvc.batch.sources.forward_stream import ByteStream
from ocrsvc.errors import BrokenArchive, SourceGone

_MOST_MEMORY_BYTES: Final = 128 * 1024 * 1024
"""What xz's and Zstandard's own windows may take."""
_FREE_BYTES: Final = 1 << 30
"""What may be unpacked however small the archive is."""
_MOST_RATIO: Final = 1000
_PIECE_BYTES: Final = 256 * 1024


def open_packed(address: str) -> ByteStream:
    """What a file unpacks to, by the end of its name. Raises OSError and SourceGone."""
    with ExitStack() as opened:
        file = opened.enter_context(open_file(address))
        stream = _Unpacked(_unpacker(address, file), file)
        opened.pop_all()
    return stream


def _unpacker(address: str, file: BinaryIO) -> ByteStream:
    extension = address.rpartition(".")[2].lower()
    if extension in {"gz", "tgz"}:
        return gzip.GzipFile(fileobj=file, mode="rb")
    if extension in {"bz2", "tbz2", "tbz"}:
        return bz2.BZ2File(file)
    if extension in {"xz", "txz"}:
        return _Xz(file)
    return _zstandard(file)


def _zstandard(file: BinaryIO) -> ByteStream:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise SourceGone("Zstandard is not installed.", "Install the extra: ocrsvc[zstd].") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_MEMORY_BYTES)
    return cast("ByteStream", unpacker.stream_reader(file, read_across_frames=True, closefd=False))


class _Unpacked:
    """A stream whose failures are BrokenArchive, which closes its file, and which unpacks no bomb to its end.

    A megabyte of bzip2 may unpack to a terabyte, which would take the planning hours.
    """

    def __init__(self, stream: ByteStream, file: io.IOBase | BinaryIO) -> None:
        self._stream, self._file = stream, file
        self._unpacked_bytes = 0

    def read(self, size: int, /) -> bytes:
        """As ByteStream.read. Raises BrokenArchive."""
        piece = self._read(size)
        self._unpacked_bytes += len(piece)
        if self._unpacked_bytes > max(_FREE_BYTES, _MOST_RATIO * self._file.tell()):
            raise BrokenArchive(
                f"The archive unpacks to more than {_MOST_RATIO} times its size, as no archive of images does.",
                "Leave it out; or unpack it, and name its folder.",
            )
        return piece

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise _broken(error) from error
        except OSError as error:
            # bz2 says so what is wrong with the data; a file that cannot be read has a number.
            if error.errno is None:
                raise _broken(error) from error
            raise
        except Exception as error:
            # Zstandard's errors cannot be named without it.
            if type(error).__name__ != "ZstdError":
                raise
            raise _broken(error) from error

    def close(self) -> None:
        """As ByteStream.close."""
        try:
            self._stream.close()
        finally:
            self._file.close()


class _Xz:
    """xz with a limit of memory, which the standard library's file has not."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(memlimit=_MOST_MEMORY_BYTES)

    def read(self, size: int, /) -> bytes:
        """As ByteStream.read."""
        while not self._unpacker.eof:
            data = self._file.read(_PIECE_BYTES) if self._unpacker.needs_input else b""
            if not data and self._unpacker.needs_input:
                raise EOFError("it ends early")
            if piece := self._unpacker.decompress(data, size):
                return piece
        return b""

    def close(self) -> None:
        """As ByteStream.close; the file is not this one's."""


def _broken(error: Exception) -> BrokenArchive:
    return BrokenArchive(f"The archive is cut off or damaged: {error}.", "Make it again.")
