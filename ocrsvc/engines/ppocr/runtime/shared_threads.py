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
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SharedThreads:
    """Threads for `count` items at once, shared by the pages of one process. All calls may come from any thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._occupied = 0
        self._helping = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="helper")
        # Started now, because a thread that appears under load would look like a leak.
        ready = threading.Barrier(count)
        for _ in range(count - 1):
            self._pool.submit(ready.wait)
        ready.wait()

    def page(self) -> AbstractContextManager[None]:
        """Occupy a thread while a page is read."""
        return self._counting(1)

    def released_thread(self) -> AbstractContextManager[None]:
        """While a page waits for something, its thread is free for others."""
        return self._counting(-1)

    @contextmanager
    def _counting(self, occupied: int) -> Iterator[None]:
        with self._lock:
            self._occupied += occupied
        try:
            yield
        finally:
            with self._lock:
                self._occupied -= occupied

    @contextmanager
    def all_threads(self) -> Iterator[bool]:
        """Use every other thread at once, if the caller's page is the only one; says whether it got them."""
        with self._lock:
            alone = self.count > 1 and self._occupied <= 1 and not self._helping
            self._helping += (self.count - 1) * alone
        try:
            yield alone
        finally:
            with self._lock:
                self._helping -= (self.count - 1) * alone

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` of each item, in the same order; begun in the order given, by helpers from the end.

        So where alike items lie side by side, each thread does alike ones. Raises the first failure that it meets.
        """
        pending = deque(range(len(items)))
        done: dict[int, R] = {}
        helpers: list[Future[None]] = []
        try:
            while pending:
                while len(pending) > 1 + sum(not helper.done() for helper in helpers) and self._take_helper():
                    helpers.append(self._pool.submit(self._help, work, items, pending, done))
                _do_next(work, items, pending.popleft, done)
        except BaseException:
            pending.clear()
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

    def _help(self, work: Callable[[T], R], items: Sequence[T], pending: deque[int], done: dict[int, R]) -> None:
        """One helper's share; its thread is free again at the end."""
        try:
            while pending and self._may_help():
                _do_next(work, items, pending.pop, done)
        except BaseException:
            pending.clear()
            raise
        finally:
            with self._lock:
                self._helping -= 1

    def _take_helper(self) -> bool:
        with self._lock:
            free = self._occupied + self._helping < self.count
            self._helping += free
        return free

    def _may_help(self) -> bool:
        with self._lock:
            return self._occupied + self._helping <= self.count


class SharedThreadsLender:
    """Lends the threads of this process to its engines: several models have one lot of them. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, SharedThreads] = {}
        self._users: dict[int, int] = {}

    def borrow(self, count: int) -> SharedThreads:
        """So many threads, which every engine has that asks for as many; to be given back."""
        with self._lock:
            self._users[count] = self._users.get(count, 0) + 1
            if count not in self._lent:
                self._lent[count] = SharedThreads(count)
            return self._lent[count]

    def give_back(self, threads: SharedThreads) -> None:
        """Nobody of this borrower uses them any more; they end with the last one."""
        with self._lock:
            self._users[threads.count] -= 1
            last = self._lent.pop(threads.count) if not self._users[threads.count] else None
        if last is not None:
            last.close()


LENDER: Final = SharedThreadsLender()  # of this process


def _do_next(work: Callable[[T], R], items: Sequence[T], take: Callable[[], int], done: dict[int, R]) -> None:
    """Do the item whose number `take` takes, unless another thread was quicker."""
    try:
        index = take()
    except IndexError:
        return
    done[index] = work(items[index])
