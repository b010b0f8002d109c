"""Helper threads that the pages of one process share: a lone page uses all of them, pages among many only their own.

Each page that is being read occupies one thread. Threads that no page occupies help other pages, item by item: a helper
that finds, after an item, that every thread is wanted by a page stops helping. So a loaded service runs as if there
were no helpers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SharedThreads:
    """Hands shared by the pages of one process. All calls may come from any thread.

    Args:
        hands: How many things may be computed at once; hands - 1 threads wait to help.
    """

    def __init__(self, hands: int) -> None:
        self.hands = hands
        self._held = 0
        self._lent = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, hands - 1), thread_name_prefix="helper")
        # Started now, because a thread that appears under load would look like a leak.
        ready = threading.Barrier(hands)
        for _ in range(hands - 1):
            self._pool.submit(ready.wait)
        ready.wait()

    @contextmanager
    def page(self) -> Iterator[None]:
        """Hold a hand while a page is read."""
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1

    @contextmanager
    def hand_laid_down(self) -> Iterator[None]:
        """While a page waits for something, its hand is free for others."""
        with self._lock:
            self._held -= 1
        try:
            yield
        finally:
            with self._lock:
                self._held += 1

    @contextmanager
    def all_hands(self) -> Iterator[bool]:
        """Borrow every other hand at once, if the caller's page is the only one; says whether it got them."""
        with self._lock:
            alone = self.hands > 1 and self._held <= 1 and not self._lent
            self._lent += (self.hands - 1) * alone
        try:
            yield alone
        finally:
            with self._lock:
                self._lent -= (self.hands - 1) * alone

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` of each item, in the same order; begun in the order given. Raises the first failure that it meets."""
        todo = deque(range(len(items)))
        done: dict[int, R] = {}
        helpers: list[Future[None]] = []
        try:
            while todo:
                while len(todo) > 1 + sum(not helper.done() for helper in helpers) and self._borrow():
                    helpers.append(self._pool.submit(self._help, work, items, todo, done))
                _next(work, items, todo, done)
        except BaseException:
            todo.clear()
            raise
        finally:
            failures = [helper.exception() for helper in helpers]
        for failure in failures:
            if failure is not None:
                raise failure
        return [done[index] for index in range(len(items))]

    def close(self) -> None:
        """End the threads; nothing may be under way."""
        self._pool.shutdown()

    def _help(self, work: Callable[[T], R], items: Sequence[T], todo: deque[int], done: dict[int, R]) -> None:
        """One helper's share; its hand goes back at the end."""
        try:
            while todo and self._may_stay():
                _next(work, items, todo, done)
        except BaseException:
            todo.clear()
            raise
        finally:
            with self._lock:
                self._lent -= 1

    def _borrow(self) -> bool:
        with self._lock:
            free = self._held + self._lent < self.hands
            self._lent += free
        return free

    def _may_stay(self) -> bool:
        with self._lock:
            return self._held + self._lent <= self.hands


def _next(work: Callable[[T], R], items: Sequence[T], todo: deque[int], done: dict[int, R]) -> None:
    """Do the next item, unless another thread was quicker."""
    try:
        index = todo.popleft()
    except IndexError:
        return
    done[index] = work(items[index])
