"""The threads of requests: callers take turns for them, few requests begin at once, and quick ones have their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from ocrsvc.access.key_routes import HEALTH_PATHS
from ocrsvc.plugins import adapters
from ocrsvc.serving.limiter import CallerTurns

AT_ONCE: Final = 3
"""Requests that begin at once: more threads that compute only take the interpreter from each other."""
SETTLED_S: Final = 0.005
"""How long a request begins: most are over by then, or wait for the engine, a process or the disk."""
# However many requests wait for the engine: health checks and operators find a thread.
_RESERVED: Final = 2
# Every other path is slow until it is listed here, so a new route can never delay a health check. What operators look
# at comes from memory; /ops/keys is not among it, as it asks the store of the keys.
_QUICK: Final = ("/", "/index.html", "/ops", "/version", "/openapi.json", "/metrics")
_QUICK_OPS: Final = ("/ops/overview", "/ops/workers", "/ops/quarantine")
_QUICK_FILES: Final = ("/static/", "/ops/static/")

T = TypeVar("T")


def quick_paths(names: Iterable[str]) -> frozenset[str]:
    """The whole paths that the reserved threads answer where these adapters are on: health and figures."""
    of_adapters = (path for name in names for path in adapters()[name].health_paths)
    return frozenset((*HEALTH_PATHS, *of_adapters, *_QUICK, *_QUICK_OPS))


def is_quick(method: str, path: str, known: frozenset[str]) -> bool:
    """Whether a request without a body is known to need neither the engine nor time."""
    # As the router sees it: percent-decoded, with one slash at its beginning.
    routed = "/" + unquote_to_bytes(path).decode("latin-1").lstrip("/")
    return method in {"GET", "HEAD"} and (routed in known or routed.startswith(_QUICK_FILES))


class StartLimiter:
    """Which requests begin now: a few at once, each for `settled_s` at most. For any thread."""

    def __init__(
        self, at_once: int = AT_ONCE, settled_s: float = SETTLED_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._settled_s, self._clock = at_once, settled_s, clock
        self._changed = threading.Condition()
        # Until when each counts, the first first.
        self._until_s: dict[object, float] = {}

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
        """Seconds until one more may begin, if none ends before; 0 for now."""
        now_s = self._clock()
        self._until_s = {begun: end_s for begun, end_s in self._until_s.items() if end_s > now_s}
        return 0.0 if len(self._until_s) < self._at_once else next(iter(self._until_s.values())) - now_s


class RequestThreads:
    """Running threads that callers take turns for, and a few for quick requests. Raises RuntimeError."""

    def __init__(self, threads: int, starts: StartLimiter | None = None) -> None:
        self._reserved, self._pool = start_pool(_RESERVED, "reserved"), start_pool(threads, "request")
        self._starts = starts or StartLimiter()
        self._waiting: CallerTurns[Callable[[], object]] = CallerTurns()
        self._lock = threading.Lock()
        # One thread at a time waits until it may begin, so that the next caller is chosen as late as can be.
        self._next = threading.Lock()

    def add_quick(self, run: Callable[[], T]) -> Future[T]:
        """The event loop: run on a reserved thread; the result."""
        return self._reserved.submit(run)

    def add(self, caller: str, run: Callable[[], T]) -> Future[T]:
        """The event loop: run on one of the threads, when it is the caller's turn; the result."""
        done: Future[T] = Future()
        with self._lock:
            self._waiting.put(caller, lambda: _settle(done, run))
        self._pool.submit(self._run_next)
        return done

    def shutdown(self, *, wait: bool = False) -> None:
        """Take no more; what was added is still run."""
        for pool in (self._reserved, self._pool):
            pool.shutdown(wait)

    def _run_next(self) -> None:
        """Pool thread, once for each request that was added: run the one whose turn it is now."""
        with self._next:
            begun = self._starts.begin()
            with self._lock:
                run = self._waiting.take()
        try:
            run()
        finally:
            self._starts.end(begun)


def _settle(done: Future[T], run: Callable[[], T]) -> None:
    try:
        done.set_result(run())
    except BaseException as error:  # noqa: BLE001  as a pool does: it is the result
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
