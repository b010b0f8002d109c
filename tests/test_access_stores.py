"""The stores of API keys: what is used of a key is counted once, whatever becomes of the worker that served it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis_support import running_redis
from support import ROOT, clean_environment

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, KeySecret, StoredKey
from ocrsvc.access.key_secrets import is_same
from ocrsvc.access.key_store import Hold, KeyStore, LimitReached, Need, Period, Usage, oldest_period, period_of
from ocrsvc.access.manage_keys import add_key, change_key, revoke_key, rotate_key
from ocrsvc.access.open_store import open_store
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import OperatorError

if TYPE_CHECKING:
    from redis import Redis

DAY = Period("2027-03-31", "2027-03")
NEXT_DAY = Period("2027-04-01", "2027-04")
NOTHING = Hold()


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
    assert case.store.put(key)
    assert case.store.put(StoredKey(KeyEntry("Ada"), ()))
    assert case.store.keys() == [StoredKey(KeyEntry("Ada"), ()), key]
    assert case.store.version() == before + 2


def test_of_two_that_add_a_key_at_once_the_second_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    before = case.store.keys()
    secret = add_key(case.store, KeyEntry("acme"))
    with monkeypatch.context() as at_once:
        at_once.setattr(case.store, "keys", lambda: before)
        with pytest.raises(OperatorError, match="The key acme was added or changed by another command meanwhile"):
            add_key(case.store, KeyEntry("acme"))
    [key] = case.store.keys()
    assert is_same(secret, key.secrets[0])


@pytest.mark.parametrize(
    "other",
    [
        lambda store, key: change_key(store, key, replace(key.entry, priority="batch")),
        lambda store, _: rotate_key(store, "acme", 0.0, 5.0),
        lambda store, _: add_key(store, KeyEntry("acme", created_at=10.0)),
    ],
    ids=["change", "rotate", "add"],
)
def test_a_key_that_is_revoked_meanwhile_stays_revoked(
    case: Case, monkeypatch: pytest.MonkeyPatch, other: Callable[[KeyStore, StoredKey], object]
) -> None:
    add_key(case.store, KeyEntry("acme", expires_at=9.0))
    before = case.store.keys()
    revoke_key(case.store, "acme", 5.0)
    number = case.store.version()
    with monkeypatch.context() as at_once:
        at_once.setattr(case.store, "keys", lambda: before)
        with pytest.raises(OperatorError, match="Nothing was done"):
            other(case.store, before[0])
    [key] = case.store.keys()
    assert (key.entry.revoked_at, key.secrets, case.store.version()) == (5.0, (), number)


def reserve(
    case: Case, worker: str, limits: KeyLimits, need: Need, held: Hold = NOTHING, spare: int = 1, day: Period = DAY
) -> Hold:
    """What the worker holds then."""
    case.store.reserve("acme", worker, limits, held, need, spare, day)
    return Hold(held.requests + need.requests, held.pages + need.pages)


def used(case: Case, day: Period = DAY) -> Usage:
    return case.store.usage("acme", day)


def test_a_key_that_cannot_be_read_is_left_out_and_the_others_are_not(
    case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = '{"entry": {"name": "later", "limits": {"pages_an_hour": 5}}, "secrets": []}'
    with monkeypatch.context() as newer:
        newer.setattr(f"{type(case.store).__module__}.write_key", lambda _: later)
        case.store.put(StoredKey(KeyEntry("later"), ()))
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    known = case.store.keys()
    assert [key.entry.name for key in known] == ["acme"]
    assert "Skipped an API key" in caplog.text


def test_pages_are_reserved_first_and_counted_when_they_are_answered(case: Case) -> None:
    limits = KeyLimits(pages_a_day=10)
    held = reserve(case, "w1", limits, Need(1, 0, 1))
    assert used(case) == Usage(1, 1, 0, 0)
    reserve(case, "w1", limits, Need(pages=4), held)
    assert used(case) == Usage(1, 5, 0, 0)
    case.store.settle("acme", "w1", NOTHING, 1, 3, DAY)
    assert used(case) == Usage(0, 0, 3, 3)
    assert case.store.usage("other", DAY) == Usage()


def test_pages_reserved_and_pages_counted_together_never_exceed_a_quota(case: Case) -> None:
    limits = KeyLimits(pages_a_day=10)
    one, other = reserve(case, "w1", limits, Need(pages=6)), reserve(case, "w2", limits, Need(pages=4))
    assert limit_of(lambda: reserve(case, "w1", limits, Need(pages=1), one)) == "day"
    assert limit_of(lambda: reserve(case, "w2", limits, Need(pages=1), other)) == "day"
    case.store.settle("acme", "w1", NOTHING, 1, 5, DAY)
    reserve(case, "w1", limits, Need(pages=1))
    assert used(case) == Usage(0, 5, 5, 5)


def test_a_block_is_taken_only_while_several_are_left(case: Case) -> None:
    limits = KeyLimits(concurrency=40, pages_a_day=40)
    held = reserve(case, "w1", limits, Need(10, 0, 10), spare=4)
    assert limit_of(lambda: reserve(case, "w1", limits, Need(10), held, spare=4)) == "concurrency"
    assert limit_of(lambda: reserve(case, "w2", limits, Need(pages=10), spare=4)) == "day"
    assert used(case) == Usage(10, 10)


def test_a_refused_request_leaves_no_trace(case: Case) -> None:
    limits = KeyLimits(requests_per_s=0.001, pages_a_month=1)
    assert limit_of(lambda: reserve(case, "w1", limits, Need(1, 1, 2))) == "month"
    assert used(case) == Usage()
    reserve(case, "w1", limits, Need(1, 1, 1))
    assert limit_of(lambda: reserve(case, "w2", limits, Need(1, 1, 0))) == "rate"


def test_a_new_day_begins_at_nothing(case: Case) -> None:
    limits = KeyLimits(pages_a_day=2, pages_a_month=3)
    reserve(case, "w1", limits, Need(pages=2))
    case.store.settle("acme", "w1", NOTHING, 1, 2, DAY)
    assert limit_of(lambda: reserve(case, "w1", limits, Need(pages=1))) == "day"
    reserve(case, "w1", limits, Need(pages=2), day=NEXT_DAY)
    case.store.settle("acme", "w1", NOTHING, 2, 2, NEXT_DAY)
    assert [used(case, day).today for day in (DAY, NEXT_DAY)] == [2, 2]


def test_a_month_has_its_own_quota(case: Case) -> None:
    limits = KeyLimits(pages_a_day=5, pages_a_month=3)
    for number, day in enumerate((Period("2027-03-01", "2027-03"), DAY), start=1):
        reserve(case, "w1", limits, Need(pages=1), day=day)
        case.store.settle("acme", "w1", NOTHING, number, 1, day)
    assert limit_of(lambda: reserve(case, "w1", limits, Need(pages=2))) == "month"
    assert used(case).this_month == 2


def test_requests_at_once_are_limited_over_all_workers(case: Case) -> None:
    limits = KeyLimits(concurrency=2)
    reserve(case, "w1", limits, Need(1))
    held = reserve(case, "w2", limits, Need(1))
    assert limit_of(lambda: reserve(case, "w2", limits, Need(1), held)) == "concurrency"
    case.store.hold("acme", "w1", NOTHING)
    reserve(case, "w2", limits, Need(1), held)
    assert used(case).requests == 2


def test_the_rate_lets_a_second_of_requests_through_at_once(case: Case) -> None:
    limits = KeyLimits(requests_per_s=0.5)
    reserve(case, "w1", limits, Need(1, 1))
    assert used(case).full_s == pytest.approx(2.0, abs=0.5)
    assert limit_of(lambda: reserve(case, "w2", limits, Need(1, 1))) == "rate"
    quick = KeyLimits(requests_per_s=5)
    # Redis counts by its own clock, which runs on meanwhile.
    assert sum(is_admitted(case.store, quick) for _ in range(12)) in {5, 6}


def is_admitted(store: KeyStore, limits: KeyLimits) -> bool:
    try:
        store.reserve("quick", "w1", limits, NOTHING, Need(0, 1), 1, DAY)
    except LimitReached:
        return False
    return True


def test_what_is_sent_twice_is_reserved_and_counted_once(case: Case) -> None:
    limits = KeyLimits(pages_a_day=5)
    for _ in range(2):
        reserve(case, "w1", limits, Need(1, 0, 3))
    assert used(case) == Usage(1, 3)
    for number in (1, 1, 2, 1, 2):
        case.store.settle("acme", "w1", NOTHING, number, 2, DAY)
    assert used(case) == Usage(0, 0, 4, 4)


def test_what_a_dead_worker_had_reserved_is_given_back_when_another_takes_its_place(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    reserve(case, "w1", limits, Need(2, 0, 6))
    reserve(case, "w2", limits, Need(1, 0, 2))
    case.store.settle("acme", "w1", Hold(1, 3), 1, 3, DAY)
    case.store.begin_worker("w1")
    assert used(case) == Usage(1, 2, 3, 3)


def test_what_a_dead_worker_had_reserved_is_given_back_when_its_lease_ends(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    for worker in ("w1", "w2"):
        case.store.keep_alive(worker)
        reserve(case, worker, limits, Need(1, 0, 2))
    case.let_leases_end()
    case.store.keep_alive("w2")
    assert used(case) == Usage(1, 2, 0, 0)


def test_a_worker_that_was_taken_for_dead_counts_its_answers_all_the_same(case: Case) -> None:
    limits = KeyLimits(concurrency=3, pages_a_day=10)
    case.store.put(StoredKey(KeyEntry("acme"), ()))
    case.store.keep_alive("w1")
    reserve(case, "w1", limits, Need(1, 0, 2))
    case.let_leases_end()
    case.store.keep_alive("w2")
    case.store.settle("acme", "w1", NOTHING, 1, 2, DAY)
    assert used(case) == Usage(0, 0, 2, 2)


def test_days_of_more_than_a_year_ago_are_forgotten(case: Case) -> None:
    old, recent = Period("2020-01-01", "2020-01"), Period(oldest_period(), oldest_period()[:7])
    case.store.settle("acme", "w1", NOTHING, 1, 7, old)
    case.store.settle("acme", "w1", NOTHING, 2, 1, recent)
    case.store.begin_worker("w1")
    assert used(case, old) == Usage()
    assert used(case, recent).today == 1


# A service of three workers: each counts one page after the other until the quota is used up, and writes a byte for
# each page that counts. A killed one has a successor.
SERVICE = """
import os, sys
from multiprocessing import get_context
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.open_store import open_store
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.errors import QuotaExceeded

