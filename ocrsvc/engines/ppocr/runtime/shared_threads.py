"""Threads that the pages of one process share: a page that is alone uses all of them, otherwise each page its own.

Each page that is being read occupies one thread. Free threads help other pages, one item at a time, and stop when pages
occupy every thread. So under load the service works as if there were no helpers.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SharedThreads:
    """`count` threads, shared by the pages of one process. Thread-safe."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._occupied = self._helping = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="helper")
        # Start all threads now: the memory of threads that start later, under load, would look like a leak.
        ready = threading.Barrier(count)
        for _ in range(count - 1):
            self._pool.submit(ready.wait)
        ready.wait()

    def page(self) -> AbstractContextManager[None]:
        """Occupy a thread while a page is read inside the block."""
        return self._counting(1)

    def released_thread(self) -> AbstractContextManager[None]:
        """Free the page's thread for other pages while the page waits inside the block."""
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
        """Reserve all other threads if the caller's page is the only one; yields whether that succeeded."""
        with self._lock:
            alone = self.count > 1 and self._occupied <= 1 and not self._helping
            self._helping += (self.count - 1) * alone
        try:
            yield alone
        finally:
            with self._lock:
                self._helping -= (self.count - 1) * alone

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return `work` of each item; this thread starts at the first item, helpers at the last. Raises as `work`."""
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
        """End the threads; no call may be in progress."""
        self._pool.shutdown()

    def _help(self, work: Callable[[T], R], items: Sequence[T], pending: deque[int], done: dict[int, R]) -> None:
        try:
            while pending and self._occupied + self._helping <= self.count:
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


class SharedThreadsLender:
    """Lends threads to this process's engines, so that several models share them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, SharedThreads] = {}
        self._users: dict[int, int] = {}

    def borrow(self, count: int) -> SharedThreads:
        """Borrow `count` threads, which engines with the same count share; return them with `give_back`."""
        with self._lock:
            self._users[count] = self._users.get(count, 0) + 1
            if count not in self._lent:
                self._lent[count] = SharedThreads(count)
            return self._lent[count]

    def give_back(self, threads: SharedThreads) -> None:
        """Return borrowed threads; they end when their last borrower returns them."""
        with self._lock:
            self._users[threads.count] -= 1
            last = self._lent.pop(threads.count) if not self._users[threads.count] else None
        if last is not None:
            last.close()


LENDER: Final = SharedThreadsLender()  # the lender of this process


def _do_next(work: Callable[[T], R], items: Sequence[T], take: Callable[[], int], done: dict[int, R]) -> None:
    """Process the item whose index `take` pops; do nothing if another thread took the last one."""
    try:
        index = take()
    except IndexError:
        return
    done[index] = work(items[index])
