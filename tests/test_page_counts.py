"""Pages that are counted in shared memory until the store has them, and blocks of a key that a worker takes at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest
import requests
from support import Server, run_server, wait_until
from web_support import picture

from ocrsvc.access.api_keys import KeyEntry, KeyLimits
from ocrsvc.access.key_store import Hold, LimitReached, Need, Period, Usage, period_of
from ocrsvc.access.manage_keys import add_key
from ocrsvc.access.open_store import open_store
from ocrsvc.access.page_counts import SERIES, CountBlock, PageCounts
from ocrsvc.access.reservations import BLOCK, SPARE, KeyReservation, WorkerReservations, settle_abandoned
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import KeysUnavailable

DAY = Period("2027-03-31", "2027-03")
ONE = Need(1, 1, 1)
LARGE = KeyLimits(requests_per_s=10_000, concurrency=1000, pages_a_day=1000, pages_a_month=1000)


@pytest.fixture
def counts() -> Iterator[PageCounts]:
    with closing(PageCounts("service", 3)) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as opened:
        yield opened


def settled(block: CountBlock) -> list[tuple[str, str, int]]:
    found = []
    for one in block.unsettled():
        found.append((one.name, one.period.day, one.pages))
        block.settled(one)
    return sorted(found)


def test_pages_are_settled_by_key_and_day(counts: PageCounts) -> None:
    block = counts.block(0)
    assert block.claim()
    for name, day, pages in (("a", "2027-03-31", 1), ("b", "2027-03-31", 2), ("a", "2027-04-01", 3), ("a", DAY.day, 4)):
        block.add(name, day, pages)
    assert settled(block) == [("a", "2027-03-31", 5), ("a", "2027-04-01", 3), ("b", "2027-03-31", 2)]
    assert settled(block) == []


def test_pages_count_once_though_their_worker_died_before_it_noted_that_the_store_has_them(
    counts: PageCounts, store: SqliteStore
) -> None:
    block = counts.block(0)
    block.claim()
    block.add("a", DAY.day, 1)
    [one] = block.unsettled("a")
    store.settle("a", block.worker, Hold(), one.series, one.total, one.period)
    block.add("a", DAY.day, 5)
    block.add("a", "2027-04-01", 2)
    block.give_up()
    settle_abandoned(store, counts)
    assert store.usage("a", DAY).today == 6
    assert store.usage("a", Period("2027-04-01", "2027-04")).today == 2


def test_a_block_that_is_full_says_so_and_has_room_again_when_it_is_settled(counts: PageCounts) -> None:
    block = counts.block(0)
    block.claim()
    assert all(block.add(f"key{number}", DAY.day, 1) for number in range(SERIES))
    assert not block.add("one-more", DAY.day, 1)
    assert block.add("key0", DAY.day, 1)
    assert counts.unsettled_slots() == [0]
    assert sum(pages for *_, pages in settled(block)) == SERIES + 1
    assert counts.unsettled_slots() == []
    assert block.add("one-more", DAY.day, 1)


def count_and_wait(counts: PageCounts, wire: int) -> None:
    block = counts.block(1)
    assert block.claim()
    block.add("acme", DAY.day, 7)
    os.write(wire, b".")
    signal.pause()


def test_what_a_killed_worker_has_counted_is_settled_by_another(counts: PageCounts, store: SqliteStore) -> None:
    out, wire = os.pipe()
    worker = get_context("fork").Process(target=count_and_wait, args=(counts, wire))
    worker.start()
    os.read(out, 1)
    # It lives: it settles by itself.
    settle_abandoned(store, counts)
    assert store.usage("acme", DAY) == Usage()
    worker.kill()
    worker.join()
    settle_abandoned(store, counts)
    settle_abandoned(store, counts)
    assert store.usage("acme", DAY) == Usage(today=7, this_month=7)
    for end in (out, wire):
        os.close(end)


def test_a_worker_counts_first_what_the_one_before_it_has_left(counts: PageCounts, store: SqliteStore) -> None:
    before = counts.block(0)
    before.claim()
    before.add("acme", DAY.day, 3)
    accounts = WorkerReservations(store, counts, 0, lambda: 0.0)
    assert accounts.begin()
    assert store.usage("acme", DAY).today == 3
    accounts.end()


def lease_of(store: SqliteStore, counts: PageCounts, slot: int = 0, now: list[float] | None = None) -> KeyReservation:
    block, clock = counts.block(slot), now or [0.0]
    block.claim()
    return KeyReservation(store, block, "acme", lambda: clock[0])


def test_a_worker_takes_a_block_and_asks_nobody_for_those_that_come_next(
    counts: PageCounts, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, asked = lease_of(store, counts), list[Need]()
    reserve = store.reserve

    def note(*given: object) -> None:
        asked.append(given[4])  # type: ignore[arg-type]
        reserve(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "reserve", note)
    for _ in range(BLOCK):
        assert not lease.take(LARGE, DAY, ONE, in_blocks=True)
    assert asked == [Need(BLOCK, BLOCK, BLOCK)]
    assert store.usage("acme", DAY).requests == BLOCK
    for _ in range(BLOCK):
        assert lease.finish(ONE, 1, DAY.day)
    lease.settle()
    used = store.usage("acme", DAY)
    assert (used.requests, used.reserved, used.today) == (0, 0, BLOCK)


def test_pages_that_are_counted_and_not_settled_are_not_taken_again(counts: PageCounts, store: SqliteStore) -> None:
    lease, limits = lease_of(store, counts), KeyLimits(pages_a_day=100)
    for _ in range(100):
        lease.take(limits, DAY, ONE, in_blocks=True)
        lease.finish(ONE, 1, DAY.day)
    with pytest.raises(LimitReached):
        lease.take(limits, DAY, ONE, in_blocks=True)
    lease.settle()
    assert store.usage("acme", DAY) == Usage(today=100, this_month=100)


def test_what_is_not_used_of_a_block_goes_back(counts: PageCounts, store: SqliteStore) -> None:
    lease = lease_of(store, counts)
    lease.take(LARGE, DAY, ONE, in_blocks=True)
    lease.settle()
    assert store.usage("acme", DAY).requests == store.usage("acme", DAY).reserved == 1
    lease.finish(ONE, 0, DAY.day)
    lease.settle()
    assert store.usage("acme", DAY).requests == store.usage("acme", DAY).reserved == 0


@pytest.mark.parametrize(
    "limits",
    [
        KeyLimits(requests_per_s=SPARE - 1),
        KeyLimits(concurrency=SPARE - 1),
        KeyLimits(pages_a_day=SPARE - 1),
        KeyLimits(pages_a_month=SPARE - 1),
    ],
    ids=str,
)
def test_a_key_with_little_left_is_asked_for_each_request(
    counts: PageCounts, store: SqliteStore, limits: KeyLimits
) -> None:
    assert lease_of(store, counts).take(limits, DAY, ONE, in_blocks=True)
    used = store.usage("acme", DAY)
    assert (used.requests, used.reserved) == (1, 1)


def test_of_what_little_is_left_a_worker_takes_no_more_than_it_needs_and_keeps_it_for_the_next(
    counts: PageCounts, store: SqliteStore
) -> None:
    lease, limits = lease_of(store, counts), KeyLimits(concurrency=10, pages_a_day=1000)
    for _ in range(5):
        assert not lease.take(limits, DAY, Need(1, 0, 1), in_blocks=True)
        lease.finish(Need(1, 0, 1), 1, DAY.day)
        used = store.usage("acme", DAY)
        assert (used.requests, used.reserved) == (1, BLOCK)
    lease.settle()
    assert store.usage("acme", DAY) == Usage(today=5, this_month=5)


def test_two_workers_together_never_take_more_than_there_is(counts: PageCounts, store: SqliteStore) -> None:
    limits = KeyLimits(pages_a_day=200, concurrency=1000)
    leases = [lease_of(store, counts, slot) for slot in range(2)]
    taken = 0
    for turn in range(400):
        try:
            leases[turn % 2].take(limits, DAY, ONE, in_blocks=True)
            taken += 1
        except LimitReached:
            # As it happens four times a second.
            leases[1 - turn % 2].settle()
    assert taken == 200


def test_a_request_does_not_wait_for_others_for_long(
    counts: PageCounts, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocrsvc.access.reservations._LIMIT_S", 0.01)
    lease = lease_of(store, counts)
    with lease._lock, pytest.raises(KeysUnavailable):
        lease.take(LARGE, DAY, ONE, in_blocks=True)


def send_pages(server: Server, secret: str, pages: int) -> None:
    for _ in range(pages):
        answer = requests.post(f"{server.url}/v1/ocr", data=picture(), headers={"X-API-Key": secret}, timeout=30)
        assert answer.status_code == 200


@pytest.mark.usefixtures("one_day")
def test_a_service_counts_what_its_killed_workers_have_answered(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}/keys.sqlite"
    with closing(open_store(address)) as store:
        secret = add_key(store, KeyEntry("acme", limits=LARGE))

        def counted() -> int:
            return store.usage("acme", period_of(time.time())).this_month

        with run_server({"OCRSVC_KEYS": address, "OCRSVC_WORKERS": "1"}) as server:
            (worker,) = server.workers()
            send_pages(server, secret, 5)
            os.kill(worker, signal.SIGKILL)
            server.wait_for("READY in", count=2)
            wait_until(lambda: counted() == 5, "its successor has counted them")
            (worker,) = server.workers()
            send_pages(server, secret, 7)
            os.kill(worker, signal.SIGKILL)
        # It has ended, with a successor or without.
        assert counted() == 12
