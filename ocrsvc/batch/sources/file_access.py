"""Finds and opens the files that sources are made of, wherever they are: on this machine, or in an object store.

Everything of `batch.sources` opens files through `open_file`, so that archives are read wherever they are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ocrsvc.batch.sources.planning_counts import PlanningCounts


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its folder lists it; nothing of it was read.

    Attributes:
        address: Path or URL.
        name: As results call it: valid text.
        size: Bytes.
        version: Text that changes with its content: size and time of the last change, or an object store's ETag.
        is_named: Whether the source names it itself, so that it is planned whatever it is.
        problem: Why it cannot be read; "" where nothing is known of that.
    """

    address: str
    name: str
    size: int
    version: str
    is_named: bool = False
    problem: str = ""


class FileAccess(Protocol):
    """The files of one kind of address; for any thread.

    Attributes:
        reads_heads: Whether the beginnings of a million files may be read to learn what they are.
    """

    reads_heads: bool

    def find(self, source: str, counts: PlanningCounts) -> Iterator[FoundFile]:
        """The files of a source: a file, those below a folder, or of a pattern, in a stable order.

        Memory is bounded whatever a folder holds. Raises SourceGone if there is no such source.
        """

    def address_of(self, source: str) -> str:
        """The address of a file, by which every process finds it."""

    def look_at(self, address: str) -> FoundFile:
        """A file as it is now. Raises OSError."""

    def open(self, address: str) -> BinaryIO:
        """A file for reading, with `seek`. Raises OSError."""


def access_of(_address: str) -> FileAccess:
    """What reads the files of an address. Raises BadOption for one of a kind that is not read."""
    from ocrsvc.batch.sources.local_access import LocalAccess

    return LocalAccess()


def open_file(address: str) -> BinaryIO:
    """A file for reading at any place, unbuffered; to be closed. Raises OSError."""
    return access_of(address).open(address)


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
