"""A bounded queue of jobs, interactive before batch. A job gets its place in the queue before it is prepared.

`reserve` comes first, so that a request that cannot be served is refused before its image is decoded. The place becomes
free when the job leaves the queue. The queue limits the number of jobs; their memory is counted per request. Within a
priority the job with the earliest deadline is taken first. Knows nothing about OCR.
"""

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

# Interactive: a person waits for the answer. Batch: a program that sends many pages and can wait.
Priority = Literal["interactive", "batch"]
PRIORITIES: Final[tuple[Priority, ...]] = ("interactive", "batch")

PACE_WEIGHT = 0.1  # weight of the newest job in the moving average of run times
BATCH_EVERY: Final = 5  # while both priorities wait, every fifth job is a batch job, so that none starves
# Largest share of the queue's places for batch jobs; the rest is reserved for interactive requests.
BATCH_SHARE: Final = 0.75
CLIENT_CHECK_S: Final = 0.25  # interval of checks that the client of a waiting or running job is still connected


class PageAccount(Protocol):
    """Counts the pages of one request against the caller's limit. Not thread-safe; knows nothing about API keys."""

    @property
    def may_cache(self) -> bool:
        """Whether this request's pages may be stored in the result cache and answered from it."""

    def expect(self, pages: int) -> None:
        """Announce how many pages will be read. Raises OcrsvcError if the caller has fewer pages left."""

    def take(self) -> None:
        """Reserve a page before reading it, even without `expect`. Raises OcrsvcError if the caller has none left."""

    def count(self) -> None:
        """Count a page that was read, or answered from the cache, against the caller's limit."""


class _Uncounted(PageAccount):
    """A page account without a limit."""

    may_cache = True

    def expect(self, pages: int) -> None:
        """Do nothing, like `take` and `count`: pages are not counted."""

    def take(self) -> None: ...

    def count(self) -> None: ...


UNCOUNTED: Final[PageAccount] = _Uncounted()


