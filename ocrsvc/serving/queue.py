"""Who runs next: a bounded queue of work, ordered by deadline, whose places are taken before the work is made.

A place is reserved first (`reserve`), so that a request that cannot be served is refused before its image is decoded,
and given back when the work leaves the queue, whatever way. Work is bounded by count and by bytes: a few large images
are as much as many small ones. Knows nothing about OCR.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ocrsvc.errors import NotReady, QueueFull

W = TypeVar("W")
A = TypeVar("A")

PACE_WEIGHT = 0.1  # of the newest item in the running mean of service times


@dataclass(frozen=True, slots=True)
class Served(Generic[A]):
    """An answer, the seconds its work waited in the queue, and the seconds it ran."""

    answer: A
    queue_s: float
    run_s: float


@dataclass(order=True, slots=True)
class Item(Generic[W, A]):
    """One piece of work in the queue: earliest deadline first, then first come first served."""

    deadline: float
    serial: int
    work: W = field(compare=False)
    size_bytes: int = field(compare=False)
    queued_at: float = field(compare=False)
    future: Future[Served[A]] = field(compare=False)


class WorkQueue(Generic[W, A]):
    """A bounded, deadline-ordered queue. All methods may be called from any thread.

    Args:
        places: Most items that may wait (or be in the making) at once.
        most_bytes: Bytes of waiting work from which no more is admitted.
        servers: Threads that take from it; only used to foretell when a place comes free.
        clock: Monotonic seconds.
    """

    def __init__(self, places: int, most_bytes: int, servers: int, clock: Callable[[], float]) -> None:
        self._places = places
        self._most_bytes = most_bytes
        self._servers = servers
        self._clock = clock
        self._taken = 0
        self._running = 0
        self._bytes = 0
        self._heap: list[Item[W, A]] = []
        self._serials = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._mean_run_s = 0.0

    def reserve(self) -> None:
        """Take a place. Raises QueueFull when none is free, NotReady when the queue is closed."""
        with self._changed:
            if self._closed:
                raise _shutting_down()
            if self._taken >= self._places:
                raise self._full(f"All {self._places} places in front of the engine are taken.")
            if self._bytes >= self._most_bytes:
                raise self._full(f"{self._bytes} bytes of images wait for the engine; {self._most_bytes} are the most.")
            self._taken += 1

    def release(self) -> None:
        """Give back a reserved place whose work was never put."""
        with self._changed:
            self._taken -= 1

    def put(self, work: W, deadline: float, size_bytes: int = 0) -> Item[W, A]:
        """Queue work in a place reserved before; `deadline` is on the queue's clock. Raises NotReady once closed."""
        item: Item[W, A] = Item(deadline, next(self._serials), work, size_bytes, self._clock(), Future())
        with self._changed:
            if self._closed:
                raise _shutting_down()
            heapq.heappush(self._heap, item)
            self._bytes += size_bytes
            self._changed.notify()
        return item

    def discard(self, item: Item[W, A]) -> None:
        """Nobody waits for this item any more: give back its place at once, unless a server has it already."""
        with self._changed:
            if item in self._heap:
                self._heap = [other for other in self._heap if other is not item]
                heapq.heapify(self._heap)
                self._leave(item)
        item.future.cancel()

    def take(self, most: int, patience_s: float | None = None) -> list[Item[W, A]] | None:
        """Block until there is work, and take up to `most` items that are still wanted.

        Cancelled and expired items are dropped here, so they never reach a server. Empty once closed and drained; None
        when nothing came for `patience_s` seconds.
        """
        with self._changed:
            while True:
                taken: list[Item[W, A]] = []
                while self._heap and len(taken) < most:
                    item = heapq.heappop(self._heap)
                    self._leave(item)
                    if self._is_wanted(item):
                        taken.append(item)
                if taken or self._closed:
                    self._running += len(taken)
                    return taken
                if not self._changed.wait(patience_s):
                    return None

    def record_run(self, items: int, run_s: float) -> None:
        """Tell that taken items are done, and how long they ran together; feeds the Retry-After of later refusals."""
        with self._changed:
            self._running -= items
            old = self._mean_run_s or run_s / items
            self._mean_run_s = old + PACE_WEIGHT * (run_s / items - old)

    def close(self) -> None:
        """Refuse new work; what is queued is still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Answer everything still queued with NotReady."""
        with self._changed:
            left, self._heap = self._heap, []
            for item in left:
                self._leave(item)
        for item in left:
            if item.future.set_running_or_notify_cancel():
                item.future.set_exception(_shutting_down())

    def waiting(self) -> int:
        """Places taken now."""
        with self._changed:
            return self._taken

    def _is_wanted(self, item: Item[W, A]) -> bool:
        if item.deadline <= self._clock():
            item.future.cancel()
        return item.future.set_running_or_notify_cancel()

    def _leave(self, item: Item[W, A]) -> None:
        self._taken -= 1
        self._bytes -= item.size_bytes

    def _full(self, detail: str) -> QueueFull:
        ahead = self._taken + self._running
        return QueueFull(
            detail,
            "Send the request again after the time that Retry-After names.",
            retry_after_s=max(1, math.ceil(ahead * self._mean_run_s / self._servers)),
        )


def _shutting_down() -> NotReady:
    return NotReady("This worker is shutting down.", "Send the request again.")
