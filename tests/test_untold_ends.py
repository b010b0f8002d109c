"""A job that goes before its end was told is told as expired, by whoever is there then, and leaves nothing large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from callbacks_support import deliver, delivered, done_job, verified

from ocrsvc.jobs.deliveries import Deliveries
from ocrsvc.jobs.job import CALLBACK, Job
from ocrsvc.jobs.store import JobStore


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path, 10**6, 3600.0)


def removed_early(jobs: JobStore, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """The job there goes, because its time is over or another one needs its place."""
    if why == "expired":
        monkeypatch.setattr(jobs, "_keep_s", -1.0)
        jobs.sweep()
        monkeypatch.setattr(jobs, "_keep_s", 3600.0)
    else:
        monkeypatch.setattr("ocrsvc.jobs.store.MOST_JOBS", 1)
        jobs.add(b"another", {})


@pytest.mark.parametrize("why", ["expired", "displaced"])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_job_that_goes_before_its_callback_was_told_is_told_as_expired(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, why: str, is_read: bool
) -> None:
    job = done_job(jobs)
    if not is_read:
        (job.folder / "done.json").unlink()
        if why == "displaced":
            jobs.clear(job, "displaced")
    sent, post = delivered()
    deliveries, notes = Deliveries(jobs, post, 3, ""), list[str]()
    jobs.note = notes.append
    if job.is_there():
        removed_early(jobs, monkeypatch, why)
        assert why in notes
    assert jobs.find(job.id) is None
    assert not list(jobs.folder.glob("untold/*/file"))
    deliver(deliveries)
    deliver(deliveries)
    ((body, headers),) = sent
    assert verified(body, headers)
    message = json.loads(body)
    assert (message["type"], message["data"]["id"], message["data"]["state"]) == ("job.expired", job.id, "expired")
    assert headers["webhook-id"] == f"msg_{job.id}_expired"
    assert jobs.untold.all() == []


def test_a_job_that_goes_while_callbacks_are_looked_for_is_told_as_expired(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, every, (sent, post) = done_job(jobs), jobs.all, delivered()

    def listed_and_then_moved() -> list[Job]:
        found = every()
        jobs.clear(job, "expired")
        return found

    deliveries = Deliveries(jobs, post, 3, "")
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "all", listed_and_then_moved)
        # It is listed in its new place only the next time.
        patched.setattr(jobs.untold, "all", list)
        deliver(deliveries)
    deliver(deliveries)
    assert [json.loads(body)["type"] for body, _ in sent] == ["job.expired"]


def test_a_job_that_was_deleted_or_told_before_is_not_told_as_expired(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, post = delivered()
    jobs.clear(done_job(jobs))
    done_job(jobs)
    deliver(Deliveries(jobs, post, 3, ""))
    removed_early(jobs, monkeypatch, "expired")
    deliver(Deliveries(jobs, post, 3, ""))
    assert (len(sent), jobs.all(), jobs.untold.all()) == (1, [], [])


def test_a_caller_whose_host_is_dead_keeps_no_other_out_of_what_is_to_be_told(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.jobs.untold_ends.MOST_UNTOLD", 4)

    def expire(caller: str) -> str:
        job = done_job(jobs, caller=caller)
        jobs.clear(job, "expired")
        return job.id

    dead = [expire("dead") for _ in range(5)]
    assert {job.id for job in jobs.untold.all()} == set(dead[:4])
    other = [expire("other") for _ in range(3)]
    # The oldest made room, up to equal shares.
    assert {job.id for job in jobs.untold.all()} == {*dead[2:4], *other[:2]}
    third = expire("third")
    assert [job.taken().caller for job in jobs.untold.all() if job.id == third] == ["third"]
    # What is damaged is nobody's, and keeps nobody from making room.
    (jobs.folder / "untold" / third / "taken.json").write_bytes(b"")
    expire("fourth")
    assert len(jobs.untold.all()) == 4


@pytest.mark.parametrize("callback", [b"", b"[]"])
def test_a_job_whose_callback_is_damaged_expires_all_the_same(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, callback: bytes
) -> None:
    (done_job(jobs).folder / CALLBACK).write_bytes(callback)
    removed_early(jobs, monkeypatch, "expired")
    assert (jobs.all(), jobs.untold.all()) == ([], [])


def test_of_a_file_that_is_made_while_its_job_expires_nothing_is_left(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = done_job(jobs)
    with job.unfinished_file() as made:
        made.write_bytes(b"half of a file")
        removed_early(jobs, monkeypatch, "expired")
    assert [left.id for left in jobs.untold.all()] == [job.id]
    assert not list(jobs.folder.glob("untold/*/.*"))


def test_an_untold_end_survives_its_service_and_is_given_up_in_the_end(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = done_job(jobs)
    removed_early(jobs, monkeypatch, "expired")
    # Whoever kept it was killed before all of it was removed.
    (jobs.folder / "untold" / job.id / "file").write_bytes(b"a document")
    # A loss of power left one empty, which keeps no service from starting.
    damaged = done_job(jobs)
    jobs.clear(damaged, "expired")
    (jobs.folder / "untold" / damaged.id / "taken.json").write_bytes(b"")
    after = JobStore(jobs.folder, 10**6, 3600.0)
    after.begin_again()
    after.sweep()
    assert not list(jobs.folder.glob("untold/*/file"))
    sent, post = delivered(500)
    deliver(Deliveries(after, post, 1, ""))
    assert (len(sent), after.untold.all()) == (1, [])
