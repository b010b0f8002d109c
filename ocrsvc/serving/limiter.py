"""Limits how many callers do something expensive at once, and how many wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.errors import QueueFull

_LOOK_UP_S: Final = 0.25


class Turns:
    """A bounded number of turns, and a bounded wait for them. For any thread.

    Args:
        at_once: Turns under way at most.
        waiting: Callers that wait for one at most.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._free = threading.Semaphore(at_once)
        self._room = threading.Semaphore(at_once + waiting)

    @contextmanager
    def take(self, check: Callable[[], object]) -> Iterator[None]:
        """A turn, for as long as the block lasts; `check` raises when nobody waits any more. Raises QueueFull."""
        if not self._room.acquire(blocking=False):
            raise QueueFull("Too many documents are being read.", "Send it again in a moment.", 2)
        try:
            while not self._free.acquire(timeout=_LOOK_UP_S):
                check()
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._room.release()
