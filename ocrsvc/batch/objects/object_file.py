"""An object as a file that is read at any place, in bounded memory."""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from typing import Final

from ocrsvc.batch.objects.contract import Objects, StoredObject

_FIRST_BYTES: Final = 64 * 1024
_AHEAD_BYTES: Final = 1024 * 1024
_PIECES: Final = 4


class ObjectFile(io.RawIOBase):
    """For one thread; the object must not change meanwhile, and on S3 it is an error if it does.

    A read of a megabyte or more is one request. Of smaller ones the first takes 64 KiB, which is enough for a file's
    beginning; later ones a megabyte, of which the last four are kept: the headers of an archive lie close together.

    Args:
        objects: The object store.
        path: Of the object.
        seen: As it was seen last, which it must still be; None for whatever it is.
    """

    def __init__(self, objects: Objects, path: str, seen: StoredObject | None = None) -> None:
        super().__init__()
        self._objects, self._path, self._seen = objects, path, seen
        self._at = 0
        self._pieces: deque[tuple[int, bytes]] = deque(maxlen=_PIECES)

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Have the next read begin there."""
        if whence == os.SEEK_END:
            self._seen = self._seen or self._objects.look_at(self._path)
            offset += self._seen.size
        elif whence == os.SEEK_CUR:
            offset += self._at
        self._at = max(0, offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        """As RawIOBase.readinto. Raises OSError."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._get(len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        """The rest, with one request. Raises OSError."""
        self._seen = self._seen or self._objects.look_at(self._path)
        data = self._get(self._seen.size - self._at)
        self._at += len(data)
        return data + super().readall() if self._at < self._seen.size else data

    def _get(self, size: int) -> bytes:
        """At most so many bytes from here; none at the end."""
        if self._seen is not None:
            size = min(size, self._seen.size - self._at)
        if size <= 0:
            return b""
        for begin, piece in self._pieces:
            if begin <= self._at < begin + len(piece):
                return piece[self._at - begin : self._at - begin + size]
        if size >= _AHEAD_BYTES:
            return self._request(size)
        piece = self._request(max(size, _AHEAD_BYTES if self._pieces else _FIRST_BYTES))
        self._pieces.append((self._at, piece))
        return piece[:size]

    def _request(self, size: int) -> bytes:
        version = "" if self._seen is None else self._seen.version
        try:
            return self._objects.get(self._path, self._at, self._at + size, version)
        except FileExistsError as error:
            raise OSError(errno.ESTALE, "it has changed since it was found") from error
