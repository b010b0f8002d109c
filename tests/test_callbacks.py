"""Callbacks of jobs: signed, delivered at least once, retried at growing intervals, and finally given up."""

import base64
import errno
import hashlib
import hmac
import json
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from jobs_support import SECRET, done_job, receiver, send_due, sender_of, verified
from pydantic import SecretStr
from support import Clock

from ocrsvc.errors import UrlUnavailable
from ocrsvc.jobs import callbacks as callbacks_module
from ocrsvc.jobs.callbacks import headers_of, secret_of_key
from ocrsvc.jobs.job import Job, job_status
from ocrsvc.jobs.job_store import JobStore

WAIT_S = 30.0
KEEP_S = 3600.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(tmp_path: Path, clock: Clock) -> JobStore:
    return JobStore(tmp_path, 10**6, KEEP_S, clock, wall=clock)


def state_of(job: Job) -> tuple[str, int]:
    callback = job_status(job)["callback"]
    return callback["state"], callback["tries"]


def kept_messages(jobs: JobStore) -> set[str]:
    """Return the IDs of removed jobs whose callback is kept."""
    return {name for (name,) in jobs.database.rows("SELECT job_id FROM callback WHERE expired IS NOT NULL")}


# One message


def test_a_finished_job_sends_one_signed_callback(jobs: JobStore) -> None:
    job = done_job(jobs)
    sent, post = receiver()
    for _ in range(2):
        send_due(sender_of(jobs, post))
    ((body, headers),) = sent
    assert verified(body, headers)
    assert not verified(body + b" ", headers)
    message = json.loads(body)
    assert (message["type"], message["data"]["id"], message["data"]["pages"]["done"]) == ("job.done", job.id, 1)
    expected = {"url": "https://callbacks.example/x", "state": "delivered", "tries": 1, "status": 204}
    assert job_status(job)["callback"] == expected
    # Delivery deletes the secret.
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in job.folder.iterdir() if file.is_file())
    assert jobs.database.rows("SELECT secret FROM callback") == [("",)]


def test_failed_callbacks_are_retried_up_to_a_limit(jobs: JobStore, clock: Clock) -> None:
    job = done_job(jobs)
    sent, post = receiver(500)
    sender = sender_of(jobs, post)
    # Just before and after each retry, which is due after 5 s and 10 s plus up to 20 %.
    for wait_s, expected in ((0, 1), (4.9, 1), (1.2, 2), (9.8, 2), (2.3, 3), (10**6, 3)):
        clock.now_s += wait_s
        send_due(sender)
        assert len(sent) == expected
    assert state_of(job) == ("given up", 3)
    assert len({headers["webhook-id"] for _, headers in sent}) == 1


def test_retry_intervals_grow_to_an_hour_and_survive_a_clock_set_back(jobs: JobStore, clock: Clock) -> None:
    done_job(jobs)
    sent, post = receiver(500)
    sender = sender_of(jobs, post, 99)
    for tries in range(14):
        send_due(sender)
        assert len(sent) == tries + 1
        clock.now_s += min(5.0 * 2**tries, 3600.0) * 1.2
    send_due(sender)
    clock.now_s -= 86_400.0
    send_due(sender)
    assert len(sent) == 16


@pytest.mark.parametrize("error", [UrlUnavailable("No connection."), ZeroDivisionError()])
def test_unsendable_callbacks_count_as_attempts(jobs: JobStore, error: Exception) -> None:
    job = done_job(jobs)
    send_due(sender_of(jobs, Mock(side_effect=error), 1))
    assert state_of(job) == ("given up", 1)


def test_a_callback_is_retried_after_its_sender_was_killed(jobs: JobStore, clock: Clock) -> None:
    job = done_job(jobs)
    with pytest.raises(KeyboardInterrupt):
        sender_of(jobs, Mock(side_effect=KeyboardInterrupt)).send_next()
    assert state_of(job) == ("waiting", 1)
    sent, post = receiver()
    for wait_s, expected in ((0, 0), (14.9, 0), (0.2, 1)):
        clock.now_s += wait_s
        send_due(sender_of(jobs, post))
        assert len(sent) == expected


