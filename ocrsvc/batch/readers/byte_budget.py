"""Bounds the bytes of files that are held at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ByteBudget:
    """So many bytes may be held at once; a file that is larger is held alone. For any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Wait until there is room for a file, and keep it for the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held_bytes or self._held_bytes + size_bytes <= self._most_bytes)
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= size_bytes
                self._changed.notify_all()
