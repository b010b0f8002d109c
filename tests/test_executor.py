"""The threads in front of an engine: every job answered, each apart, in time."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support import Clock, wait_until

from ocrsvc.errors import BrokenImage, ClientGone, DeadlineExceeded, EngineFailed, OcrsvcError, QueueFull
from ocrsvc.serving.executor import STUCK_S, Executor
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Job, RequestContext

FAR_S = 30.0


class Work(Job[str]):
    """A text that is to be answered in capitals."""

    def __init__(self, text: str, deadline_s: float = FAR_S, context: RequestContext = DEFAULT_CONTEXT) -> None:
        super().__init__(time.monotonic() + deadline_s, context)
        self.text = text


class Upper:
    """Answers in capitals, fails on "bad" and "leave", and can be held."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.batches: list[list[str]] = []

    def __call__(self, jobs: Sequence[Work]) -> Sequence[str | OcrsvcError]:
        if self.gate is not None:
            assert self.gate.wait(FAR_S)
        texts = [job.text for job in jobs]
        self.batches.append(texts)
        if "bad" in texts:
            raise ValueError("cannot read this")
        if "leave" in texts:
            raise SystemExit(1)
        return [BrokenImage("half of it is missing.") if text == "broken" else text.upper() for text in texts]


@contextmanager
def running(read: Callable[[Sequence[Work]], Any], *, threads: int = 1, **how: Any) -> Iterator[Executor[Work]]:
    executor = Executor(read, threads=threads, **{"places": 8} | how)
    executor.start()
    try:
        yield executor
    finally:
        assert executor.stop(FAR_S)


def submit(executor: Executor[Work], text: str, deadline_s: float = FAR_S, **context: Any) -> Work:
    work = Work(text, deadline_s, RequestContext(**context))
    executor.submit(work)
    return work


def ask(executor: Executor[Work], text: str, deadline_s: float = FAR_S) -> Any:
    return executor.wait(submit(executor, text, deadline_s))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("broken", BrokenImage, "half of it is missing"),
        ("bad", EngineFailed, "ValueError: cannot read this"),
        ("leave", EngineFailed, "SystemExit"),
    ],
)
def test_failures_reach_their_caller_and_the_thread_survives(text: str, error: type[OcrsvcError], message: str) -> None:
    with running(Upper()) as executor:
        with pytest.raises(error, match=message):
            ask(executor, text)
        assert ask(executor, "a") == "A"


