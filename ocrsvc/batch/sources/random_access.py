"""Reads a file at any place, from any thread."""

from __future__ import annotations

import os
import threading
from typing import BinaryIO


class RandomAccess:
    """A file that is read at any place, by any thread; `close` it.

    Args:
        file: Open for reading, with `seek`; belongs to this from now on.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        try:
            self._descriptor: int | None = file.fileno()
        except (OSError, AttributeError):
            # A file of an object store has none.
            self._descriptor = None
        self.size = file.seek(0, os.SEEK_END)

    def read_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there, fewer only at the end of the file. Raises OSError."""
        pieces: list[bytes] = []
        # An archive may name a place that no file can have, which the system's calls do not take.
        size = min(size, self.size - offset) if offset >= 0 else 0
        while size > 0 and (piece := self._read_some(offset, size)):
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_some(self, offset: int, size: int) -> bytes:
        if self._descriptor is not None:
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
