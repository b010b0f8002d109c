"""Bounds how many groups are under way at services at once, and the bytes of their files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# How many may be under way can change without any of them ending, as where names are looked up anew.
_ASK_AGAIN_S: Final = 5.0


class GroupAdmission:
    """So many groups, and so many bytes, may be under way at once; a file that is larger than that is alone.

    For any thread.

    Args:
        most_bytes: Of all files together.
        most_at_once: Gives how many groups may be under way now.
    """

    def __init__(self, most_bytes: int, most_at_once: Callable[[], int]) -> None:
        self._most_bytes, self._most_at_once = most_bytes, most_at_once
        self._bytes = self._groups = 0
        self._left = threading.Condition()

    @contextmanager
    def entered(self, size_bytes: int) -> Iterator[None]:
        """Wait until there is room for a group with a file of this size, and keep it for the block."""
        with self._left:
            while not self._has_room(size_bytes):
                self._left.wait(_ASK_AGAIN_S)
            self._bytes += size_bytes
            self._groups += 1
        try:
            yield
        finally:
            with self._left:
                self._bytes -= size_bytes
                self._groups -= 1
                self._left.notify_all()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._groups:
            return True
        return self._groups < self._most_at_once() and self._bytes + size_bytes <= self._most_bytes
