"""The request threads: callers take turns for them, few requests start at once, and quick requests have their own.

LoadSharing counts a worker's requests in flight, and compares them with its siblings'.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from ocrsvc.access.key_routes import HEALTH_PATHS
from ocrsvc.plugins import adapters
from ocrsvc.serving.limiter import CallerTurns
from ocrsvc.telemetry.worker_table import WorkerTable

# Requests that start at once: more computing threads only take the interpreter from each other.
AT_ONCE: Final = 3
# How long a request counts as starting: by then most are finished, or wait for the engine, a process or the disk.
SETTLED_S: Final = 0.005
# Threads that stay free for health checks and operators when all others wait for the engine.
_RESERVED: Final = 2
# Paths answered from memory. All others count as slow, so that a new route cannot delay a health check; /ops/keys is
# slow because it reads the key store.
_QUICK: Final = ("/", "/index.html", "/docs", "/ops", "/version", "/openapi.json", "/metrics")
_QUICK_OPS: Final = ("/ops/overview", "/ops/workers", "/ops/denylist")
_QUICK_FILES: Final = ("/static/", "/ops/static/")

T = TypeVar("T")


def quick_paths(names: Iterable[str]) -> frozenset[str]:
    """The exact paths that the reserved threads serve when these adapters are enabled."""
    of_adapters = (path for name in names for path in adapters()[name].health_paths)
    return frozenset((*HEALTH_PATHS, *of_adapters, *_QUICK, *_QUICK_OPS))


def is_quick(method: str, path: str, known: frozenset[str]) -> bool:
    """Whether a request without a body needs neither the engine nor much time."""
    # As the router sees the path: percent-decoded, with one leading slash.
    routed = "/" + unquote_to_bytes(path).decode("latin-1").lstrip("/")
    return method in {"GET", "HEAD"} and (routed in known or routed.startswith(_QUICK_FILES))


class StartLimiter:
    """Lets a few requests start at once; each counts until it ends, or for `settled_s`. Thread-safe."""

    def __init__(
        self, at_once: int = AT_ONCE, settled_s: float = SETTLED_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._settled_s, self._clock = at_once, settled_s, clock
        self._changed = threading.Condition()
        # When each starting request stops to count, the oldest first.
        self._end_s: dict[object, float] = {}

    def begin(self) -> object:
        """Wait until another request may start; returns a token for `end`."""
        with self._changed:
            while (left_s := self.left_s()) > 0:
                self._changed.wait(left_s)
            token = object()
            self._end_s[token] = self._clock() + self._settled_s
            return token

    def end(self, token: object) -> None:
        """The request has ended: another one may start."""
        with self._changed:
            if self._end_s.pop(token, None) is not None:
                self._changed.notify()

    def left_s(self) -> float:
        """Seconds until another request may start if none ends; 0 for now."""
        now_s = self._clock()
        self._end_s = {token: end_s for token, end_s in self._end_s.items() if end_s > now_s}
        return 0.0 if len(self._end_s) < self._at_once else next(iter(self._end_s.values())) - now_s


class RequestThreads:
    """Threads for requests, which callers take turns for, and reserved threads for quick ones. Raises RuntimeError."""

    def __init__(self, threads: int, starts: StartLimiter | None = None) -> None:
        self._reserved, self._pool = start_pool(_RESERVED, "reserved"), start_pool(threads, "request")
        self._starts = starts or StartLimiter()
        self._waiting: CallerTurns[Callable[[], object]] = CallerTurns()
        self._lock = threading.Lock()
        # Held by the one thread that waits to start, so that the next caller is chosen as late as possible.
        self._next = threading.Lock()

    def add_quick(self, run: Callable[[], T]) -> Future[T]:
        """Event loop: run a function on a reserved thread."""
        return self._reserved.submit(run)

    def add(self, caller: str, run: Callable[[], T]) -> Future[T]:
        """Event loop: run a function on a request thread when it is the caller's turn."""
        done: Future[T] = Future()

        def settle() -> None:
            try:
                done.set_result(run())
            except BaseException as error:  # noqa: BLE001  as a pool does: the error is the result
                done.set_exception(error)

        with self._lock:
            self._waiting.put(caller, settle)
        self._pool.submit(self._run_next)
        return done

    def shutdown(self, *, wait: bool = False) -> None:
        """Accept no more functions; those that were added still run."""
        for pool in (self._reserved, self._pool):
            pool.shutdown(wait)

    def _run_next(self) -> None:
        """Pool thread, once per added request: run the request whose turn it is."""
        with self._next:
            token = self._starts.begin()
            with self._lock:
                run = self._waiting.take()
        try:
            run()
        finally:
            self._starts.end(token)


def start_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all run: a thread refused later would fail a request. Raises RuntimeError."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    together = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
        together.wait()
    except BaseException:
        # Also on a signal that ends the worker: the process would wait for the threads at the barrier forever.
        together.abort()
        raise
    return pool


class LoadSharing:
    """One worker's requests in flight, compared with its siblings'. Thread-safe."""

    def __init__(self, table: WorkerTable, slot_number: int, engine_threads: int) -> None:
        self._table, self._slot_number, self._engine_threads = table, slot_number, engine_threads
        # Requests that have or wait for a request thread, and all requests.
        self.in_threads = self.in_flight = 0
        self._counting = threading.Lock()

    def count(self, change: int, *, is_grpc: bool = False) -> None:
        """Add requests, negative when they end; gRPC uses no request thread."""
        with self._counting:
            self.in_threads += 0 if is_grpc else change
            self.in_flight += change
            self._table.entry(self._slot_number).in_flight = self.in_flight

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for the engine."""
        return self.in_flight > self._engine_threads

    def is_busier(self) -> bool:
        """Whether requests wait for the engine here while a sibling has clearly fewer in flight."""
        return self.has_waiting and self.in_flight - self._fewest_elsewhere() >= max(2, self.in_flight // 8)

    def may_accept_another(self, accepted: int) -> bool:
        """Whether no sibling has fewer requests; just `accepted` connections count as requests."""
        return self.in_flight + accepted <= self._fewest_elsewhere()

    def _fewest_elsewhere(self) -> int:
        return min(self._table.requests_in_flight(excluding=self._slot_number), default=sys.maxsize)
