"""Files that the nodes cannot read themselves: their bytes are put into Ray's object store, bounded, and once each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import OcrsvcError

MOST_BYTES: Final = 128 * 1024 * 1024
"""Of files in the object store at a time; a larger one goes alone."""


class FileNotLoaded(Exception):
    """The file cannot be read here either; the cause is the OcrsvcError that says why."""

    def __init__(self, error: OcrsvcError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class _Sent:
    users: int = 0
    reference: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class SentFiles:
    """The files that are in the object store now; for any thread.

    Args:
        put: Puts bytes into the object store, and gives the reference.
        load: Gives the bytes of a file; raises OcrsvcError.
        most_bytes: Of all files together.
    """

    def __init__(
        self, put: Callable[[bytes], Any], load: Callable[[SourceFile], bytes], most_bytes: int = MOST_BYTES
    ) -> None:
        self._put, self._load, self._most_bytes = put, load, most_bytes
        self._sent: dict[str, _Sent] = {}
        self._bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def reference_to(self, file: SourceFile) -> Iterator[Any]:
        """Ray's reference to the bytes of a file, as long as the block runs; waits for room. Raises FileNotLoaded."""
        sent = self._begin(file)
        try:
            with sent.lock:
                if sent.reference is None:
                    sent.reference = self._put(self._loaded(file))
            yield sent.reference
        finally:
            self._end(file, sent)

    def _loaded(self, file: SourceFile) -> bytes:
        try:
            return self._load(file)
        except OcrsvcError as error:
            raise FileNotLoaded(error) from error

    def _begin(self, file: SourceFile) -> _Sent:
        """Others that use the same file share it. The wait ends as their groups do, which have limits of their own."""
        with self._changed:
            self._changed.wait_for(lambda: file.locator in self._sent or self._has_room(file.size))
            if file.locator not in self._sent:
                self._sent[file.locator] = _Sent()
                self._bytes += file.size
            sent = self._sent[file.locator]
            sent.users += 1
            return sent

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._most_bytes

    def _end(self, file: SourceFile, sent: _Sent) -> None:
        with self._changed:
            sent.users -= 1
            if not sent.users:
                del self._sent[file.locator]
                self._bytes -= file.size
                self._changed.notify_all()
