"""The threads of requests: callers take turns for them, and few requests begin at the same moment.

A caller who sends two hundred requests in a moment would otherwise have them all in front of anybody else's, and as
many threads as there are would ask for the interpreter at once: the event loop, which accepts those of everybody, would
wait for each of them, again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from ocrsvc.serving.caller_turns import CallerTurns

AT_ONCE: Final = 3
"""So many requests begin at once: more threads that compute than this only take the interpreter from each other."""
SETTLED_S: Final = 0.005
"""After which a request begins no more: most are over by then, or wait for the engine, a process or the disk."""

T = TypeVar("T")


class Beginnings:
    """Who begins now: a few at once, each for a moment at most, so that one that takes long holds up nobody.

    For any thread.

    Args:
        at_once: How many.
        settled_s: The moment.
        clock: Monotonic seconds.
    """

    def __init__(
        self, at_once: int = AT_ONCE, settled_s: float = SETTLED_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._settled_s, self._clock = at_once, settled_s, clock
        self._is_one_enough = False
        self._changed = threading.Condition()
        # Until when each counts, the first first.
        self._until_s: dict[object, float] = {}

    def hold_back(self) -> None:
        """One at a time is to begin, because something else is more urgent."""
        self._is_one_enough = True

    def let_go(self) -> None:
        """As many as may are to begin again."""
        if self._is_one_enough:
            with self._changed:
                self._is_one_enough = False
                self._changed.notify()

    def begin(self) -> object:
        """Wait until one more may begin; what `end` wants."""
        with self._changed:
            while (left_s := self.left_s()) > 0:
                self._changed.wait(left_s)
            begun = object()
            self._until_s[begun] = self._clock() + self._settled_s
            return begun

    def end(self, begun: object) -> None:
        """It is over, and counts no more."""
        with self._changed:
            if self._until_s.pop(begun, None) is not None:
                self._changed.notify()

    def left_s(self) -> float:
        """Seconds until one more may begin, if none ends before; at most 0 for now."""
        now_s = self._clock()
        while self._until_s and (first_s := next(iter(self._until_s.values()))) <= now_s:
            del self._until_s[next(iter(self._until_s))]
        return 0.0 if len(self._until_s) < (1 if self._is_one_enough else self._at_once) else first_s - now_s


class RequestThreads:
    """A pool of threads that callers take turns for.

    Args:
        pool: The threads.
        beginnings: Which of their requests begin.
    """

    def __init__(self, pool: ThreadPoolExecutor, beginnings: Beginnings | None = None) -> None:
        self._pool, self._beginnings = pool, beginnings or Beginnings()
        self._waiting: CallerTurns[Callable[[], object]] = CallerTurns()
        self._added = 0
        self._lock = threading.Lock()
        # One thread at a time waits until it may begin, so that whose turn it is is decided as late as can be.
        self._next = threading.Lock()

    def add(self, caller: str, run: Callable[[], T]) -> Future[T]:
        """The event loop: run on one of the threads, when it is the caller's turn; the result. `start` starts it."""
        done: Future[T] = Future()
        with self._lock:
            self._waiting.put(caller, lambda: _settle(done, run))
        self._added += 1
        return done

    def start(self) -> None:
        """The event loop, before it waits: wake threads for what was added."""
        self._beginnings.let_go()
        while self._added:
            self._pool.submit(self._run_next)
            self._added -= 1

    def hold_back(self) -> None:
        """The event loop, after it waited: until `start` it has the interpreter first."""
        self._beginnings.hold_back()

    def _run_next(self) -> None:
        """Pool thread: as often as requests were added, each time the one whose turn it is then."""
        with self._next:
            begun = self._beginnings.begin()
            with self._lock:
                run = self._waiting.take()
        try:
            run()
        finally:
            self._beginnings.end(begun)


def _settle(done: Future[T], run: Callable[[], T]) -> None:
    try:
        done.set_result(run())
    except BaseException as error:  # noqa: BLE001  as a pool does: whoever waits for the result learns it
        done.set_exception(error)


def start_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool of running threads: one that the system refuses later would fail a request. Raises RuntimeError."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    together = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
        together.wait()
    except BaseException:
        # A signal that ends the worker, too: the process would wait for those that wait here for ever.
        together.abort()
        raise
    return pool
