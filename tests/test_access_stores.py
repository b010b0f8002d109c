"""The stores of API keys: usage is counted exactly once, whatever fails."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from keys_support import keys_in
from redis import Redis
from redis_support import running_redis
from support import ROOT, clean_environment, wait_until

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, StoredKey
from ocrsvc.access.key_store import Hold, KeyStore, LimitReached, Need, Usage, day_of, oldest_day
from ocrsvc.access.manage_keys import add_key, change_key, check_store, open_store, revoke_key, rotate_key
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import KeyRefused, KeysUnavailable, OperatorError, SettingsError

DAY, NEXT_DAY = "2027-03-31", "2027-04-01"
NOTHING = Hold()
ACME = StoredKey(KeyEntry("acme"), ())


@dataclass(frozen=True)
class Case:
    """A store, its address, and a function that expires the leases of all workers."""

    store: KeyStore
    address: str
    expire_leases: Callable[[], object]

    def reserve(
        self, worker: str, limits: KeyLimits, need: Need, held: Hold = NOTHING, spare: int = 1, day: str = DAY
    ) -> Hold:
        """Reserve and return what the worker then holds."""
        self.store.reserve("acme", worker, limits, held, need, spare, day)
        return Hold(held.requests + need.requests, held.pages + need.pages)

    def refusal(self, *given: Any, **more: Any) -> str:
        """Return the limit that refuses a reservation."""
        with pytest.raises(LimitReached) as refused:
            self.reserve(*given, **more)
        return refused.value.limit

    def settle(self, series: int, total: int, day: str = DAY, worker: str = "w1", held: Hold = NOTHING) -> None:
        self.store.settle("acme", worker, held, series, total, day)

    def used(self, day: str = DAY) -> Usage:
        return self.store.usage("acme", day)


@pytest.fixture(params=["sqlite", "redis"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """A case for each store."""
    if request.param == "sqlite":
        now = [1000.0]
        path = tmp_path / "keys.sqlite"
        with closing(SqliteStore(path, lambda: now[0])) as store:
            yield Case(store, f"sqlite:{path}", lambda: now.append(now.pop() + 6.0))
        return
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(Redis.from_url(url)) as client:
        yield Case(store, url, lambda: [client.zadd("ocrsvc:workers", {"w1": 1.0, "w2": 1.0})])


@pytest.mark.parametrize(
    "change",
    [
        lambda store, key: change_key(store, key, replace(key.entry, priority="batch")),
        lambda store, _: rotate_key(store, "acme", 0.0, 5.0),
        lambda store, _: add_key(store, KeyEntry("acme", created_at=10.0)),
    ],
    ids=["change", "rotate", "add"],
)
def test_a_key_revoked_during_a_change_stays_revoked(
    case: Case, monkeypatch: pytest.MonkeyPatch, change: Callable[[KeyStore, StoredKey], object]
) -> None:
    add_key(case.store, KeyEntry("acme", expires_at=9.0))
    before = case.store.keys()
    revoke_key(case.store, "acme", 5.0)
    number = case.store.version()
    with monkeypatch.context() as at_once:
        at_once.setattr(case.store, "keys", lambda: before)
        with pytest.raises(OperatorError, match="Nothing was changed"):
            change(case.store, before[0])
    [key] = case.store.keys()
    assert (key.entry.revoked_at, key.secrets, case.store.version()) == (5.0, (), number)


def test_unreadable_key_is_skipped(
    case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.store.put(ACME)
    later = '{"entry": {"name": "later", "limits": {"pages_an_hour": 5}}, "secrets": []}'
    for name, document in (("later", later), ("broken", "{")):
        monkeypatch.setattr(f"{type(case.store).__module__}.write_key", lambda _, document=document: document)
        case.store.put(StoredKey(KeyEntry(name), ()))
    assert case.store.keys() == [ACME]
    assert caplog.text.count("Skipped an API key that cannot be read") == 2


def test_reserved_and_counted_pages_together_stay_within_the_quota(case: Case) -> None:
    limits = KeyLimits(pages_a_day=10)
    held = case.reserve("w1", limits, Need(1, 0, 1))
    assert case.used() == Usage(1, 1, 0, 0)
    one, other = case.reserve("w1", limits, Need(pages=5), held), case.reserve("w2", limits, Need(pages=4))
    assert case.used() == Usage(1, 10, 0, 0)
    assert case.refusal("w1", limits, Need(pages=1), one) == "pages-a-day"
    assert case.refusal("w2", limits, Need(pages=1), other) == "pages-a-day"
    # One of six pages failed.
    case.settle(1, 5)
    case.reserve("w1", limits, Need(pages=1))
    assert (case.used(), case.store.usage("other", DAY)) == (Usage(0, 5, 5, 5), Usage())


def test_a_block_is_reserved_only_if_the_limit_allows_several(case: Case) -> None:
    limits = KeyLimits(requests_per_s=40, concurrency=40, pages_a_day=40)
    held = case.reserve("w1", limits, Need(10, 10, 10), spare=4)
    assert case.refusal("w1", limits, Need(10), held, spare=4) == "concurrency"
    assert case.refusal("w2", limits, Need(pages=10), spare=4) == "pages-a-day"
    assert case.refusal("w2", limits, Need(0, 10, 0), spare=4) == "requests"
    assert case.used()[:4] == (10, 10, 0, 0)
    assert case.used().full_s == pytest.approx(0.25, abs=0.1)


def test_refused_request_changes_nothing(case: Case) -> None:
    limits = KeyLimits(requests_per_s=0.001, pages_a_month=1)
    assert case.refusal("w1", limits, Need(1, 1, 2)) == "pages-a-month"
    assert case.used() == Usage()
    case.reserve("w1", limits, Need(1, 1, 1))
    assert case.refusal("w2", limits, Need(1, 1, 0)) == "requests"


def test_day_and_month_have_separate_quotas(case: Case) -> None:
    limits = KeyLimits(pages_a_day=2, pages_a_month=3)
    for series, day in enumerate((DAY, NEXT_DAY)):
        case.reserve("w1", limits, Need(pages=2), day=day)
        case.settle(series, 2, day)
        assert case.refusal("w1", limits, Need(pages=1), day=day) == "pages-a-day"
    assert [case.used(day) for day in (DAY, NEXT_DAY)] == [Usage(0, 0, 2, 2)] * 2
    assert case.refusal("w1", limits, Need(pages=2), day="2027-03-01") == "pages-a-month"


def test_concurrency_is_limited_over_all_workers(case: Case) -> None:
    limits = KeyLimits(concurrency=2)
    case.reserve("w1", limits, Need(1))
    held = case.reserve("w2", limits, Need(1))
    assert case.refusal("w2", limits, Need(1), held) == "concurrency"
    case.store.settle("acme", "w1", NOTHING)
    case.reserve("w2", limits, Need(1), held)
    assert case.used().requests == 2


def test_rate_allows_a_burst_of_one_second(case: Case) -> None:
    slow, quick = KeyLimits(requests_per_s=0.5), KeyLimits(requests_per_s=5)

    def is_admitted() -> bool:
        with suppress(LimitReached):
            case.store.reserve("quick", "w1", quick, NOTHING, Need(0, 1), 1, DAY)
            return True
        return False

    case.reserve("w1", slow, Need(1, 1))
    assert case.used().full_s == pytest.approx(2.0, abs=0.5)
    assert case.refusal("w2", slow, Need(1, 1)) == "requests"
    # Redis uses its own clock, which advances during the loop.
    assert sum(is_admitted() for _ in range(12)) in {5, 6}


def test_repeated_calls_reserve_and_count_once(case: Case) -> None:
    for _ in range(2):
        case.reserve("w1", KeyLimits(pages_a_day=5), Need(1, 0, 3))
    assert case.used() == Usage(1, 3)
    for series in (1, 1, 2, 1, 2):
        case.settle(series, 2)
    assert case.used() == Usage(0, 0, 4, 4)


def test_successor_releases_a_dead_workers_reservations(case: Case) -> None:
    case.store.put(ACME)
    case.reserve("w1", KeyLimits(), Need(2, 0, 6))
    case.reserve("w2", KeyLimits(), Need(1, 0, 2))
    case.settle(1, 3, held=Hold(1, 3))
    case.store.begin_worker("w1")
    assert case.used() == Usage(1, 2, 3, 3)


def test_silent_workers_reservations_are_released_but_pages_count(case: Case) -> None:
    case.store.put(ACME)
    for worker in ("w1", "w2"):
        case.store.keep_alive(worker)
        case.reserve(worker, KeyLimits(), Need(1, 0, 2))
    case.expire_leases()
    case.store.keep_alive("w2")
    assert case.used() == Usage(1, 2, 0, 0)
    case.settle(1, 2)
    assert case.used() == Usage(1, 2, 2, 2)


def test_usage_older_than_a_year_is_deleted(case: Case) -> None:
    case.store.put(ACME)
    case.settle(1, 7, "2020-01-01")
    case.settle(2, 1, oldest_day())
    case.store.begin_worker("w1")
    assert (case.used("2020-01-01"), case.used(oldest_day()).today) == (Usage(), 1)


# A service of four workers. Each counts page after page until the quota is used up, and writes a byte per counted
# page. A killed worker is replaced.
SERVICE = """
import os, sys
from multiprocessing import get_context
from ocrsvc.access.gate import AccessGate
from ocrsvc.access.manage_keys import open_store
from ocrsvc.access.page_counts import PageCounts
from ocrsvc.errors import QuotaExceeded

