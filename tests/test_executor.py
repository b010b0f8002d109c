"""The executor's engine threads: every job gets its own result or error."""

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support import wait_until

from ocrsvc.errors import ClientGone, EngineFailed
from ocrsvc.serving.executor import Executor
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Job, RequestContext

FAR_S = 30.0


class Work(Job[str]):
    """A job whose result is its text in capitals."""

    def __init__(self, text: str, deadline_s: float = FAR_S, context: RequestContext = DEFAULT_CONTEXT) -> None:
        super().__init__(time.monotonic() + deadline_s, context)
        self.text = text


class Upper:
    """Capitalizes texts, fails on "bad" and "leave", and waits for `gate` if there is one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.batches: list[list[str]] = []

    def __call__(self, jobs: Sequence[Work]) -> Sequence[str]:
        if self.gate is not None:
            assert self.gate.wait(FAR_S)
        texts = [job.text for job in jobs]
        self.batches.append(texts)
        if "bad" in texts:
            raise ValueError("cannot read this")
        if "leave" in texts:
            raise SystemExit(1)
        return [text.upper() for text in texts]


@contextmanager
def running(read: Callable[[Sequence[Work]], Any], **how: Any) -> Iterator[Executor[Work]]:
    executor = Executor(read, threads=1, **{"places": 8} | how)
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


@pytest.mark.parametrize(("bad", "message"), [("bad", "ValueError: cannot read this"), ("leave", "SystemExit")])
def test_one_bad_job_does_not_fail_its_batch(bad: str, message: str) -> None:
    read = Upper(threading.Event())
    with running(read, batch=4) as executor:
        first = submit(executor, "first")
        wait_until(lambda: executor.queue.waiting() == 0)
        jobs = [submit(executor, text) for text in ("a", bad, "b")]
        read.gate.set()  # type: ignore[union-attr]
        assert [executor.wait(job) for job in (first, jobs[0], jobs[2])] == ["FIRST", "A", "B"]
        with pytest.raises(EngineFailed, match=message):
            executor.wait(jobs[1])
        assert read.batches == [["first"], ["a", bad, "b"], ["a"], [bad], ["b"]]


def test_an_error_of_is_gone_ends_the_job_but_not_the_thread() -> None:
    def is_gone() -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with running(Upper()) as executor:
        job = submit(executor, "a", is_gone=is_gone)
        with pytest.raises(ClientGone) as raised:
            job.result(FAR_S)
        assert isinstance(raised.value.__cause__, OSError)
        assert ask(executor, "b") == "B"


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
