"""What a run needs of the place that holds its ledger and its output: a folder, or an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store: its name from the store's root, with slashes, and its size in bytes."""

    name: str
    size: int


class AppendLog(Protocol):
    """A log that grows at its end; for one writer, which keeps its name to itself."""

    def append(self, data: bytes) -> int:
        """Add bytes that are read back as a whole; gives the offset at which they lie, from the log's beginning."""

    def flush(self) -> None:
        """Have what was appended outlive this process, where that is nearly free; a store may do nothing here."""

    def commit(self) -> None:
        """Return when all that was appended outlives this process and its host. Raises OSError."""

    def close(self) -> None:
        """Give the file back; what was not committed may be lost."""


class Store(Protocol):
    """Files by name; for any thread. Every method raises OSError as `open` does.

    Attributes:
        address: For people: the folder or the URL.
        commit_s: Seconds between two commits of a log that are worth their price here.
    """

    address: str
    commit_s: float

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """The bytes of a file, or so many of them. Raises FileNotFoundError."""

    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file that appears under its name, whole and durable, when the block ends without an error."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one of this name; whether it was written. One of several callers writes it."""

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """The files whose names begin so, in the order of their names."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if there is none."""

    def open_log(self, name: str) -> AppendLog:
        """A new log. Raises FileExistsError if there is one of this name."""

    def log_names(self, prefix: str) -> list[str]:
        """The logs whose names begin so, sorted."""

    def log_size(self, name: str) -> int:
        """Bytes of a log that are committed; 0 if there is none."""

    def read_log(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a log, fewer at its end. A read that begins where something was appended may span what follows."""

    def delete_log(self, name: str) -> None:
        """Remove a log; nothing happens if there is none."""
