"""Limits how many callers do something expensive at once, and how many wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ocrsvc.errors import QueueFull
from ocrsvc.serving.caller_turns import CallerTurns

_CHECK_S: Final = 0.25


class Limiter:
    """A bounded number of requests at once, and a bounded number that wait, whose callers take turns. For any thread.

    Args:
        at_once: Requests inside the block at most.
        waiting: Requests that wait for it at most.
        waiting_each: Of these at most so many of one caller who is named; None is all.
    """

    def __init__(self, at_once: int, waiting: int, waiting_each: int | None = None) -> None:
        self._free, self._waiting = at_once, waiting
        self._waiting_each = waiting if waiting_each is None else waiting_each
        self._turns: CallerTurns[threading.Event] = CallerTurns()
        self._lock = threading.Lock()

    @contextmanager
    def take(self, check: Callable[[], object], caller: str = "") -> Iterator[None]:
        """Enter the block when it is the caller's turn; `check` raises to stop waiting. Raises QueueFull."""
        turn = self._begin(caller)
        try:
            while not turn.wait(_CHECK_S):
                check()
        except BaseException:
            with self._lock:
                is_waiting = self._turns.remove(caller, turn)
            if not is_waiting:
                self._end()
            raise
        try:
            yield
        finally:
            self._end()

    def _begin(self, caller: str) -> threading.Event:
        """What is set when the turn has come. Raises QueueFull."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
                return turn
            if len(self._turns) >= self._waiting:
                raise QueueFull("Too many documents are being opened, stored or made.", "Send it again in a moment.", 2)
            if caller and self._turns.count(caller) >= self._waiting_each:
                raise QueueFull(
                    f"This caller has {self._waiting_each} requests for documents or results waiting here, the most "
                    "that it may.",
                    "Send it again when some of them are answered.",
                    2,
                )
            self._turns.put(caller, turn)
        return turn

    def _end(self) -> None:
        """Let the next one in."""
        with self._lock:
            if self._turns:
                self._turns.take().set()
            else:
                self._free += 1
