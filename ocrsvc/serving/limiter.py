"""Limits how many requests do something expensive at the same time and how many wait; callers take turns."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from ocrsvc.errors import QueueFull

_CHECK_S: Final = 0.25

T = TypeVar("T")


class CallerTurns(Generic[T]):
    """A round-robin queue over callers: a caller with many items does not delay the others. Not thread-safe."""

    def __init__(self) -> None:
        # The first caller has the next turn.
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def put(self, caller: str, item: T) -> None:
        """Append an item to the caller's queue."""
        self._queues.setdefault(caller, deque()).append(item)

    def take(self) -> T:
        """Remove and return the first item of the caller whose turn it is. Raises IndexError if the queue is empty."""
        if not self._queues:
            raise IndexError("nothing waits")
        caller, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return item

    def remove(self, caller: str, item: T) -> bool:
        """Remove an item that still waits; returns False if it was already taken."""
        queue = self._queues.get(caller, deque())
        if item not in queue:
            return False
        queue.remove(item)
        if not queue:
            del self._queues[caller]
        return True

    def count(self, caller: str) -> int:
        """Number of this caller's waiting items."""
        return len(self._queues.get(caller, ()))

    def __len__(self) -> int:
        """Number of waiting items of all callers."""
        return sum(map(len, self._queues.values()))


class Limiter:
    """At most `at_once` requests run and `waiting` wait, `waiting_each` per caller; callers take turns. Thread-safe."""

    def __init__(self, at_once: int, waiting: int, waiting_each: int | None = None) -> None:
        self._free = at_once
        self._waiting = waiting
        self._waiting_each = waiting if waiting_each is None else waiting_each
        self._turns: CallerTurns[threading.Event] = CallerTurns()
        self._lock = threading.Lock()

    @contextmanager
    def take(self, check: Callable[[], object], caller: str = "") -> Iterator[None]:
        """Wait for the caller's turn, then run the block; `check` raises to stop waiting. Raises QueueFull."""
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
        """Return an event that is set when the request may run. Raises QueueFull."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
                return turn
            if len(self._turns) >= self._waiting:
                raise QueueFull(
                    "Too many documents are being opened, stored or created.", "Send the request again in a moment.", 2
                )
            if caller and self._turns.count(caller) >= self._waiting_each:
                raise QueueFull(
                    f"This caller already has {self._waiting_each} requests for documents or results waiting here, "
                    "the maximum per caller.",
                    "Send the request again when some of them are answered.",
                    2,
                )
            self._turns.put(caller, turn)
        return turn

    def _end(self) -> None:
        """End a request, and let the next one run."""
        with self._lock:
            if self._turns:
                self._turns.take().set()
            else:
                self._free += 1