address, secret, *kills = sys.argv[1:]
counts = PageCounts("service", 4)
store = open_store(address)

out, wire = os.pipe()

def work(slot):
    gate = AccessGate(store, counts, slot)
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
    worker = get_context("fork").Process(target=work, args=(slot,))
    worker.start()
    return worker

workers = [start(slot) for slot in range(4)]
answered = 0
for slot, pages in enumerate(map(int, kills)):
    while answered < pages:
        answered += len(os.read(out, pages))
    workers[slot].kill()
    workers[slot].join()
    workers[slot] = start(slot)
os.close(wire)
while got := len(os.read(out, 65536)):
    answered += got
for worker in workers:
    worker.join()
print(answered)
"""


@pytest.mark.usefixtures("one_day")
def test_no_page_is_lost_or_counted_twice_when_workers_are_killed(case: Case) -> None:
    quota = 20_000
    secret = add_key(case.store, KeyEntry("acme", limits=KeyLimits(pages_a_day=quota, concurrency=100)))
    command = [sys.executable, "-c", SERVICE, case.address, secret, "500", "1200"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), cwd=ROOT, check=True)
    assert done.stderr == ""
    counted = case.store.usage("acme", day_of(time.time()))
    # A killed worker may have counted one page without writing its byte.
    assert counted.this_month - 2 <= int(done.stdout) <= counted.this_month
    # Pages reserved by killed workers are released and used by the others.
    assert counted == Usage(0, 0, quota, quota)


# Opens and closes the file as `ocrsvc keys` does. SQLite deletes the log when the last connection closes.
OPEN_AND_CLOSE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM key').fetchall()"


def test_a_connection_closed_by_redis_fails_no_request(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(Redis.from_url(url)) as client:
        store.reserve("acme", "w1", KeyLimits(), NOTHING, Need(1, 0, 1), 1, DAY)
        client.client_kill_filter(_type="normal", skipme=True)
        # Redis may also lose its loaded scripts.
        client.script_flush()
        store.settle("acme", "w1", NOTHING, 1, 1, DAY)
        assert store.usage("acme", DAY) == Usage(0, 0, 1, 1)
        # A change repeated after a lost response is applied once.
        changed = StoredKey(KeyEntry("acme", created_at=1.0), ())
        assert [store.put(key) for key in (ACME, ACME, changed)] == [True, True, False]
        assert (store.keys(), store.version()) == ([ACME], 1)


def test_unreachable_redis_is_reported_to_operators_without_password() -> None:
    store = open_store("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(KeysUnavailable) as refused:
        store.version()
    assert "127.0.0.1" in refused.value.reason
    assert "secret" not in refused.value.reason
    assert "127.0.0.1" not in str(refused.value)
    assert refused.value.retry_after_s > 0


@pytest.mark.parametrize("address", ["redis://u:sec#ret@h:1/0", "redis://u:sec?ret@h:1/0", "redis://:pass@h:sec/0"])
def test_malformed_address_is_reported_without_password(address: str) -> None:
    with pytest.raises(SettingsError, match="OCRSVC_KEYS is not a valid Redis address") as refused:
        check_store(address)
    assert "sec" not in str(refused.value)


def test_unusable_key_file_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").write_text("no database " * 100)
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("PRAGMA user_version = 77")
    for name, message in (("notes", "names the file .*notes"), ("nowhere/x", "nowhere"), ("other", "not a key file")):
        with pytest.raises(SettingsError, match=message):
            check_store(f"sqlite:{tmp_path}/{name}")
    # Root, which runs CI, can access every file.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SettingsError, match="this user may not read and write it"):
        check_store(f"sqlite:{tmp_path}/keys.db")


def test_key_file_of_an_earlier_version_keeps_keys_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite"
    with closing(sqlite3.connect(path)) as earlier:
        # A file of version 1 with one key and three counted pages.
        earlier.executescript((ROOT / "tests" / "keys_of_version_1.sql").read_text("utf-8"))
    check_store(f"sqlite:{path}")
    with closing(SqliteStore(path)) as store:
        [key] = store.keys()
        assert (key.entry.name, key.entry.limits.pages_a_day, key.secrets[0].id) == ("acme", 10, "0123456789ab")
        store.begin_worker("w1")
        store.reserve("acme", "w1", key.entry.limits, NOTHING, Need(1, 0, 2), 1, DAY)
        for _ in range(2):
            store.settle("acme", "w1", NOTHING, 7, 2, DAY)
        assert store.usage("acme", DAY) == Usage(0, 0, 5, 5)


def test_key_file_is_readable_only_by_its_user(tmp_path: Path) -> None:
    check_store(f"sqlite:{tmp_path}/keys.sqlite")
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"keys.sqlite": 0o600}


def test_locked_key_file_is_waited_for_one_second(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite"
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.version()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(KeysUnavailable) as refused:
            store.settle("acme", "w1", Hold(1, 1))
        assert "locked" in refused.value.reason
        other.execute("ROLLBACK")
        store.settle("acme", "w1", Hold(1, 1))
        assert store.usage("acme", DAY).requests == 1


def test_large_write_ahead_log_is_checkpointed(tmp_path: Path) -> None:
    log = tmp_path / "keys.sqlite-wal"
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        for number in range(1, 10_000):
            store.settle("acme", "w1", NOTHING, number, 1, DAY)
            if log.stat().st_size > 8 << 20:
                break
        store.keep_alive("w1")
        assert log.stat().st_size == 0
        assert store.usage("acme", DAY).today > 1000


def test_replaced_key_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with keys_in(tmp_path / "other") as keys:
        keys.add("ben")
    with keys_in(tmp_path) as keys:
        secret = keys.add("anna")
        keys.usage("anna")
        for ending in ("", "-wal", "-shm"):
            (tmp_path / f"keys.db{ending}").unlink()
        (tmp_path / "other" / "keys.db").rename(tmp_path / "keys.db")
        keys.gate.refresh()
        assert keys.gate.check_named("ben").name == "ben"
        with pytest.raises(KeyRefused):
            keys.gate.check(secret)
        assert keys.usage("ben") == Usage()
        (tmp_path / "keys.db").unlink()
        keys.gate.refresh()
        with pytest.raises(KeyRefused):
            keys.gate.check_named("ben")


def test_gate_continues_after_an_unexpected_error(tmp_path: Path) -> None:
    calls = list[int]()

    def fail() -> int:
        calls.append(1)
        raise ValueError

    with keys_in(tmp_path) as keys:

        def is_known() -> bool:
            with suppress(KeyRefused):
                return keys.gate.check_named("anna").name == "anna"
            return False

        keys.gate.start()
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(keys.store, "version", fail)
            wait_until(lambda: calls)
        add_key(keys.store, KeyEntry("anna"))
        wait_until(is_known)
        keys.gate.stop()


def test_a_process_that_exits_keeps_the_write_ahead_log_of_others(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        keys.add("anna")
        # Opens the second connection.
        keys.usage("anna")
        path = tmp_path / "keys.db"
        subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, str(path)], check=True, timeout=60)
        seen = keys.store.version()
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE key SET document = document")
            other.commit()
        assert keys.store.version() == seen + 1
