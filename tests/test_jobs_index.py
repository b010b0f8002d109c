"""What a process knows of the jobs in the store is what lies there, whoever changed it, and is not opened each time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ocrsvc.jobs import job_index
from ocrsvc.jobs.begun_pages import BegunPages
from ocrsvc.jobs.eviction import Stored
from ocrsvc.jobs.job import CALLBACK, Job
from ocrsvc.jobs.store import JobStore

LATER_S = 10.0


class Clock:
    """A clock that stands still until told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def stored(store: JobStore) -> list[Stored]:
    return sorted((entry.stored for entry in store.entries()), key=lambda each: each.id)


def on_disk(store: JobStore) -> list[Stored]:
    """What a process finds that knows nothing yet."""
    return stored(JobStore(store.folder, store.most_bytes, 1000.0))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(tmp_path: Path, clock: Clock) -> JobStore:
    """Two jobs, of which one is done, and a process that has known them for a while."""
    store = JobStore(tmp_path, 10**6, 1000.0, clock)
    store.add(b"waits", {}, "a")
    store.add(b"is done", {}, "b").finish("success")
    for _ in range(2):
        store.entries()
        clock.now_s += LATER_S
    return store


def test_a_job_that_has_not_changed_is_not_opened_again(known: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = on_disk(known)
    monkeypatch.setattr(job_index, "_measure", lambda folder: pytest.fail(f"opened {folder}"))
    monkeypatch.setattr(Job, "taken", lambda job: pytest.fail(f"opened {job.id}"))
    assert stored(known) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda _, job: job.finish("success"),
        lambda _, job: job.put(CALLBACK, {"url": "https://told.example"}),
        lambda other, job: other.put_result_file(job, "a.txt", b"made"),
        lambda other, job: [other.put_result_file(job, "a.txt", b"made" * size) for size in (1, 2)],
        lambda other, job: other.clear(job),
        lambda other, _: other.add(b"another", {}, "c"),
        lambda _, job: BegunPages(job).begin(1),
    ],
)
def test_what_another_process_changes_is_seen(
    known: JobStore, clock: Clock, change: Callable[[JobStore, Job], object]
) -> None:
    other = JobStore(known.folder, known.most_bytes, 1000.0, clock)
    for job in other.all():
        change(other, job)
    assert stored(known) == on_disk(known)


def test_a_file_that_is_made_once_more_is_seen(known: JobStore, clock: Clock) -> None:
    job, other = known.all()[0], JobStore(known.folder, known.most_bytes, 1000.0, clock)
    for size in (1, 2, 3):
        other.put_result_file(job, "a.txt", b"made" * size)
        assert stored(known) == on_disk(known)
        known.entries()
        clock.now_s += LATER_S
        known.entries()


def test_a_file_that_is_made_by_a_process_that_is_killed_right_then_is_seen(
    known: JobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Nothing more happens in this process."""

    rename = Path.rename

    def rename_and_die(path: Path, target: Path) -> None:
        rename(path, target)
        raise Killed

    job, other = known.all()[0], JobStore(known.folder, known.most_bytes, 1000.0, clock)
    other.put_result_file(job, "a.txt", b"made")
    for _ in range(2):
        known.entries()
        clock.now_s += LATER_S
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename_and_die)
        with pytest.raises(Killed):
            other.put_result_file(job, "b.txt", b"made")
    assert job.result_file("b.txt") == b"made"
    assert stored(known) == on_disk(known)


def test_pages_of_a_job_that_is_read_are_counted_though_no_name_comes(known: JobStore, clock: Clock) -> None:
    job = known.waiting()[0]
    BegunPages(job).begin(1)
    job.add_page({"number": 1})
    for number in range(2, 5):
        clock.now_s += LATER_S
        known.entries()
        job.add_page({"number": number})
        assert stored(known) == on_disk(known)


@pytest.mark.parametrize(("at_ns", "within_s"), [(10**18 + 1, 0.05), (10**18, 1.0)])
def test_a_change_within_a_tick_of_the_file_system_s_clock_is_seen(
    known: JobStore, clock: Clock, at_ns: int, within_s: float
) -> None:
    job = known.all()[0]
    for name in ("one", "two"):
        (job.folder / name).write_bytes(b"changed")
        os.utime(job.folder, ns=(at_ns, at_ns))
        assert stored(known) == on_disk(known)
        clock.now_s += within_s
