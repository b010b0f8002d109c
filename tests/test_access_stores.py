"""The stores of API keys: what is used of a key is counted once, whatever becomes of the worker that served it."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis_support import running_redis
from support import ROOT, clean_environment

from ocrsvc.access.opening import check_store, open_store
from ocrsvc.access.records import KeyEntry, KeyLimits, KeySecret, StoredKey, Usage
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.access.store import KeyStore, LimitReached, Period, oldest_period
from ocrsvc.errors import KeysUnavailable, SettingsError

if TYPE_CHECKING:
    from redis import Redis

DAY = Period("2027-03-31", "2027-03")
NEXT_DAY = Period("2027-04-01", "2027-04")
NONE = KeyLimits()


@dataclass(frozen=True)
class Case:
    """A store, its address, and what makes it believe that nobody has been seen for five seconds."""

    store: KeyStore
    address: str
    let_leases_end: Callable[[], object]


@pytest.fixture(params=["sqlite", "redis"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """Each store in turn."""
    if request.param == "sqlite":
        now = [1000.0]
        path = tmp_path / "keys.sqlite"
        with closing(SqliteStore(path, lambda: now[0])) as store:
            yield Case(store, f"sqlite:{path}", lambda: now.append(now.pop() + 6.0))
        return
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(client_of(url)) as client:
        yield Case(store, url, lambda: [client.zadd("ocrsvc:workers", {"w1": 1.0, "w2": 1.0})])


def client_of(url: str) -> Redis:
    from redis import Redis

    return Redis.from_url(url)


def limit_of(reached: Callable[[], object]) -> str:
    with pytest.raises(LimitReached) as refused:
        reached()
    return str(refused.value.limit)


def test_a_key_comes_back_as_it_was_put_and_each_change_has_a_number(case: Case) -> None:
    entry = KeyEntry("acme", frozenset({"read", "jobs"}), frozenset({"api"}), KeyLimits(2.5, 3, 100, 1000), "batch")
    key = StoredKey(
        replace(entry, may_cache=False, created_at=1.5, expires_at=2.5), (KeySecret("ab", b"\x00\xff", 9.5),)
    )
    before = case.store.version()
    case.store.put(key)
    case.store.put(StoredKey(KeyEntry("Ada"), ()))
    assert case.store.keys() == [StoredKey(KeyEntry("Ada"), ()), key]
    assert case.store.version() == before + 2


def test_pages_are_reserved_first_and_counted_when_they_are_answered(case: Case) -> None:
    limits = KeyLimits(pages_a_day=10)
    case.store.admit("1", "acme", "w1", limits, 1, DAY)
    assert case.store.usage("acme", DAY) == Usage(1, 1, 0, 0)
    case.store.reserve("1", "acme", "w1", limits, 4, DAY)
    assert case.store.usage("acme", DAY) == Usage(1, 5, 0, 0)
    case.store.settle("1", "acme", "w1", 1, 5, 3, DAY)
    assert case.store.usage("acme", DAY) == Usage(0, 0, 3, 3)
    assert case.store.usage("other", DAY) == Usage()


def test_pages_under_way_and_pages_counted_together_never_exceed_a_quota(case: Case) -> None:
    limits = KeyLimits(pages_a_day=10)
    case.store.admit("1", "acme", "w1", limits, 6, DAY)
    case.store.admit("2", "acme", "w2", limits, 4, DAY)
    assert limit_of(lambda: case.store.admit("3", "acme", "w1", limits, 1, DAY)) == "day"
    assert limit_of(lambda: case.store.reserve("2", "acme", "w2", limits, 1, DAY)) == "day"
    case.store.settle("1", "acme", "w1", 1, 6, 5, DAY)
    case.store.admit("4", "acme", "w1", limits, 1, DAY)
    assert case.store.usage("acme", DAY) == Usage(2, 5, 5, 5)


def test_a_refused_request_leaves_no_trace(case: Case) -> None:
    limits = KeyLimits(requests_per_s=0.001, pages_a_month=1)
    assert limit_of(lambda: case.store.admit("1", "acme", "w1", limits, 2, DAY)) == "month"
    assert case.store.usage("acme", DAY) == Usage()
    case.store.admit("2", "acme", "w1", limits, 1, DAY)
    assert limit_of(lambda: case.store.admit("3", "acme", "w1", limits, 0, DAY)) == "rate"


def test_a_new_day_begins_at_nothing_and_a_request_counts_for_the_day_on_which_it_came(case: Case) -> None:
    limits = KeyLimits(pages_a_day=2, pages_a_month=3)
    case.store.admit("1", "acme", "w1", limits, 2, DAY)
    case.store.settle("1", "acme", "w1", 1, 2, 2, DAY)
    assert limit_of(lambda: case.store.admit("2", "acme", "w1", limits, 1, DAY)) == "day"
    case.store.admit("3", "acme", "w1", limits, 2, NEXT_DAY)
    case.store.settle("3", "acme", "w1", 1, 2, 2, NEXT_DAY)
    assert [case.store.usage("acme", day).today for day in (DAY, NEXT_DAY)] == [2, 2]


def test_a_month_has_its_own_quota(case: Case) -> None:
    limits = KeyLimits(pages_a_day=5, pages_a_month=3)
    for number, day in enumerate((Period("2027-03-01", "2027-03"), DAY)):
        case.store.admit(str(number), "acme", "w1", limits, 1, day)
        case.store.settle(str(number), "acme", "w1", 1, 1, 1, day)
    assert limit_of(lambda: case.store.admit("9", "acme", "w1", limits, 2, DAY)) == "month"
    assert case.store.usage("acme", DAY).this_month == 2


def test_requests_at_once_are_limited_over_all_workers(case: Case) -> None:
    limits = KeyLimits(concurrency=2)
    case.store.admit("1", "acme", "w1", limits, 1, DAY)
    case.store.admit("2", "acme", "w2", limits, 1, DAY)
    assert limit_of(lambda: case.store.admit("3", "acme", "w2", limits, 1, DAY)) == "concurrency"
    case.store.settle("1", "acme", "w1", 1, 1, 1, DAY)
    case.store.admit("4", "acme", "w2", limits, 1, DAY)
    assert case.store.usage("acme", DAY).requests == 2


def test_the_rate_lets_a_second_of_requests_through_at_once(case: Case) -> None:
    limits = KeyLimits(requests_per_s=0.5)
    case.store.admit("1", "acme", "w1", limits, 1, DAY)
    assert case.store.usage("acme", DAY).full_s == pytest.approx(2.0, abs=0.5)
    assert limit_of(lambda: case.store.admit("2", "acme", "w2", limits, 1, DAY)) == "rate"
    quick = KeyLimits(requests_per_s=5)
    # Redis counts by its own clock, which runs on meanwhile.
    assert sum(is_admitted(case.store, number, quick) for number in range(12)) in {5, 6}


def is_admitted(store: KeyStore, number: int, limits: KeyLimits) -> bool:
    try:
        store.admit(str(number), "quick", "w1", limits, 0, DAY)
    except LimitReached:
        return False
    return True


def test_work_that_is_no_request_takes_no_place_of_one(case: Case) -> None:
    limits = KeyLimits(concurrency=1, pages_a_day=5)
    case.store.reserve("1", "acme", "w1", limits, 2, DAY)
    assert case.store.usage("acme", DAY) == Usage(0, 2, 0, 0)
    case.store.admit("2", "acme", "w1", limits, 1, DAY)
    case.store.settle("1", "acme", "w1", 0, 2, 2, DAY)
    assert case.store.usage("acme", DAY) == Usage(1, 1, 2, 2)


def test_what_a_dead_worker_had_reserved_is_given_back_when_another_takes_its_place(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    case.store.admit("1", "acme", "w1", limits, 3, DAY)
    case.store.admit("2", "acme", "w1", limits, 3, DAY)
    case.store.admit("3", "acme", "w2", limits, 2, DAY)
    case.store.settle("2", "acme", "w1", 1, 3, 3, DAY)
    case.store.begin_worker("w1")
    assert case.store.usage("acme", DAY) == Usage(1, 2, 3, 3)


def test_what_a_dead_worker_had_reserved_is_given_back_when_its_lease_ends(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    for worker in ("w1", "w2"):
        case.store.keep_alive(worker)
        case.store.admit(worker, "acme", worker, limits, 2, DAY)
    case.let_leases_end()
    case.store.keep_alive("w2")
    assert case.store.usage("acme", DAY) == Usage(1, 2, 0, 0)


def test_a_worker_that_was_taken_for_dead_counts_its_answers_all_the_same(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    case.store.keep_alive("w1")
    case.store.admit("1", "acme", "w1", limits, 2, DAY)
    case.let_leases_end()
    case.store.keep_alive("w2")
    case.store.settle("1", "acme", "w1", 1, 2, 2, DAY)
    assert case.store.usage("acme", DAY) == Usage(0, 0, 2, 2)


def test_days_of_more_than_a_year_ago_are_forgotten(case: Case) -> None:
    old = Period("2020-01-01", "2020-01")
    case.store.settle("1", "acme", "w1", 0, 0, 7, old)
    recent = Period(oldest_period(), oldest_period()[:7])
    case.store.settle("2", "acme", "w1", 0, 0, 1, recent)
    case.store.begin_worker("w1")
    assert case.store.usage("acme", old) == Usage()
    assert case.store.usage("acme", recent).today == 1


# A worker: reserves and counts one page after the other, until it is killed or the quota is used up; answers a byte for
# each page that it has counted.
WORKER = """
import os, sys
from ocrsvc.access.opening import open_store
from ocrsvc.access.records import KeyLimits
from ocrsvc.access.store import LimitReached, Period

