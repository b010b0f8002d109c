"""What is asked of an object store: the requests that sources and stores are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its path without the protocol (bucket and name), bytes, and text that changes with its content."""

    path: str
    size: int
    version: str


class Objects(Protocol):
    """The objects of one protocol; for any thread, and not for processes forked from this one.

    Every method sends its request again where that may help, for a bounded time, and then raises OSError:
    FileNotFoundError, PermissionError, TimeoutError, or another whose strerror is a sentence without credentials.

    Attributes:
        checks_versions: Whether `get` gives the version that is asked for or none.
    """

    checks_versions: bool

    def get(self, path: str, begin: int = 0, end: int | None = None, version: str = "") -> bytes:
        """The bytes of an object, or some of them, fewer at its end; of this version where the store can tell.

        FileExistsError says that it has another version by now.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write an object whole; it appears when its last byte is there."""

    def put_new(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; whether it was written.

        Of several callers one is told so; where a store cannot tell them apart (all but S3), those with the same data
        count as one.
        """

    def put_file(self, path: str, file: Path) -> None:
        """Write an object from a file, in pieces if it is large; it appears whole."""

    def look_at(self, path: str) -> StoredObject:
        """An object as it is now."""

    def listing(self, prefix: str) -> Iterator[Sequence[StoredObject]]:
        """The objects whose paths begin so, in the order of their paths, some at a time."""

    def below(self, folder: str) -> Iterator[StoredObject]:
        """The objects below a folder, in an order that stays the same; memory holds one page or folder of them."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; nothing happens to those that are not there."""
