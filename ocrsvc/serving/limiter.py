"""Limits how many callers do something expensive at once, and how many wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.errors import QueueFull

_CHECK_S: Final = 0.25


class Limiter:
    """A bounded number of callers at once, and a bounded number that wait. For any thread.

    Args:
        at_once: Callers inside the block at most.
        waiting: Callers that wait for it at most.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._running = threading.Semaphore(at_once)
        self._admitted = threading.Semaphore(at_once + waiting)

    @contextmanager
    def take(self, check: Callable[[], object]) -> Iterator[None]:
        """Enter the block when fewer than `at_once` are inside; `check` raises to stop waiting. Raises QueueFull."""
        if not self._admitted.acquire(blocking=False):
            raise QueueFull("Too many documents are being opened, stored or made.", "Send it again in a moment.", 2)
        try:
            while not self._running.acquire(timeout=_CHECK_S):
                check()
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._admitted.release()