address, worker, quota = sys.argv[1:]
store, limits, day = open_store(address), KeyLimits(pages_a_day=int(quota)), Period("2027-03-31", "2027-03")
store.begin_worker(worker)
number = 0
while True:
    number += 1
    try:
        store.admit(f"{worker}.{os.getpid()}.{number}", "acme", worker, limits, 1, day)
    except LimitReached:
        break
    store.settle(f"{worker}.{os.getpid()}.{number}", "acme", worker, 1, 1, 1, day)
    os.write(1, b".")
"""


def start_worker(case: Case, name: str, quota: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, case.address, name, str(quota)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment(), cwd=ROOT)


def kill_after(worker: subprocess.Popen[bytes], pages: int) -> int:
    """Kill it once it has answered so many; how many those were in the end."""
    assert worker.stdout is not None
    answered = len(worker.stdout.read(pages))
    os.kill(worker.pid, signal.SIGKILL)
    answered += len(worker.communicate()[0])
    return answered


def test_no_page_is_lost_or_counted_twice_when_workers_are_killed(case: Case) -> None:
    quota = 1200
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    workers = [start_worker(case, f"w{place}", quota) for place in range(2)]
    answered = [kill_after(worker, 100 + 50 * place) for place, worker in enumerate(workers)]
    counted = case.store.usage("acme", DAY).today
    # Of each that was killed, one page may be counted whose byte was not written any more.
    assert sum(answered) <= counted <= sum(answered) + len(workers)
    successors = [start_worker(case, f"w{place}", quota) for place in range(2)]
    rest = sum(len(worker.communicate()[0]) for worker in successors)
    assert case.store.usage("acme", DAY) == Usage(0, 0, quota, quota)
    assert rest == quota - counted


def test_a_settlement_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store:
        for _ in range(2):
            store.settle("1", "acme", "w1", 1, 1, 3, DAY)
        assert store.usage("acme", DAY).today == 3


def test_a_connection_that_redis_has_closed_fails_no_request(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(client_of(url)) as client:
        store.admit("1", "acme", "w1", NONE, 1, DAY)
        client.client_kill_filter(_type="normal", skipme=True)
        # Nor does a Redis that knows the scripts no more.
        client.script_flush()
        store.settle("1", "acme", "w1", 1, 1, 1, DAY)
        assert store.usage("acme", DAY) == Usage(0, 0, 1, 1)


@contextmanager
def losing_answers(url: str, wire: Path, lost: threading.Event) -> Iterator[str]:
    """The URL of a Redis that does what it is told, and whose answers do not come back while `lost` is set."""

    def pass_on(source: socket.socket, target: socket.socket, *, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not (is_answer and lost.is_set()):
                    target.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, server = listener.accept()[0], socket.socket(socket.AF_UNIX)
                sockets.extend((client, server))
                server.connect(url.removeprefix("unix://"))
                for ends, is_answer in (((client, server), False), ((server, client), True)):
                    threads.append(threading.Thread(target=pass_on, args=ends, kwargs={"is_answer": is_answer}))
                    threads[-1].start()

    listener, sockets = socket.socket(socket.AF_UNIX), list[socket.socket]()
    listener.bind(str(wire))
    listener.listen()
    threads = [threading.Thread(target=serve)]
    threads[0].start()
    try:
        yield f"unix://{wire}"
    finally:
        for end in (listener, *sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in (listener, *sockets):
            end.close()


def test_a_reservation_whose_answer_was_lost_is_given_back(tmp_path: Path) -> None:
    lost = threading.Event()
    with (
        running_redis(tmp_path) as url,
        losing_answers(url, tmp_path / "bad.sock", lost) as bad,
        closing(open_store(bad)) as store,
        closing(client_of(url)) as client,
    ):
        # Redis learns the script here.
        store.admit("1", "acme", "w1", NONE, 1, DAY)
        lost.set()
        with pytest.raises(KeysUnavailable):
            store.admit("2", "acme", "w1", NONE, 1, DAY)
        lost.clear()
        assert client.hlen("ocrsvc:held:acme") == 2
        store.keep_alive("w1")
        assert store.usage("acme", DAY) == Usage(1, 1)


def test_a_redis_that_is_not_there_is_said_without_its_password() -> None:
    store = open_store("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(KeysUnavailable) as refused:
        store.version()
    assert "secret" not in str(refused.value)
    assert refused.value.retry_after_s > 0


def test_a_file_that_is_something_else_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no database " * 100)
    with pytest.raises(SettingsError, match=r"OCRSVC_KEYS names the file .*notes"):
        check_store(f"sqlite:{tmp_path}/notes")
    with pytest.raises(SettingsError, match=r"nowhere"):
        check_store(f"sqlite:{tmp_path}/nowhere/keys.sqlite")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("PRAGMA user_version = 77")
    other.close()
    with pytest.raises(SettingsError, match=r"not a file of keys"):
        check_store(f"sqlite:{tmp_path}/other")


def test_the_file_is_for_its_own_user_only(tmp_path: Path) -> None:
    check_store(f"sqlite:{tmp_path}/keys.sqlite")
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"keys.sqlite": 0o600}


def test_a_file_that_others_hold_is_waited_for_a_second_at_most(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        store.version()
        other = sqlite3.connect(tmp_path / "keys.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(KeysUnavailable, match="locked"):
            store.admit("1", "acme", "w1", NONE, 1, DAY)
        other.execute("ROLLBACK")
        store.admit("2", "acme", "w1", NONE, 1, DAY)
        assert store.usage("acme", DAY).requests == 1
        other.close()


def test_the_log_of_a_file_is_folded_into_it_before_it_grows_large(tmp_path: Path) -> None:
    log = tmp_path / "keys.sqlite-wal"
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        for _ in range(10_000):
            store.settle("1", "acme", "w1", 0, 0, 1, DAY)
            if log.stat().st_size > 8 << 20:
                break
        store.keep_alive("w1")
        assert log.stat().st_size == 0
        assert store.usage("acme", DAY).today > 1000
