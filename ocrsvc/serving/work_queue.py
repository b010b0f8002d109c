"""A bounded queue of work, interactive before batch, whose places are reserved before the work is made.

A place is reserved first (`reserve`), so that a request that cannot be served is refused before its image is decoded,
and given back when the work leaves the queue, whatever way. Work is bounded by count; what it holds in memory is in the
account of its request. Within a priority the earliest deadline is first. Knows nothing about OCR.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from ocrsvc.errors import ClientGone, DeadlineExceeded, NotReady, QueueFull
from ocrsvc.results import MaskKind, ModelChoice
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.telemetry.ledger import NO_LEDGER, Ledger
from ocrsvc.telemetry.metrics import PageSource

A = TypeVar("A")

Priority = Literal["interactive", "batch"]
"""A person waits for the answer, or a program that has many to send and can wait."""

PRIORITIES: Final[tuple[Priority, ...]] = ("interactive", "batch")

PACE_WEIGHT = 0.1  # of the newest job in the running mean of service times
BATCH_EVERY: Final = 5
"""While both priorities wait, every so many-th job is a batch one: it is slowed down, and never starves."""
BATCH_SHARE: Final = 0.75
"""Of the places, for batch at most: an interactive request finds one of the rest."""
GONE_S: Final = 0.25
"""Between two checks of who waits, or of work that runs, whether the client is still there."""


class PageAccount(Protocol):
    """Counts the pages of one request, for one thread at a time; knows no API keys."""

    @property
    def may_cache(self) -> bool:
        """Whether its pages may be kept in the result cache, and be answered from it."""

    def expect(self, pages: int) -> None:
        """That many are to be read, or found in the cache. Raises OcrsvcError when the caller has fewer left."""

    def take(self) -> None:
        """One is about to be, expected or not. Raises OcrsvcError when the caller has none left."""

    def count(self) -> None:
        """One of them was read, or found."""


class _Uncounted(PageAccount):
    """Pages without a limit."""

    may_cache = True

    def expect(self, pages: int) -> None:
        """Nothing is counted, here and below."""

    def take(self) -> None: ...

    def count(self) -> None: ...


UNCOUNTED: Final[PageAccount] = _Uncounted()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the queue and the reader know of a request."""

    priority: Priority = "interactive"
    # Whether the client has hung up, or the job was deleted. Called when a server takes its work and seldom besides,
    # from any thread, also under the queue's lock: it must not block or raise (there, what raises counts as gone).
    is_gone: Callable[[], bool] = bool
    share: Share = field(default_factory=unlimited)
    pages: PageAccount = UNCOUNTED
    mask: tuple[MaskKind, ...] = ()  # what is to be masked in its answers, whatever its options say
    ledger: Ledger = NO_LEDGER  # of its stages; for the request's own thread
    choice: ModelChoice | None = None  # the model that it asks for beside its options, from a model repository
    source: PageSource = "request"


DEFAULT_CONTEXT: Final = RequestContext()


class Job(Future[A]):
    """One piece of work, which is its own future: until when it is wanted, in monotonic seconds, and for whom."""

    size_bytes = 0  # what it holds in memory while it waits
    queued_at = 0.0  # on the queue's clock
    queue_s = run_s = 0.0  # how long it waited, and how long it ran

    def __init__(self, deadline: float, context: RequestContext = DEFAULT_CONTEXT) -> None:
        super().__init__()
        self.deadline, self.context = deadline, context


J = TypeVar("J", bound=Job[Any])