def test_nothing_is_sent_when_the_disk_is_full(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done_job(jobs)
    sent, post = receiver()
    monkeypatch.setattr(jobs.database, "transaction", Mock(side_effect=OSError(errno.ENOSPC, "No space")))
    with pytest.raises(OSError, match="No space"):
        sender_of(jobs, post).send_next()
    assert sent == []


@pytest.mark.parametrize(
    ("name", "damage"), [("job.json", b""), ("job.json", b"{}"), ("job.json", b"[]"), ("secret", b"\xff")]
)
def test_a_damaged_job_delays_no_other_and_expires(jobs: JobStore, clock: Clock, name: str, damage: bytes) -> None:
    first, other = done_job(jobs), done_job(jobs)
    (first.folder / name).write_bytes(damage)
    sent, post = receiver()
    sender = sender_of(jobs, post, 2)
    for _ in range(3):
        send_due(sender)
        clock.now_s += 60.0
    assert other.id in [json.loads(body)["data"]["id"] for body, _ in sent]
    remove_jobs(jobs, clock, "expired")
    assert (jobs.all(), kept_messages(jobs)) == ([], set())


# Signatures


def test_only_messages_with_a_secret_are_signed() -> None:
    assert "webhook-signature" not in headers_of("m", b"{}", 1.0, "")
    signed = headers_of("m", b"{}", 1.9, "p" * 16)["webhook-signature"]
    assert signed == "v1," + base64.b64encode(hmac.new(b"p" * 16, b"m.1.{}", hashlib.sha256).digest()).decode()


def test_each_api_key_has_its_own_callback_secret(jobs: JobStore) -> None:
    keys = ("anna 1.000000", "anna 1.000000", "anna 2.000000")
    for key in keys:
        done_job(jobs, key=key)
    sent, post = receiver()
    send_due(sender_of(jobs, post, callback_secret="a secret of the service"))
    secrets = {key: secret_of_key(SecretStr("a secret of the service"), key) for key in set(keys)}
    signed_by = [[key for key in sorted(secrets) if verified(*message, secrets[key])] for message in sent]
    assert signed_by == [["anna 1.000000"], ["anna 1.000000"], ["anna 2.000000"]]
    # printf 'ocrsvc callback of key anna 1.000000' |
    # openssl dgst -sha256 -hmac 'a secret of the service' -binary | base64
    assert secrets["anna 1.000000"] == "whsec_ROudw/ZRJ/UEt0ihgfMk8sLJYHDbqQzey4ydoIBLDxY="


# Fairness


def test_callbacks_are_shared_fairly_between_callers_and_hosts(jobs: JobStore) -> None:
    """Each callback starts the next one before it ends, so the starts show whose turn it is."""
    for host in ("slow.example", "slow.example", "b.example", "c.example"):
        done_job(jobs, host, "first")
    for host in ("slow.example", "b.example", "slow.example"):
        done_job(jobs, host, "second")
    begun: list[tuple[str, str]] = []

    def post(url: str, body: bytes, *_: object) -> int:
        name = json.loads(body)["data"]["id"]
        begun.append((callers[name], url.split("/")[2]))
        sender_of(jobs, post).send_next()
        return 204

    callers = {job.id: job.record().caller for job in jobs.all()}
    sender_of(jobs, post).send_next()
    in_turn = [(caller, host) for host in ("slow.example", "b.example") for caller in ("first", "second")]
    assert begun == in_turn
    send_due(sender_of(jobs, post))
    assert len(begun) == 7


def test_two_workers_send_each_message_once(jobs: JobStore) -> None:
    ids = [done_job(jobs, f"host{number}.example", f"caller {number}").id for number in range(20)]
    sent, post = receiver()
    stores = [JobStore(jobs.folder, 10**6, KEEP_S) for _ in range(2)]
    senders = [sender_of(store, post) for store in stores]
    threads = [threading.Thread(target=send_due, args=[sender]) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(json.loads(body)["data"]["id"] for body, _ in sent) == sorted(ids)


# Jobs removed before delivery


def remove_jobs(jobs: JobStore, clock: Clock, why: str) -> None:
    """Remove all jobs for a reason, such as "expired"."""
    if why == "expired":
        clock.now_s += KEEP_S + 1
        jobs.sweep()
    else:
        for job in jobs.all():
            jobs.clear(job, why)


@pytest.mark.parametrize("why", ["expired", "displaced"])
@pytest.mark.parametrize("is_read", [True, False])
def test_undelivered_job_is_reported_as_expired(jobs: JobStore, clock: Clock, why: str, is_read: bool) -> None:
    job = done_job(jobs)
    if not is_read:
        (job.folder / "done.json").unlink()
    notes = list[str]()
    jobs.note = notes.append
    remove_jobs(jobs, clock, why)
    assert (notes, jobs.all(), list(jobs.folder.glob("*/file"))) == ([why], [], [])
    sent, post = receiver()
    for _ in range(2):
        send_due(sender_of(jobs, post))
    ((body, headers),) = sent
    assert verified(body, headers)
    message = json.loads(body)
    assert (message["type"], message["data"]["id"], message["data"]["state"]) == ("job.expired", job.id, "expired")
    assert headers["webhook-id"] == f"msg_{job.id}_expired"
    assert jobs.database.rows("SELECT * FROM callback") == []


def test_only_jobs_removed_before_delivery_are_reported_as_expired(jobs: JobStore, clock: Clock) -> None:
    sent, taken = receiver()
    jobs.clear(done_job(jobs))
    done_job(jobs)
    send_due(sender_of(jobs, taken))
    remove_jobs(jobs, clock, "expired")
    send_due(sender_of(jobs, taken))
    assert (len(sent), jobs.all(), kept_messages(jobs)) == (1, [], set())
    job, types = done_job(jobs), list[str]()

    def post(_url: str, body: bytes, *_: object) -> int:
        types.append(json.loads(body)["type"])
        jobs.clear(job, "expired")
        return 204

    send_due(sender_of(jobs, post))
    assert types == ["job.done", "job.expired"]


def test_an_unreachable_host_does_not_displace_messages_of_others(
    jobs: JobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks_module, "_MAX_EXPIRED", 4)

    def expire(caller: str) -> str:
        job = done_job(jobs, caller=caller)
        jobs.clear(job, "expired")
        clock.now_s += 1
        return job.id

    dead = [expire("dead") for _ in range(5)]
    assert kept_messages(jobs) == set(dead[1:])
    other = [expire("other") for _ in range(3)]
    # The oldest callbacks are dropped until the callers have equal shares.
    assert kept_messages(jobs) == {*dead[3:], *other[1:]}
    assert expire("third") in kept_messages(jobs)
    assert len(kept_messages(jobs)) == 4


@pytest.mark.parametrize("keep_s", [60.0, 3 * 86_400.0])
def test_an_undelivered_message_survives_a_restart_and_is_kept_for_a_day(
    tmp_path: Path, clock: Clock, keep_s: float
) -> None:
    jobs = JobStore(tmp_path, 10**6, keep_s, clock, wall=clock)
    first, given_up = done_job(jobs), done_job(jobs, caller="another")
    clock.now_s += keep_s + 1
    jobs.sweep()
    assert (jobs.all(), kept_messages(jobs)) == ([], {first.id, given_up.id})
    after = JobStore(tmp_path, 10**6, keep_s, clock, wall=clock)
    after.sweep("another boot")
    sent, post = receiver(500)
    jobs.database.rows("UPDATE callback SET tries = 99 WHERE caller = 'another'")
    sender = sender_of(after, post, 100)
    for later_s, times in ((0, 2), (86_300, 3), (200, 3)):
        clock.now_s += later_s
        send_due(sender)
        assert len(sent) == times
    assert kept_messages(after) == set()
