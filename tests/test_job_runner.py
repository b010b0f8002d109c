"""Jobs are read to their end, whatever a page, a file, the disk or a process does meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import pytest
from documents import GRAY, pdf
from support import wait_until
from web_support import picture, running_reader

from ocrsvc.engines.fake import FakeEngine, FakeHandle
from ocrsvc.errors import ClientGone, DeadlineExceeded, OcrsvcError, QueueFull
from ocrsvc.jobs import job_runner as runner_module
from ocrsvc.jobs import storage_threads
from ocrsvc.jobs.job import BEGUN, Job, Record
from ocrsvc.jobs.job_database import StorageFull
from ocrsvc.jobs.job_runner import OPENING, JobRunner
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Page, ReadOptions, ReadTask
from ocrsvc.serving.work_queue import NeverStarted, RequestContext
from ocrsvc.settings.settings import Settings

DOCUMENT = pdf(GRAY)
ASKED: Final = Record("", numbers=[1], count=1)


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path, 10**6, 100.0)


def begun(job: Job, number: int, times: int) -> None:
    """So often processes began this, and did not come back."""
    job.put(BEGUN, {number: times})


def test_a_full_disk_is_reported_once_and_tried_again_ever_later(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    job = jobs.add(DOCUMENT, ASKED)
    runner = JobRunner(jobs, reader, 10.0, lambda: len(pauses) >= 9)
    monkeypatch.setattr(runner.thread.stopped, "wait", pauses.append)
    monkeypatch.setattr(storage_threads, "POLL_S", 0.001)
    append = Job.append_page

    def append_at_last(job: Job, page: Mapping[str, object]) -> None:
        if len(pauses) < 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(job, page)
        pauses.append(0.0)

    monkeypatch.setattr(Job, "append_page", append_at_last)
    with caplog.at_level(logging.ERROR, logger="ocrsvc.jobs"):
        runner.thread.start()
        wait_until(lambda: len(pauses) >= 9, "nine tries", within_s=90.0)
        runner.thread.stop(5.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 0.0]
    said = [record.message.partition(":")[0] for record in caplog.records]
    assert said == ["documents cannot go on; tried again later"]
    assert [page["number"] for page in job.pages() if "page" in page] == [1]
    assert job.progress().state == "success"


@pytest.mark.parametrize("numbers", [[1], []])
def test_a_job_whose_end_cannot_be_written_waits_again(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    job = jobs.add(DOCUMENT, replace(ASKED, numbers=numbers))
    begun(job, 1, 1)

    def finish(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Job, "finish", finish)
    if not numbers:
        monkeypatch.setattr(Reader, "open_document", lambda *_: 1 / 0)
    with pytest.raises(StorageFull):
        JobRunner(jobs, reader, 10.0, bool).read_all()
    assert job.progress().state == "waiting"


def test_what_ends_every_process_that_opens_a_document_or_makes_a_file_is_left_out_in_the_end(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, object]] = []

    def make(_jobs: JobStore, job: Job, name: str, _check: object) -> None:
        made.append((name, job.get(BEGUN)))

    monkeypatch.setattr(runner_module, "make_result", make)
    hard, easy, hard_to_make = (jobs.add(DOCUMENT, replace(ASKED, formats=["pdf", "text"])) for _ in range(3))
    begun(hard, OPENING, 3)
    begun(easy, OPENING, 2)
    begun(hard_to_make, OPENING - 1, 3)
    JobRunner(jobs, reader, 10.0, bool).read_all()
    found = [(job.progress().state, job.page_count()) for job in (hard, easy, hard_to_make)]
    assert found == [("failure", 0), ("success", 1), ("success", 1)]
    # The next one is noted before it is begun.
    assert made == [("pdf", {"-1": 1}), ("text", {"-2": 1}), ("text", {"-1": 3, "-2": 1})]


def test_a_page_that_was_given_up_in_good_order_is_as_suspect_as_before(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "POLL_S", 0.01)
    outcomes = iter([QueueFull("full"), NeverStarted("behind"), DeadlineExceeded("late")])

    def read(*_: object) -> NoReturn:
        raise next(outcomes)

    monkeypatch.setattr(reader, "_begin", read)
    job = jobs.add(DOCUMENT, ASKED)
    begun(job, 1, 2)
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert [row["error"] for row in job.pages()] == ["late"]


def test_a_loss_of_power_that_leaves_a_note_empty_or_a_page_damaged_costs_no_job(
    reader: Reader, jobs: JobStore
) -> None:
    job = jobs.add(DOCUMENT, ASKED)
    (job.folder / BEGUN).write_bytes(b"")
    (job.folder / "pages.jsonl").write_bytes(b'{"number": 1, "pa\x01": }\n')
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (job.progress().state, job.page_count()) == ("success", 1)


def test_a_job_whose_reader_died_before_its_end_was_in_the_database_is_read_no_more(
    reader: Reader, jobs: JobStore
) -> None:
    job = jobs.add(DOCUMENT, ASKED)
    job.put("done.json", {"state": "success"})
    assert jobs.all("NOT is_done") == [job]
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (jobs.all("NOT is_done"), job.page_count()) == ([], 0)


def test_a_job_waits_while_its_database_cannot_be_used(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.add(DOCUMENT, ASKED)

    def broken() -> NoReturn:
        raise sqlite3.OperationalError("disk I/O error")

    waiting = jobs.all("NOT is_done")
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "all", lambda _: waiting)
        patched.setattr(runner_module, "_SYNC_S", 0.0)
        patched.setattr(jobs.database, "_connection", broken)
        JobRunner(jobs, reader, 10.0, bool).read_all()
    assert not job.is_done()
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (job.progress().state, job.page_count()) == ("success", 1)


# A job that is deleted, or a client that goes, costs no page that an engine has not taken yet

PAGES = 6
WAIT_S = 30.0
LONG = pdf(*[GRAY] * PAGES)
OTHER = picture()
OTHER_WIDTH = 64


class WatchedHandle(FakeHandle):
    """The fake engine's, which calls something before each page, with its width."""

    def __init__(self, engine: WatchedEngine) -> None:
        super().__init__(engine)
        self._engine = engine

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        for task in tasks:
            self._engine.taken.append(task.image.width)
            self._engine.on_page(task.image.width)
        return super().read(tasks)


