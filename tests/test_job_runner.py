"""Jobs are read to their end, even if a page, a file, the disk or a process fails."""

import errno
import logging
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from unittest.mock import Mock

import pytest
from documents import GRAY, pdf
from support import wait_until

from ocrsvc.errors import DeadlineExceeded, QueueFull
from ocrsvc.jobs import job_runner as runner_module
from ocrsvc.jobs import storage_threads
from ocrsvc.jobs.job import BEGUN, Job, Record
from ocrsvc.jobs.job_database import StorageFull
from ocrsvc.jobs.job_runner import OPENING, JobRunner
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.work_queue import NeverStarted

DOCUMENT = pdf(GRAY)
ONE_PAGE: Final = Record("", numbers=[1], count=1)


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path, 10**6, 100.0)


def record_deaths(job: Job, number: int, times: int) -> None:
    """Record that this many processes began the step and died."""
    job.put(BEGUN, {number: times})


def test_a_full_disk_is_logged_once_and_retried_with_backoff(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    job = jobs.add(DOCUMENT, ONE_PAGE)
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
    logged = [record.message.partition(":")[0] for record in caplog.records]
    assert logged == ["jobs failed and will retry"]
    assert [page["number"] for page in job.pages() if "page" in page] == [1]
    assert job.progress().state == "success"


@pytest.mark.parametrize("numbers", [[1], []])
def test_a_job_whose_end_cannot_be_written_stays_waiting(
    reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    job = jobs.add(DOCUMENT, replace(ONE_PAGE, numbers=numbers))
    record_deaths(job, 1, 1)
    monkeypatch.setattr(Job, "finish", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    if not numbers:
        monkeypatch.setattr(Reader, "open_document", lambda *_: 1 / 0)
    with pytest.raises(StorageFull):
        JobRunner(jobs, reader, 10.0, bool).read_all()
    assert job.progress().state == "waiting"


def test_documents_that_kill_workers_fail(reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, object]] = []

    def make(_jobs: JobStore, job: Job, name: str, _check: object) -> None:
        made.append((name, job.get(BEGUN)))

    monkeypatch.setattr(runner_module, "make_result", make)
    hard, easy, hard_to_make = (jobs.add(DOCUMENT, replace(ONE_PAGE, formats=["pdf", "text"])) for _ in range(3))
    record_deaths(hard, OPENING, 3)
    record_deaths(easy, OPENING, 2)
    record_deaths(hard_to_make, OPENING - 1, 3)
    JobRunner(jobs, reader, 10.0, bool).read_all()
    found = [(job.progress().state, job.page_count()) for job in (hard, easy, hard_to_make)]
    assert found == [("failure", 0), ("success", 1), ("success", 1)]
    # Each result is recorded as begun before it is made.
    assert made == [("pdf", {"-1": 1}), ("text", {"-2": 1}), ("text", {"-1": 3, "-2": 1})]


def test_a_page_that_never_started_is_no_crash(reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "POLL_S", 0.01)
    outcomes = [QueueFull("full"), NeverStarted("behind"), DeadlineExceeded("late"), DeadlineExceeded("too late")]
    monkeypatch.setattr(reader, "_begin", Mock(side_effect=outcomes))
    job = jobs.add(DOCUMENT, ONE_PAGE)
    record_deaths(job, 1, 1)
    for _ in range(2):
        JobRunner(jobs, reader, 10.0, bool).read_all()
    assert [row["error"] for row in job.pages()] == ["too late"]


def test_a_power_loss_during_a_write_loses_no_job(reader: Reader, jobs: JobStore) -> None:
    job = jobs.add(DOCUMENT, ONE_PAGE)
    (job.folder / BEGUN).write_bytes(b"")
    (job.folder / "pages.jsonl").write_bytes(b'{"number": 1, "pa\x01": }\n')
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (job.progress().state, job.page_count()) == ("success", 1)


def test_a_finished_job_missing_in_the_database_is_not_read_again(reader: Reader, jobs: JobStore) -> None:
    job = jobs.add(DOCUMENT, ONE_PAGE)
    job.put("done.json", {"state": "success"})
    assert jobs.all("NOT is_done") == [job]
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (jobs.all("NOT is_done"), job.page_count()) == ([], 0)


def test_a_job_waits_for_a_broken_database(reader: Reader, jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.add(DOCUMENT, ONE_PAGE)
    waiting = jobs.all("NOT is_done")
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "all", lambda _: waiting)
        patched.setattr(runner_module, "_SYNC_S", 0.0)
        patched.setattr(jobs.database, "_connection", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        JobRunner(jobs, reader, 10.0, bool).read_all()
    assert not job.is_done()
    JobRunner(jobs, reader, 10.0, bool).read_all()
    assert (job.progress().state, job.page_count()) == ("success", 1)
