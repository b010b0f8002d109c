"""The end of a job is told to its callback: signed, at least once, again and again later, and given up in the end."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from callbacks_support import SECRET, WAIT_S, deliver, delivered, done_job, verified

from ocrsvc.errors import UrlUnavailable
from ocrsvc.jobs import deliveries as deliveries_module
from ocrsvc.jobs.callback import LONGEST_PAUSE_S, Delivery, headers_of
from ocrsvc.jobs.deliveries import Deliveries
from ocrsvc.jobs.host_queues import HostQueues
from ocrsvc.jobs.job import CALLBACK, Job
from ocrsvc.jobs.job_status import job_status
from ocrsvc.jobs.store import JobStore


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path, 10**6, 3600.0)


def test_the_end_of_a_job_is_told_once_signed(jobs: JobStore) -> None:
    job = done_job(jobs)
    sent, post = delivered()
    for _ in range(2):
        deliver(Deliveries(jobs, post, 3, ""))
    ((body, headers),) = sent
    assert verified(body, headers)
    assert not verified(body + b" ", headers)
    message = json.loads(body)
    assert (message["type"], message["data"]["id"], message["data"]["pages"]["done"]) == ("job.done", job.id, 1)
    assert job_status(job)["callback"]["state"] == "delivered"
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in job.folder.iterdir() if file.is_file())
    assert SECRET not in json.dumps(job_status(job))


def test_a_callback_that_is_not_taken_is_told_again_later_and_given_up_in_the_end(jobs: JobStore) -> None:
    job = done_job(jobs)
    now_s, (sent, post) = [1000.0], delivered(500)
    told = Deliveries(jobs, post, 3, "", clock=lambda: now_s[0])
    # Just before it is time, and when it is.
    for wait_s, expected in ((0, 1), (4.9, 1), (1.2, 2), (9.8, 2), (2.3, 3), (10**6, 3)):
        now_s[0] += wait_s
        deliver(told)
        assert len(sent) == expected
    assert job_status(job)["callback"] == {
        "url": "https://told.example/x",
        "state": "given up",
        "tries": 3,
        "status": 500,
    }
    assert len({headers["webhook-id"] for _, headers in sent}) == 1


def test_an_unreachable_callback_is_a_try_too(jobs: JobStore) -> None:
    job = done_job(jobs)

    def post(*_: object) -> int:
        raise UrlUnavailable("No connection.")

    deliver(Deliveries(jobs, post, 3, ""))
    assert (job_status(job)["callback"]["tries"], job_status(job)["callback"]["status"]) == (1, None)


def test_pauses_grow_up_to_an_hour_with_a_little_by_lot() -> None:
    delivery, pauses = Delivery("https://told.example"), []
    for _ in range(14):
        delivery = delivery.after(500, "no", 0.0, 99, 0.0)
        pauses.append(delivery.due_at_s)
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert delivery.after(500, "no", 0.0, 99, 0.999).due_at_s == pytest.approx(1.2 * LONGEST_PAUSE_S, rel=0.01)
    assert delivery.is_due(LONGEST_PAUSE_S)
    assert not delivery.is_due(LONGEST_PAUSE_S - 1)
    # A clock that was set back by a day keeps nothing waiting for a day.
    assert delivery.is_due(-86_400.0)


def test_a_message_without_a_secret_is_not_signed_and_a_plain_one_is_its_own_key() -> None:
    assert "webhook-signature" not in headers_of("m", b"{}", 1.0, "")
    signed = headers_of("m", b"{}", 1.9, "p" * 16)["webhook-signature"]
    assert signed == "v1," + base64.b64encode(hmac.new(b"p" * 16, b"m.1.{}", hashlib.sha256).digest()).decode()


def test_the_thread_goes_on_after_errors_that_are_logged_once_and_ends_when_asked(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deliveries_module, "_POLL_S", 0.005)
    done_job(jobs)
    begun, outcomes, every = threading.Event(), iter([OSError("gone")] * 3), jobs.all

    def fail_once() -> list[Job]:
        for outcome in outcomes:
            raise outcome
        return every()

    def post(_url: str, _body: bytes, _headers: object, check: Any) -> int:
        begun.set()
        while True:
            check()

    monkeypatch.setattr(jobs, "all", fail_once)
    told = Deliveries(jobs, post, 3, "")
    told.start()
    assert begun.wait(60.0)
    told.stop(60.0)
    assert not told._thread.is_alive()
    assert [record.message for record in caplog.records] == ["callbacks cannot be told; tried again later: OSError"]


def test_without_room_to_note_it_nothing_is_sent_and_what_fails_in_an_unforeseen_way_is_a_try(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, job = done_job(jobs), done_job(jobs)
    (damaged.folder / CALLBACK).write_bytes(b"")
    sent, post = delivered()
    told = Deliveries(jobs, post, 3, "")
    with monkeypatch.context() as patched:
        patched.setattr(Job, "put", lambda *_: Path("/dev/full").write_bytes(b"1"))
        for _ in range(3):
            deliver(told)
    assert sent == []
    assert "callbacks cannot be told; tried again later: Documents cannot be stored now: No space left" in caplog.text
    fails = Deliveries(jobs, lambda *_: 1 // 0, 1, "")
    deliver(fails)
    assert (job.get(CALLBACK)["state"], job.get(CALLBACK)["tries"]) == ("given up", 1)


def test_whoever_dies_while_a_callback_is_sent_leaves_a_try_and_the_next_one_due(jobs: JobStore) -> None:
    job = done_job(jobs)
    now_s, seen = 1000.0, []

    def post(*_: object) -> int:
        seen.append(Delivery(**job.get(CALLBACK)))
        return 204

    deliver(Deliveries(jobs, post, 3, "", clock=lambda: now_s))
    assert [(left.state, left.tries, left.due_at_s) for left in seen] == [("waiting", 1, 1005.0)]
    assert Delivery(**job.get(CALLBACK)).tries == 1


def test_a_slow_receiver_keeps_no_other_waiting_and_has_one_message_at_a_time(jobs: JobStore) -> None:
    for host in ("slow.example",) * 3 + ("quick.example",) * 3:
        done_job(jobs, host)
    told: list[str] = []
    quick_told, at_once, most = threading.Event(), 0, 0

    def post(url: str, *_: object) -> int:
        nonlocal at_once, most
        host = url.split("/")[2]
        if host == "slow.example":
            at_once += 1
            most = max(most, at_once)
            assert quick_told.wait(WAIT_S)
            at_once -= 1
        told.append(host)
        if told.count("quick.example") == 3:
            quick_told.set()
        return 204

    deliver(Deliveries(jobs, post, 3, ""))
    assert (told[:3], len(told), most) == (["quick.example"] * 3, 6, 1)


def noted_in(failures: list[Exception]) -> Callable[[Exception], bool]:
    """Keeps each, and has no other piece of work dropped for it."""

    def note(error: Exception) -> bool:
        failures.append(error)
        return False

    return note


def test_hosts_take_turns_where_there_are_more_than_threads() -> None:
    held, done = threading.Event(), list[str]()
    failures: list[Exception] = []

    def work(name: str) -> None:
        assert held.wait(WAIT_S)
        done.append(name)

    queues = HostQueues(1, work, noted_in(failures))
    queues.put("a", ["a1", "a2", "a3"])
    queues.put("b", ["b1"])
    # Those of a host come once: it still has some.
    queues.put("a", ["a1"])
    held.set()
    assert queues.wait(WAIT_S)
    assert (done, failures) == (["a1", "b1", "a2", "a3"], [])


def test_a_thread_that_cannot_be_started_is_not_counted_and_a_later_put_starts_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, failures = list[str](), list[Exception]()
    queues = HostQueues(1, done.append, noted_in(failures))

    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        queues.put("a", ["a1"])
        queues.put("b", ["b1"])
    assert (done, len(failures), queues.wait(0.0)) == ([], 2, True)
    queues.put("a", ["a1"])
    assert queues.wait(WAIT_S)
    assert done == ["a1", "b1"]


def unreadable(job: Job, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The disk refuses this of the job, of all that are there."""
    usual = getattr(Job, method)

    def refused(asked: Job, *names: object) -> object:
        if asked == job:
            raise OSError(errno.EIO, "Input/output error")
        return usual(asked, *names)

    monkeypatch.setattr(Job, method, refused)