class WatchedEngine(FakeEngine):
    """The fake engine, which keeps the widths of the pages that its handles took."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.taken: list[int] = []
        self.on_page: Callable[[int], object] = bool

    def open_handle(self) -> WatchedHandle:
        return WatchedHandle(self)


@contextmanager
def reading(engine: WatchedEngine, threads: int) -> Iterator[Reader]:
    with running_reader(Settings(), lambda: engine, threads) as reader:
        yield reader


@pytest.mark.parametrize("threads", [1, 2])
def test_of_a_job_that_is_deleted_no_page_reaches_the_engine_that_was_queued_ahead(
    threads: int, tmp_path: Path
) -> None:
    engine, jobs = WatchedEngine(), JobStore(tmp_path, 10**7, 3600.0)
    job = jobs.add(LONG, Record("", numbers=[*range(1, PAGES + 1)]))

    def delete() -> None:
        # One page for each engine thread is being read, and one more is ahead.
        wait_until(lambda: watched.waiting() == 1)
        jobs.clear(job)

    busy = threading.Barrier(threads, delete, WAIT_S)
    engine.on_page = lambda _width: job.is_there() and busy.wait()
    with reading(engine, threads) as watched:
        JobRunner(jobs, watched, WAIT_S, bool).read_all()
    assert len(engine.taken) == threads
    assert jobs.all() == []


def test_of_a_stream_whose_client_has_gone_no_page_reaches_the_engine_that_was_queued_ahead() -> None:
    engine, gone, other = WatchedEngine(), threading.Event(), threading.Event()

    def on_page(width: int) -> None:
        if width == OTHER_WIDTH:
            assert other.wait(WAIT_S)
            return
        if not gone.is_set():
            wait_until(lambda: watched.waiting() == 1)
            gone.set()

    engine.on_page = on_page
    with reading(engine, threads=2) as watched:
        neighbour = threading.Thread(target=watched.read, args=(OTHER, ReadOptions(), WAIT_S))
        neighbour.start()
        wait_until(lambda: engine.taken)
        pages = watched.read_files_by_page([LONG], ReadOptions(), WAIT_S, RequestContext(is_gone=gone.is_set))
        try:
            with pytest.raises(ClientGone):
                list(pages)
        finally:
            other.set()
            neighbour.join()
    assert len(engine.taken) == 2
