"""Page counts in shared memory until the store has them, and the blocks of a key's limits that a worker reserves."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from image_support import png
from support import Server, run_server, wait_until

from ocrsvc.access.admission import BLOCK, SPARE, KeyReservation
from ocrsvc.access.api_keys import KeyEntry, KeyLimits
from ocrsvc.access.key_store import Need, day_of
from ocrsvc.access.manage_keys import add_key, open_store
from ocrsvc.access.page_counts import SERIES, CountBlock, PageCounts
from ocrsvc.access.sqlite_store import SqliteStore

DAY, NEXT_DAY = "2027-03-31", "2027-04-01"
ONE = Need(1, 1, 1)
LARGE = KeyLimits(requests_per_s=10_000, concurrency=1000, pages_a_day=1000, pages_a_month=1000)


@pytest.fixture
def counts() -> Iterator[PageCounts]:
    with closing(PageCounts("service", 3)) as made:
        yield made


@pytest.fixture
def block(counts: PageCounts) -> CountBlock:
    made = CountBlock(counts, 0)
    assert made.claim()
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as opened:
        yield opened


@pytest.fixture
def held(store: SqliteStore, block: CountBlock) -> KeyReservation:
    return KeyReservation(store, block, "acme", lambda: 0.0)


def settled(block: CountBlock) -> list[tuple[str, str, int]]:
    found = []
    for one in block.unsettled():
        found.append((one.name, one.day, one.pages))
        block.note_settled(one)
    return sorted(found)


def test_full_block_has_room_after_settlement(counts: PageCounts, block: CountBlock) -> None:
    assert all(block.add(f"key{number}", DAY, 1) for number in range(SERIES))
    assert not block.add("one-more", DAY, 1)
    assert block.add("key0", DAY, 1)
    assert counts.unsettled_slots() == [0]
    assert sum(pages for *_, pages in settled(block)) == SERIES + 1
    assert counts.unsettled_slots() == []
    assert block.add("one-more", DAY, 1)


def test_a_worker_reserves_a_block(store: SqliteStore, held: KeyReservation, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, reserved = store.reserve, list[Need]()

    def note(*given: Any) -> None:
        reserved.append(given[4])
        reserve(*given)

    monkeypatch.setattr(store, "reserve", note)
    for _ in range(BLOCK):
        assert not held.take(LARGE, DAY, ONE)
    assert reserved == [Need(BLOCK, BLOCK, BLOCK)]
    assert store.usage("acme", DAY).requests == BLOCK
    for left in range(BLOCK - 1, -1, -1):
        assert held.finish(ONE, 1, DAY)
        held.settle()
        assert store.usage("acme", DAY)[:3] == (left, left, BLOCK - left)


@pytest.mark.parametrize("limit", ["requests_per_s", "concurrency", "pages_a_day", "pages_a_month"])
def test_scarce_key_calls_the_store_for_each_request(store: SqliteStore, held: KeyReservation, limit: str) -> None:
    assert held.take(KeyLimits(**{limit: SPARE - 1}), DAY, ONE)
    assert store.usage("acme", DAY)[:2] == (1, 1)


def send_pages_and_kill(server: Server, secret: str, pages: int) -> None:
    (worker,) = server.workers()
    for _ in range(pages):
        answer = requests.post(f"{server.url}/v1/ocr", data=png(), headers={"X-API-Key": secret}, timeout=30)
        assert answer.status_code == 200
    os.kill(worker, signal.SIGKILL)


@pytest.mark.usefixtures("one_day")
def test_pages_of_killed_workers_are_counted(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}/keys.sqlite"
    with closing(open_store(address)) as store:
        secret = add_key(store, KeyEntry("acme", limits=LARGE))

        def counted() -> int:
            return store.usage("acme", day_of(time.time())).this_month

        with run_server({"OCRSVC_KEYS": address, "OCRSVC_WORKERS": "1"}) as server:
            send_pages_and_kill(server, secret, 5)
            server.wait_for("READY in", count=2)
            wait_until(lambda: counted() == 5, "the successor has counted the pages")
            send_pages_and_kill(server, secret, 7)
        # The service has ended, whether or not a successor of the worker had started.
        assert counted() == 12