def test_one_bad_job_does_not_fail_its_batch() -> None:
    read = Upper(threading.Event())
    with running(read, batch=4) as executor:
        first = submit(executor, "first")
        wait_until(lambda: executor.queue.waiting() == 0)
        jobs = [submit(executor, text) for text in ("a", "bad", "b")]
        read.gate.set()  # type: ignore[union-attr]
        assert [executor.wait(job) for job in (first, jobs[0], jobs[2])] == ["FIRST", "A", "B"]
        assert read.batches == [["first"], ["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_a_full_queue_refuses_before_preparing_a_job_and_recovers() -> None:
    gate, made = threading.Event(), list[str]()
    with running(Upper(gate), places=1) as executor:
        held = submit(executor, "a")
        wait_until(lambda: executor.queue.waiting() == 0)
        waits = submit(executor, "b")
        with pytest.raises(QueueFull):
            executor.submit(Work("c"), lambda: made.append("c"))
        assert made == []
        gate.set()
        assert (executor.wait(held), executor.wait(waits), ask(executor, "c")) == ("A", "B", "C")


def test_a_place_is_released_when_preparing_a_job_fails() -> None:
    def fail() -> None:
        raise BrokenImage("cannot be decoded.")

    with running(Upper(), places=1) as executor:
        with pytest.raises(BrokenImage):
            executor.submit(Work("a"), fail)
        assert executor.queue.waiting() == 0


def test_wait_raises_at_the_deadline_while_the_engine_still_runs() -> None:
    gate = threading.Event()
    with running(Upper(gate)) as executor:
        with pytest.raises(DeadlineExceeded):
            ask(executor, "stuck", deadline_s=0.05)
        gate.set()
        assert ask(executor, "a") == "A"


def test_a_thread_counts_as_stuck_from_some_time_after_the_deadline_until_its_job_ends() -> None:
    gate, clock = threading.Event(), Clock()
    with running(Upper(gate), clock=clock) as executor:
        job = submit(executor, "slow")
        job.deadline = clock.now_s + 1
        wait_until(job.running)
        clock.now_s += 1 + STUCK_S
        assert executor.stuck_threads() == 0
        clock.now_s += 0.1
        assert executor.stuck_threads() == 1
        gate.set()
        wait_until(lambda: executor.stuck_threads() == 0)


def test_stop_finishes_queued_jobs_and_each_thread_calls_on_end() -> None:
    gate, ended = threading.Event(), list[int]()
    executor = Executor(Upper(gate), threads=3, places=8, on_end=lambda: ended.append(threading.get_ident()))
    executor.start()
    jobs = [submit(executor, text) for text in "abcdef"]
    gate.set()
    assert executor.stop(FAR_S)
    assert [executor.wait(job) for job in jobs] == list("ABCDEF")
    assert sorted(ended) == sorted(executor.idents())


def test_a_job_that_times_out_in_the_queue_releases_its_place() -> None:
    gate = threading.Event()
    with running(Upper(gate), places=1) as executor:
        held = submit(executor, "a")
        wait_until(lambda: executor.queue.waiting() == 0)
        with pytest.raises(DeadlineExceeded):
            ask(executor, "b", deadline_s=0.01)
        assert executor.queue.waiting() == 0
        gate.set()
        assert executor.wait(held) == "A"


def test_an_idle_thread_calls_on_idle_once_and_still_works() -> None:
    idle = threading.Semaphore(0)
    with running(Upper(), on_idle=idle.release) as executor:
        assert idle.acquire(timeout=FAR_S)
        assert ask(executor, "a") == "A"
        assert idle.acquire(timeout=FAR_S)
    assert not idle.acquire(blocking=False)


def test_a_client_that_disconnects_ends_the_wait_of_its_queued_job() -> None:
    gone, read = threading.Event(), Upper(threading.Event())
    with running(read) as executor:
        held = submit(executor, "held")
        wait_until(held.running)
        job = submit(executor, "gone", is_gone=gone.is_set)
        gone.set()
        with pytest.raises(ClientGone):
            executor.wait(job)
        assert executor.queue.waiting() == 0
        read.gate.set()  # type: ignore[union-attr]
        assert executor.wait(held) == "HELD"
    assert read.batches == [["held"]]


def test_a_failing_is_gone_ends_the_job_but_not_the_thread() -> None:
    def is_gone() -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with running(Upper()) as executor:
        job = submit(executor, "a", is_gone=is_gone)
        with pytest.raises(ClientGone) as raised:
            job.result(FAR_S)
        assert isinstance(raised.value.__cause__, OSError)
        assert ask(executor, "b") == "B"


def test_run_in_each_reaches_idle_threads_and_a_failing_call_fails_alone() -> None:
    found: list[int] = []
    with running(Upper(), threads=3) as executor:
        for _ in range(2):
            for future in executor.run_in_each(lambda: found.append(threading.get_ident())):
                future.result(FAR_S)
        assert sorted(found) == sorted(executor.idents() * 2)
        for future in executor.run_in_each(lambda: 1 // 0):
            with pytest.raises(ZeroDivisionError):
                future.result(FAR_S)
        assert ask(executor, "a") == "A"


def test_run_in_each_runs_before_queued_jobs() -> None:
    gate, order = threading.Event(), list[str]()
    with running(Upper(gate)) as executor:
        first, second = submit(executor, "a"), submit(executor, "a")
        wait_until(first.running)
        [future] = executor.run_in_each(lambda: order.append("running" if second.running() else "queued"))
        gate.set()
        future.result(FAR_S)
        assert executor.wait(second) == "A"
    assert order == ["queued"]


def test_a_batch_contains_only_jobs_that_may_join() -> None:
    def may_join(first: Work, taken: int, other: Work) -> bool:
        return first.text[0] == other.text[0] and taken < 2

    read, texts = Upper(threading.Event()), ["x", "a1", "a2", "a3", "b1", "a4"]
    with running(read, batch=8, may_join=may_join) as executor:
        jobs: list[Work] = []
        for number, text in enumerate(texts):
            jobs.append(submit(executor, text, FAR_S + number))
            wait_until(jobs[0].running)
        read.gate.set()  # type: ignore[union-attr]
        assert [executor.wait(job) for job in jobs] == [text.upper() for text in texts]
    assert read.batches == [["x"], ["a1", "a2"], ["a3"], ["b1"], ["a4"]]
