"""Runs jobs on engine threads, which take them from one bounded queue.

Knows nothing about OCR. A bad job does not affect other jobs: each job gets a result or an error, and if a whole batch
fails, its jobs run again one by one.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Generic

from ocrsvc.errors import DeadlineExceeded, EngineFailed, OcrsvcError
from ocrsvc.results import ignore
from ocrsvc.serving.batcher import run_each_on_failure
from ocrsvc.serving.request_guard import waiting
from ocrsvc.serving.work_queue import CLIENT_CHECK_S, J, NeverStarted, WorkQueue, client_gone, deadline_passed

IDLE_S = 5.0  # after 1 s, pages that come one at a time would page in again what was just freed
# A thread that still runs a job this long after its deadline is stuck; engines check deadlines only between lines.
STUCK_S = 5.0


class Executor(Generic[J]):
    """N threads that run an engine; each passes up to `batch` jobs to one call of `read`.

    `read` returns one answer or error per job, in order; `places` and `may_join` are described in WorkQueue. Each
    thread calls `on_end` when it ends, and `on_idle` once after IDLE_S without a job, if no other thread runs one.
    """

    def __init__(
        self,
        read: Callable[[Sequence[J]], Sequence[object]],
        *,
        threads: int,
        places: int,
        batch: int = 1,
        on_end: Callable[[], object] = ignore,
        on_idle: Callable[[], object] = ignore,
        may_join: Callable[[J, int, J], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._batch = batch
        self._on_end = on_end
        self._on_idle = on_idle
        self._clock = clock
        self.queue: WorkQueue[J] = WorkQueue(places, threads, clock, may_join)
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"engine-{n}", daemon=True) for n in range(threads)
        ]
        self._due: dict[int, float] = {}
        self._calls: dict[int, deque[tuple[Callable[[], object], Future[None]]]] = {}

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, job: J, prepare: Callable[[], object] = ignore) -> None:
        """Reserve a place in the queue, call `prepare`, queue the job. Raises QueueFull, NotReady, and as `prepare`."""
        self.queue.reserve(job.context.priority)
        try:
            prepare()
            self.queue.put(job)
        except BaseException:
            self.queue.release(job.context.priority)
            raise

    def wait(self, job: J) -> Any:
        """Return the job's result. Raises its error, or DeadlineExceeded; if queued, NeverStarted or ClientGone."""
        try:
            with waiting():
                return self._wait(job)
        except CancelledError:
            raise deadline_passed(NeverStarted) from None
        finally:
            if job.cancelled() or not job.done():
                self.queue.discard(job)

    def _wait(self, job: J) -> Any:
        while True:
            left_s = max(0.0, job.deadline - self._clock())
            queued = not job.running()
            with contextlib.suppress(TimeoutError):
                return job.result(min(left_s, CLIENT_CHECK_S) if queued else left_s)
            if left_s <= CLIENT_CHECK_S or not queued:
                raise deadline_passed(NeverStarted if job.cancel() else DeadlineExceeded)
            if job.context.is_gone():
                raise client_gone()

    def idents(self) -> tuple[int, ...]:
        """The threading.get_ident() of each started engine thread."""
        return tuple(thread.ident for thread in self._threads if thread.ident is not None)

    def run_in_each(self, call: Callable[[], object], threads: Sequence[int] | None = None) -> list[Future[None]]:
        """Have `threads`, by default all engine threads, run `call` before their next job; idle threads run it now.

        Returns one future per thread. Wait with a timeout, because a stuck or ended thread never runs the call.
        """
        futures = []
        for thread in self.idents() if threads is None else threads:
            future: Future[None] = Future()
            futures.append(future)
            self._calls.setdefault(thread, deque()).append((call, future))
            self.queue.interrupt(thread)
        return futures

    def stuck_threads(self) -> int:
        """Number of threads that still run a job more than STUCK_S after its deadline."""
        latest = self._clock() - STUCK_S
        return sum(due < latest for due in list(self._due.values()))

    def stop(self, timeout_s: float) -> bool:
        """Refuse new jobs, run queued ones until `timeout_s`, fail the rest; returns whether all threads have ended."""
        self.queue.close()
        deadline = self._clock() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        self.queue.abandon()
        return not any(thread.is_alive() for thread in self._threads)

    def _run_thread(self) -> None:
        try:
            while (jobs := self._take()) or jobs is None:
                if jobs:
                    self._serve(jobs)
        finally:
            self._on_end()

    def _take(self) -> list[J] | None:
        """Wait for the next jobs. Returns [] once the queue is closed and empty, None if it ran `run_in_each` calls."""
        jobs = self.queue.take(self._batch, IDLE_S)
        if jobs is None and not self._run_calls():
            if self._due:
                return None
            self._on_idle()
            jobs = self.queue.take(self._batch)
            if jobs is None:
                self._run_calls()
        return jobs

    def _run_calls(self) -> bool:
        """Run the calls that `run_in_each` queued for this thread; returns whether there were any."""
        calls = self._calls.get(threading.get_ident())
        if not calls:
            return False
        while calls:
            call, future = calls.popleft()
            if future.set_running_or_notify_cancel():
                _run_call(call, future)
        return True

    def _serve(self, jobs: list[J]) -> None:
        began = self._clock()
        self._due[threading.get_ident()] = max(job.deadline for job in jobs)
        answers = run_each_on_failure(self._read, jobs)
        del self._due[threading.get_ident()]
        run_s = self._clock() - began
        for job, answer in zip(jobs, answers, strict=True):
            job.queue_s, job.run_s = began - job.queued_at, run_s
            if isinstance(answer, BaseException):
                job.set_exception(_as_engine_failure(answer))
            else:
                job.set_result(answer)
        self.queue.record_run(len(jobs), run_s)


def _run_call(call: Callable[[], object], future: Future[Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as failure:  # noqa: BLE001  raised in the thread that waits for the future
        future.set_exception(failure)


def _as_engine_failure(failure: BaseException) -> OcrsvcError:
    if isinstance(failure, OcrsvcError):
        return failure
    error = EngineFailed(
        f"The engine failed on this image with {type(failure).__name__}: {failure}.",
        "If other images work, please report this one: it triggers a fault in the engine.",
    )
    error.__cause__ = failure
    return error
