"""Limits how many callers do something expensive at once, and how many wait for it, taking turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from ocrsvc.errors import QueueFull

_CHECK_S: Final = 0.25

T = TypeVar("T")


class CallerTurns(Generic[T]):
    """Items of callers, who take turns: one that brings many keeps no other's waiting. For one thread at a time."""

    def __init__(self) -> None:
        # Who is next comes first.
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def put(self, caller: str, item: T) -> None:
        """Add an item behind those of the same caller."""
        self._lines.setdefault(caller, deque()).append(item)

    def take(self) -> T:
        """The first item of the caller whose turn it is. Raises IndexError where there is none."""
        if not self._lines:
            raise IndexError("nothing waits")
        caller, line = self._lines.popitem(last=False)
        item = line.popleft()
        if line:
            self._lines[caller] = line
        return item

    def remove(self, caller: str, item: T) -> bool:
        """Take an item out of turn; False where it was taken already."""
        line = self._lines.get(caller, deque())
        if item not in line:
            return False
        line.remove(item)
        if not line:
            del self._lines[caller]
        return True

    def count(self, caller: str) -> int:
        """How many items of this caller wait."""
        return len(self._lines.get(caller, ()))

    def __len__(self) -> int:
        """How many items wait."""
        return sum(map(len, self._lines.values()))


class Limiter:
    """A bounded number of requests at once, and a bounded number that wait, whose callers take turns. For any thread.

    Of one caller who is named at most `waiting_each` wait; None is all.
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
