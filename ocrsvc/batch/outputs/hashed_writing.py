"""Writes a file of the output and takes its size and SHA-256 on the way, so that it is not read again for them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from ocrsvc.batch.outputs.contract import WrittenFile
from ocrsvc.batch.store.contract import Store

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class HashedFile(io.RawIOBase):
    """A file that is written from its beginning to its end, and hashed meanwhile.

    Args:
        name: In the store.
        output: What the store writes; whoever opened it closes it.
    """

    def __init__(self, name: str, output: BinaryIO) -> None:
        super().__init__()
        self._name, self._output = name, output
        self._size, self._hash = 0, hashlib.sha256()

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes that were written."""
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        """All of them. Raises OSError."""
        view = memoryview(data).cast("B")
        self._output.write(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def written(self) -> WrittenFile:
        """What was written so far."""
        return WrittenFile(self._name, self._size, self._hash.hexdigest())


@contextmanager
def hashed_writing(store: Store, name: str) -> Iterator[HashedFile]:
    """As Store.writing, with `written` to be asked once all is written."""
    with store.writing(name) as output:
        yield HashedFile(name, output)