def is_never_gone() -> bool:
    """The default `is_gone`: the client is always connected."""
    return False


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the queue and the reader know about a request, besides its images and options."""

    priority: Priority = "interactive"
    # Whether the client has disconnected, or the job was deleted. Any thread may call it, even while it holds the
    # queue's lock, so it must not block. If it raises, the client counts as disconnected.
    is_gone: Callable[[], bool] = is_never_gone
    share: Share = field(default_factory=unlimited)
    pages: PageAccount = UNCOUNTED
    mask: tuple[MaskKind, ...] = ()  # kinds of text to mask in answers, in addition to those in the options
    ledger: Ledger = NO_LEDGER  # records the request's stages; for use in the request's thread only
    choice: ModelChoice | None = None  # a model from the repository, if the request names it outside the options
    source: PageSource = "request"
    keeps_result: bool = False  # whether the same pages will be requested again, in another format


DEFAULT_CONTEXT: Final = RequestContext()


class Job(Future[A]):
    """A queued job, and the future of its result; `deadline` is in monotonic seconds."""

    size_bytes = 0  # memory that the job holds while it is queued
    queued_at = 0.0  # when the job was queued, by the queue's clock
    queue_s = run_s = 0.0  # time in the queue, and time in the engine

    def __init__(self, deadline: float, context: RequestContext = DEFAULT_CONTEXT) -> None:
        super().__init__()
        self.deadline = deadline
        self.context = context


J = TypeVar("J", bound=Job[Any])


class WorkQueue(Generic[J]):
    """A bounded queue, ordered by priority and deadline; thread-safe.

    `places` limits the jobs that wait or are being prepared; batch jobs may take three quarters of these places.
    `servers` is the number of threads that take jobs; it serves to estimate Retry-After. `may_join(first, count, job)`
    says whether `job` may be added to a batch of `count` jobs that begins with `first`; None allows every job.
    """

    def __init__(
        self, places: int, servers: int, clock: Callable[[], float], may_join: Callable[[J, int, J], bool] | None = None
    ) -> None:
        self._places = {"interactive": places, "batch": max(1, int(places * BATCH_SHARE))}
        self._servers = servers
        self._clock = clock
        self._may_join = may_join
        # Ids of threads whose current or next `take` must return None, because `interrupt` was called for them.
        self._interrupted: set[int] = set()
        self._taken = dict.fromkeys(PRIORITIES, 0)
        self._running = 0
        # Queued jobs per priority, earliest deadline first; jobs with the same deadline in the order of arrival.
        self._jobs: dict[Priority, list[J]] = {priority: [] for priority in PRIORITIES}
        self._batch_skipped = 0
        self._changed = threading.Condition()
        self._closed = False
        self._mean_run_s = 0.0

    def check_capacity(self, priority: Priority = "interactive") -> None:
        """Raise QueueFull if no place is free, NotReady if closed. Takes no lock, to avoid contention."""
        if self._closed:
            raise _shutting_down()
        if self.waiting() >= self._places["interactive"]:
            raise self._full(f"All {self._places['interactive']} places in the engine's queue are taken.")
        if self._taken[priority] >= self._places[priority]:
            raise self._full(f"All {self._places[priority]} places for {priority} requests are taken.")

    def reserve(self, priority: Priority = "interactive") -> None:
        """Reserve a place in the queue. Raises QueueFull if none is free, NotReady if the queue is closed."""
        with self._changed:
            self.check_capacity(priority)
            self._taken[priority] += 1

    def release(self, priority: Priority = "interactive") -> None:
        """Free a reserved place in the queue, because its job has left the queue or is not queued after all."""
        with self._changed:
            self._taken[priority] -= 1

    def put(self, job: J) -> None:
        """Queue a job for which a place is reserved. Raises NotReady if the queue is closed."""
        job.queued_at = self._clock()
        with self._changed:
            if self._closed:
                raise _shutting_down()
            insort(self._jobs[job.context.priority], job, key=lambda job: job.deadline)
            self._changed.notify()

    def discard(self, job: J) -> None:
        """Cancel a job; if no thread has taken it yet, remove it and free its place in the queue."""
        with self._changed:
            waiting = self._jobs[job.context.priority]
            if job in waiting:
                waiting.remove(job)
                self.release(job.context.priority)
        job.cancel()

    def take(self, max_jobs: int, timeout_s: float | None = None) -> list[J] | None:
        """Wait until jobs are queued, and take up to `max_jobs` of them.

        Drops cancelled and expired jobs, and jobs whose client has disconnected. Returns an empty list once the queue
        is closed and empty; None after `timeout_s` seconds without a job, or after `interrupt`.
        """
        with self._changed:
            while True:
                if self._interrupted and threading.get_ident() in self._interrupted:
                    self._interrupted.discard(threading.get_ident())
                    return None
                taken: list[J] = []
                while len(taken) < max_jobs and (job := self._pop(taken)):
                    if self._is_wanted(job):
                        taken.append(job)
                        self._count_skipped(job)
                if taken or self._closed:
                    self._running += len(taken)
                    return taken
                if not self._changed.wait(timeout_s):
                    return None

    def interrupt(self, thread: int) -> None:
        """Let the current or next `take` of a thread (its threading.get_ident()) return None."""
        with self._changed:
            self._interrupted.add(thread)
            self._changed.notify_all()

    def record_run(self, jobs: int, run_s: float) -> None:
        """Record that jobs are done, and how long they ran together; this serves to estimate Retry-After."""
        with self._changed:
            self._running -= jobs
            old = self._mean_run_s or run_s / jobs
            self._mean_run_s = old + PACE_WEIGHT * (run_s / jobs - old)

    def close(self) -> None:
        """Refuse new jobs; queued jobs can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Fail all queued jobs with NotReady."""
        with self._changed:
            while job := self._pop():
                if job.set_running_or_notify_cancel():
                    job.set_exception(_shutting_down())

    def waiting(self) -> int:
        """Number of reserved places: jobs that wait or are being prepared."""
        return sum(self._taken.values())

    def waiting_bytes(self) -> int:
        """Memory that the queued jobs hold."""
        return sum(job.size_bytes for jobs in self._jobs.values() for job in tuple(jobs))

    def _pop(self, taken: Sequence[J] = ()) -> J | None:
        """Remove and return the next job; None if there is none, or if it must not share a batch with `taken`."""
        interactive, batch = self._jobs["interactive"], self._jobs["batch"]
        is_batch_due = not interactive or self._batch_skipped >= BATCH_EVERY - 1
        jobs = batch if batch and is_batch_due else interactive
        if not jobs or (taken and self._may_join and not self._may_join(taken[0], len(taken), jobs[0])):
            return None
        self.release(jobs[0].context.priority)
        return jobs.pop(0)

    def _count_skipped(self, job: J) -> None:
        """Count consecutive interactive jobs that were taken while a batch job waited."""
        skips_batch = job.context.priority == "interactive" and bool(self._jobs["batch"])
        self._batch_skipped = self._batch_skipped + 1 if skips_batch else 0

    def _is_wanted(self, job: J) -> bool:
        now = self._clock()
        if job.deadline <= now:
            job.cancel()
        if not job.set_running_or_notify_cancel():
            return False
        # Check even after a short wait: the client may have left while an earlier page of its file was read.
        gone = _gone(job.context)
        if gone is not None:
            job.set_exception(gone)
        return gone is None

    def _full(self, detail: str) -> QueueFull:
        ahead = self.waiting() + self._running
        return QueueFull(
            detail,
            "Send the request again after the time given in Retry-After.",
            retry_after_s=max(1, math.ceil(ahead * self._mean_run_s / self._servers)),
        )


def make_check(context: RequestContext, deadline: float, clock: Callable[[], float]) -> Callable[[], None]:
    """Make a check that raises DeadlineExceeded at the deadline, ClientGone within CLIENT_CHECK_S of a disconnect."""
    next_check_s = clock() + CLIENT_CHECK_S

    def check() -> None:
        nonlocal next_check_s
        now = clock()
        if now >= deadline:
            raise deadline_passed()
        if now >= next_check_s:
            next_check_s = now + CLIENT_CHECK_S
            if context.is_gone():
                raise client_gone()

    return check


class NeverStarted(DeadlineExceeded):
    """The deadline passed while the job was still queued."""


def deadline_passed(kind: type[DeadlineExceeded] = DeadlineExceeded) -> DeadlineExceeded:
    """Make the error for a job that was not done before its deadline."""
    return kind(
        "The request was not answered before its deadline.",
        "Send it again when the service is less busy, or with a longer X-Request-Timeout.",
    )


def _gone(context: RequestContext) -> ClientGone | None:
    """The error for a job whose client has disconnected, or whose `is_gone` raises; None if the client is connected."""
    try:
        return client_gone() if context.is_gone() else None
    except Exception as error:  # noqa: BLE001  an exception here must not end the engine thread
        gone = client_gone()
        gone.__cause__ = error
        return gone


def client_gone() -> ClientGone:
    """Make the error for a job whose client has disconnected."""
    return ClientGone("The client closed its connection before it was answered.")


def _shutting_down() -> NotReady:
    return NotReady("This worker is shutting down.", "Send the request again.")
