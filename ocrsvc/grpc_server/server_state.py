"""State shared by all connections of a gRPC server: methods, memory, API keys, metrics, threads."""

import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from ocrsvc.grpc_server import limits
from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_server.call_metrics import CallMetrics, CallRecord
from ocrsvc.grpc_server.messages import Answer
from ocrsvc.grpc_server.method import LOGGER, Methods
from ocrsvc.results import ignore
from ocrsvc.serving.memory_budget import Budget, SharedLimits
from ocrsvc.telemetry.request_ids import with_ids

Outcome = Answer | BaseException

_WARN_INTERVAL_S: Final = 60.0


@dataclass(eq=False)
class ServerState:
    """The state of one server, for use on the loop's thread."""

    methods: Methods
    # Number of pool threads.
    threads: int
    max_bytes: int
    # Time limit of a call; a client may set a shorter one.
    limit_s: float
    shared: SharedLimits
    call_metrics: CallMetrics
    # Called with 1 when a message is given to a pool thread, with -1 when its answer is done.
    on_call: Callable[[int], object] = ignore
    # Checks API keys; if None, calls need no key.
    access: CallAccess | None = None
    # Number of answers in progress.
    running: int = 0
    # Time limit for handling one connection's frames in one go; the loop sets it from the number of busy connections.
    turn_s: float = limits.TURN_S
    # Called by pool threads to wake the loop.
    wake: Callable[[], object] = ignore

    def __post_init__(self) -> None:
        self.memory, self.callers = self.shared.memory, self.shared.callers
        # Memory budget for incomplete messages; a message of the largest size must fit.
        arriving_bytes = max(limits.ARRIVING_PART * self.memory.total_bytes, self.max_bytes + limits.MAX_FRAME)
        self.arriving = Budget(int(arriving_bytes))
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="rpc")
        self._done: deque[Callable[[], None]] = deque()
        # Calls that wait for a thread, each with the function that resumes it.
        self.queue: dict[object, Callable[[], None]] = {}
        self._warned_s: dict[str, float] = {}

    @property
    def has_thread(self) -> bool:
        """Whether a thread is free."""
        return self.running < self.threads

    def run(self, make: Callable[[], Answer], record: CallRecord, on_outcome: Callable[[Outcome], None]) -> None:
        """Call `make` in a pool thread, then `on_outcome` with its answer or error on the loop's thread."""
        self.running += 1
        self.on_call(1)
        self._pool.submit(self._work, make, record, on_outcome)

    def deliver(self) -> None:
        """On the loop's thread: call `on_outcome` for the answers that pool threads have made."""
        while self._done:
            self._done.popleft()()

    def warn(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Log a warning; the same message at most once a minute."""
        now_s = time.monotonic()
        if now_s - self._warned_s.get(message, -_WARN_INTERVAL_S) >= _WARN_INTERVAL_S:
            self._warned_s[message] = now_s
            LOGGER.warning(message, *values, exc_info=exc_info)

    def close(self) -> None:
        """Cancel answers that no thread has begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, make: Callable[[], Answer], record: CallRecord, on_outcome: Callable[[Outcome], None]) -> None:
        """Make one answer, in a pool thread."""
        guard = self.shared.guard
        guarded = guard.request(record.path, record.id) if guard is not None else nullcontext()
        with with_ids(record.id, record.trace), guarded:
            outcome = outcome_of(make)
        self._done.append(partial(self._finish, on_outcome, outcome))
        self.wake()

    def _finish(self, on_outcome: Callable[[Outcome], None], outcome: Outcome) -> None:
        self.running -= 1
        self.on_call(-1)
        # Give the free thread to queued calls before this call's next message, so that a stream cannot keep it forever.
        while self.queue and self.has_thread:
            self.queue.pop(next(iter(self.queue)))()
        on_outcome(outcome)


def outcome_of(make: Callable[[], Answer]) -> Outcome:
    """The answer, or the error that `make` raised."""
    try:
        return make()
    except BaseException as error:  # noqa: BLE001  the edge: an error ends only this call
        # Free the local variables in the traceback; otherwise images would stay in memory until garbage collection.
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        return error
