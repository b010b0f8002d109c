"""Request threads: callers take turns, few requests start at the same time, and quick requests have reserved threads.

LoadSharing counts a worker's requests in flight, and compares the number with the other workers'.
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

# Requests that may start at the same time: more computing threads would only compete for the GIL.
AT_ONCE: Final = 3
# How long a request counts as starting: after that most are done, or wait for the engine, a process or the disk.
SETTLED_S: Final = 0.005
# Reserved threads, which serve health checks and operators when all request threads wait for the engine.
_RESERVED: Final = 2
# Paths answered from memory. All other paths are slow by default, so that a new route cannot delay a health check;
# /ops/keys is slow because it reads the key store.
_QUICK: Final = ("/", "/index.html", "/docs", "/ops", "/version", "/openapi.json", "/metrics")
_QUICK_OPS: Final = ("/ops/overview", "/ops/workers", "/ops/denylist")
_QUICK_FILES: Final = ("/static/", "/ops/static/")

T = TypeVar("T")


def quick_paths(names: Iterable[str]) -> frozenset[str]:
    """The exact paths that the reserved threads serve when these adapters are enabled."""
    of_adapters = (path for name in names for path in adapters()[name].health_paths)
    return frozenset((*HEALTH_PATHS, *of_adapters, *_QUICK, *_QUICK_OPS))


def is_quick(method: str, path: str, known: frozenset[str]) -> bool:
    """Whether a request without a body needs no engine and little time, by its method and path."""
    # Normalise the path as the router does: percent-decoded, with one leading slash.
    routed = "/" + unquote_to_bytes(path).decode("latin-1").lstrip("/")
    return method in {"GET", "HEAD"} and (routed in known or routed.startswith(_QUICK_FILES))


class StartLimiter:
    """Limits how many requests start together; a request counts until it ends, at most for `settled_s`. Thread-safe."""

    def __init__(
        self, at_once: int = AT_ONCE, settled_s: float = SETTLED_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._settled_s, self._clock = at_once, settled_s, clock
        self._changed = threading.Condition()
        # The time from which each starting request no longer counts towards `at_once`, oldest request first.
        self._end_s: dict[object, float] = {}

    def begin(self) -> object:
        """Wait until another request may start; return a token for `end`."""
        with self._changed:
            while (left_s := self.left_s()) > 0:
                self._changed.wait(left_s)
            token = object()
            self._end_s[token] = self._clock() + self._settled_s
            return token

    def end(self, token: object) -> None:
        """Call when a request has ended, so that another one may start."""
        with self._changed:
            if self._end_s.pop(token, None) is not None:
                self._changed.notify()

    def left_s(self) -> float:
        """Seconds until another request may start, unless a starting one ends before; 0 if one may start now."""
        now_s = self._clock()
        self._end_s = {token: end_s for token, end_s in self._end_s.items() if end_s > now_s}
        return 0.0 if len(self._end_s) < self._at_once else next(iter(self._end_s.values())) - now_s


class RequestThreads:
    """Request threads, shared fairly by callers, and reserved threads. Raises RuntimeError if one cannot start."""

    def __init__(self, threads: int, starts: StartLimiter | None = None) -> None:
        self._reserved, self._pool = start_pool(_RESERVED, "reserved"), start_pool(threads, "request")
        self._starts = starts or StartLimiter()
        self._waiting: CallerTurns[Callable[[], object]] = CallerTurns()
        self._lock = threading.Lock()
        # Held by the one thread that waits for a start, so that the next caller is chosen only when it can start.
        self._next = threading.Lock()

    def add_quick(self, run: Callable[[], T]) -> Future[T]:
        """Event loop: run a function on a reserved thread."""
        return self._reserved.submit(run)

    def add(self, caller: str, run: Callable[[], T]) -> Future[T]:
        """Event loop: queue a function for a request thread, which runs it when it is the caller's turn."""
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
        """Accept no more functions; functions already added still run."""
        for pool in (self._reserved, self._pool):
            pool.shutdown(wait)

    def _run_next(self) -> None:
        """Pool thread, once per added request: run the request of the caller whose turn it is."""
        with self._next:
            token = self._starts.begin()
            with self._lock:
                run = self._waiting.take()
        try:
            run()
        finally:
            self._starts.end(token)


def start_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Start a pool with all its threads: if the system refused one later, a request would fail. Raises RuntimeError."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    together = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
        together.wait()
    except BaseException:
        # Abort also when a signal ends the worker: the process would wait forever for threads at the barrier.
        together.abort()
        raise
    return pool


class LoadSharing:
    """Counts one worker's requests in flight, and compares the count with that of other workers. Thread-safe."""

    def __init__(self, table: WorkerTable, slot_number: int, engine_threads: int) -> None:
        self._table, self._slot_number, self._engine_threads = table, slot_number, engine_threads
        # Numbers of open requests: those over HTTP, which have a request thread or wait for one; and all, with gRPC.
        self.in_threads = self.in_flight = 0
        self._counting = threading.Lock()

    def count(self, change: int, *, is_grpc: bool = False) -> None:
        """Change the number of requests by `change`, negative when requests end; gRPC uses no request thread."""
        with self._counting:
            self.in_threads += 0 if is_grpc else change
            self.in_flight += change
            self._table.entry(self._slot_number).in_flight = self.in_flight

    @property
    def has_waiting(self) -> bool:
        """Whether more requests are in flight than the engine has threads, so that some wait."""
        return self.in_flight > self._engine_threads

    def is_busier(self) -> bool:
        """Whether requests wait for the engine here while another worker has clearly fewer in flight."""
        return self.has_waiting and self.in_flight - self._fewest_elsewhere() >= max(2, self.in_flight // 8)

    def may_accept_another(self, accepted: int) -> bool:
        """Whether no other worker has fewer requests; this worker's `accepted` new connections count as requests."""
        return self.in_flight + accepted <= self._fewest_elsewhere()

    def _fewest_elsewhere(self) -> int:
        return min(self._table.requests_in_flight(excluding=self._slot_number), default=sys.maxsize)