@pytest.mark.parametrize(
    ("hurt", "logged"),
    [
        (lambda job, _: (job.folder / "task.json").write_bytes(b"{}"), "cannot be understood"),
        (lambda job, _: job.put(CALLBACK, {**job.get(CALLBACK), "secret": 5}), "cannot be understood"),
        (lambda job, _: job.put(CALLBACK, {**job.get(CALLBACK), "tries": 10**6}), "cannot be understood"),
        (lambda job, _: job.put(CALLBACK, {"url": 5}), "cannot be understood"),
        (lambda job, monkeypatch: unreadable(job, monkeypatch, "put"), "tried again later: Input/output error"),
        (lambda job, monkeypatch: unreadable(job, monkeypatch, "get"), "tried again later: Input/output error"),
    ],
)
def test_a_job_that_is_damaged_or_cannot_be_read_keeps_no_other_of_its_host_waiting(
    jobs: JobStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hurt: Callable[[Job, pytest.MonkeyPatch], object],
    logged: str,
) -> None:
    first, other = done_job(jobs), done_job(jobs)
    hurt(first, monkeypatch)
    monkeypatch.setattr(jobs, "all", lambda: [first, other])
    sent, post = delivered()
    deliveries = Deliveries(jobs, post, 3, "")
    for _ in range(2):
        deliver(deliveries)
    assert [json.loads(body)["data"]["id"] for body, _ in sent] == [other.id]
    (record,) = caplog.records
    assert logged in record.message