address, secret, *kills = sys.argv[1:]
counts = PageCounts("service", 3)
store = open_store(address)

def work(slot, wire):
    gate = AccessGate(store, "service", counts=counts, slot=slot)
    gate.start()
    while not gate.is_ready:
        pass
    while True:
        try:
            admission = gate.enter(gate.check(secret, "read"), 1)
        except QuotaExceeded:
            break
        admission.count()
        admission.settle()
        os.write(wire, b".")
    gate.stop()

def start(slot):
    out, wire = os.pipe()
    worker = get_context("fork").Process(target=work, args=(slot, wire))
    worker.start()
    os.close(wire)
    return worker, out

workers = [start(slot) for slot in range(3)]
answered = 0
for slot, pages in enumerate(map(int, kills)):
    worker, out = workers[slot]
    while pages > 0 and (got := len(os.read(out, pages))):
        answered += got
        pages -= got
    worker.kill()
    worker.join()
    workers.append((worker, out))
    workers[slot] = start(slot)
for worker, out in workers:
    while got := len(os.read(out, 65536)):
        answered += got
    worker.join()
print(answered)
"""


@pytest.mark.usefixtures("one_day")
def test_no_page_is_lost_or_counted_twice_when_workers_are_killed(case: Case) -> None:
    quota = 20_000
    secret = add_key(case.store, KeyEntry("acme", limits=KeyLimits(pages_a_day=quota, concurrency=100)))
    command = [sys.executable, "-c", SERVICE, case.address, secret, "500", "700"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), cwd=ROOT, check=True)
    assert done.stderr == ""
    counted = case.store.usage("acme", period_of(time.time()))
    # Of each that was killed, one page may be counted whose byte was not written any more.
    assert counted.this_month - 2 <= int(done.stdout) <= counted.this_month
    # What the dead had in their blocks is given back, and used by the others.
    assert counted == Usage(0, 0, quota, quota)