class WorkQueue(Generic[J]):
    """A bounded queue, ordered by priority and deadline. All methods may be called from any thread.

    The places are for jobs that wait, or are in the making; three quarters of them are open to batch. The servers are
    the threads that take from it, only used to foretell when a place comes free. `may_join` says whether a piece of
    work may be handed out with others: the first of them, how many they are, and it; None where all may.
    """

    def __init__(
        self,
        places: int,
        servers: int,
        clock: Callable[[], float],
        may_join: Callable[[J, int, J], bool] | None = None,
    ) -> None:
        self._places = {"interactive": places, "batch": max(1, int(places * BATCH_SHARE))}
        self._servers = servers
        self._clock = clock
        self._may_join = may_join
        # Threads that are to return from `take` without work.
        self._interrupted: set[int] = set()
        self._taken = dict.fromkeys(PRIORITIES, 0)
        self._running = 0
        # Earliest deadline first, then first come first served.
        self._jobs: dict[Priority, list[J]] = {priority: [] for priority in PRIORITIES}
        self._batch_skipped = 0
        self._changed = threading.Condition()
        self._closed = False
        self._mean_run_s = 0.0

    def check_capacity(self, priority: Priority = "interactive") -> None:
        """Raises QueueFull when no place is free for this priority now, NotReady when the queue is closed.

        Takes no lock: every request asks, and threads that wait for each other here cost more than all else.
        """
        if self._closed:
            raise _shutting_down()
        if self.waiting() >= self._places["interactive"]:
            raise self._full(f"All {self._places['interactive']} places in front of the engine are taken.")
        if self._taken[priority] >= self._places[priority]:
            raise self._full(f"All {self._places[priority]} places that {priority} requests may take are taken.")

    def reserve(self, priority: Priority = "interactive") -> None:
        """Take a place. Raises QueueFull when none is free, NotReady when the queue is closed."""
        with self._changed:
            self.check_capacity(priority)
            self._taken[priority] += 1

    def release(self, priority: Priority = "interactive") -> None:
        """Give back a reserved place: its work was never put, or has left the queue."""
        with self._changed:
            self._taken[priority] -= 1

    def put(self, job: J) -> None:
        """Queue a job in a place reserved before, for the same priority. Raises NotReady once closed."""
        job.queued_at = self._clock()
        with self._changed:
            if self._closed:
                raise _shutting_down()
            insort(self._jobs[job.context.priority], job, key=lambda job: job.deadline)
            self._changed.notify()

    def discard(self, job: J) -> None:
        """Drop a job that is not wanted any more, and give back its place, unless a server has it already."""
        with self._changed:
            waiting = self._jobs[job.context.priority]
            if job in waiting:
                waiting.remove(job)
                self.release(job.context.priority)
        job.cancel()

    def take(self, most: int, timeout_s: float | None = None) -> list[J] | None:
        """Block until there is work, and take up to `most` jobs that are still wanted.

        Cancelled and expired jobs, and those whose client has gone, are dropped here, so they never reach a server.
        Empty once closed and drained; None when nothing came for `timeout_s` seconds, or for `interrupt`.
        """
        with self._changed:
            while True:
                if self._interrupted and threading.get_ident() in self._interrupted:
                    self._interrupted.discard(threading.get_ident())
                    return None
                taken: list[J] = []
                while len(taken) < most and (job := self._pop(taken)):
                    if self._is_wanted(job):
                        taken.append(job)
                        self._count_skipped(job)
                if taken or self._closed:
                    self._running += len(taken)
                    return taken
                if not self._changed.wait(timeout_s):
                    return None

    def interrupt(self, thread: int) -> None:
        """Have a thread, by threading.get_ident(), return from `take` with None, now or as soon as it comes there."""
        with self._changed:
            self._interrupted.add(thread)
            self._changed.notify_all()

    def record_run(self, jobs: int, run_s: float) -> None:
        """Record that taken jobs are done, and how long they ran together, for the Retry-After of later refusals."""
        with self._changed:
            self._running -= jobs
            old = self._mean_run_s or run_s / jobs
            self._mean_run_s = old + PACE_WEIGHT * (run_s / jobs - old)

    def close(self) -> None:
        """Refuse new work; what is queued is still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Answer everything still queued with NotReady."""
        with self._changed:
            while job := self._pop():
                if job.set_running_or_notify_cancel():
                    job.set_exception(_shutting_down())

    def waiting(self) -> int:
        """Places taken now."""
        return sum(self._taken.values())

    def waiting_bytes(self) -> int:
        """Bytes of the work that waits now."""
        return sum(job.size_bytes for jobs in self._jobs.values() for job in tuple(jobs))

    def _pop(self, taken: Sequence[J] = ()) -> J | None:
        """The next job, out of the queue; None when there is none, or none that may join those taken."""
        interactive, batch = self._jobs["interactive"], self._jobs["batch"]
        is_batch_due = not interactive or self._batch_skipped >= BATCH_EVERY - 1
        jobs = batch if batch and is_batch_due else interactive
        if not jobs or (taken and self._may_join and not self._may_join(taken[0], len(taken), jobs[0])):
            return None
        self.release(jobs[0].context.priority)
        return jobs.pop(0)

    def _count_skipped(self, job: J) -> None:
        """Count the interactive jobs that went before a waiting batch one."""
        passes = job.context.priority == "interactive" and bool(self._jobs["batch"])
        self._batch_skipped = self._batch_skipped + 1 if passes else 0

    def _is_wanted(self, job: J) -> bool:
        now = self._clock()
        if job.deadline <= now:
            job.cancel()
        if not job.set_running_or_notify_cancel():
            return False
        # However short it waited: a page that was queued ahead comes here as soon as the one before it is read.
        gone = _gone(job.context)
        if gone is not None:
            job.set_exception(gone)
        return gone is None

    def _full(self, detail: str) -> QueueFull:
        ahead = self.waiting() + self._running
        return QueueFull(
            detail,
            "Send the request again after the time that Retry-After names.",
            retry_after_s=max(1, math.ceil(ahead * self._mean_run_s / self._servers)),
        )


def make_check(context: RequestContext, deadline: float, clock: Callable[[], float]) -> Callable[[], None]:
    """A check that raises DeadlineExceeded from the deadline on, and ClientGone within GONE_S of a hang-up."""
    next_check_s = clock() + GONE_S

    def check() -> None:
        nonlocal next_check_s
        now = clock()
        if now >= deadline:
            raise deadline_passed()
        if now >= next_check_s:
            next_check_s = now + GONE_S
            if context.is_gone():
                raise client_gone()

    return check


class NeverStarted(DeadlineExceeded):
    """The deadline passed while the work was still in the queue, behind other work."""


def deadline_passed(kind: type[DeadlineExceeded] = DeadlineExceeded) -> DeadlineExceeded:
    """What ends work that is not done in time."""
    return kind(
        "The answer did not come before the deadline of this request.",
        "Send it again when the service is less busy, or with a longer X-Request-Timeout.",
    )


def _gone(context: RequestContext) -> ClientGone | None:
    """What ends work that nobody waits for any more, or of which that cannot be told; None where it is wanted."""
    try:
        return client_gone() if context.is_gone() else None
    except Exception as error:  # noqa: BLE001  an engine thread that ended would leave all later work undone
        gone = client_gone()
        gone.__cause__ = error
        return gone


def client_gone() -> ClientGone:
    """What ends work that nobody waits for any more."""
    return ClientGone("The client closed its connection before its answer.")


def _shutting_down() -> NotReady:
    return NotReady("This worker is shutting down.", "Send the request again.")
