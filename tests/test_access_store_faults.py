"""The stores of API keys when something is wrong: lost answers, broken connections, other files, other processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from keys_support import keys_in
from redis import Redis
from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError as AnswerLost
from redis_support import running_redis
from support import ROOT, wait_until

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, StoredKey
from ocrsvc.access.key_store import Hold, Need, Usage
from ocrsvc.access.manage_keys import add_key, check_store, open_store
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import KeyRefused, KeysUnavailable, SettingsError

DAY = "2027-03-31"
NOTHING = Hold()
# As every run of `ocrsvc keys` does; the last one that closes a file in WAL mode removes its log.
OPEN_AND_CLOSE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM key').fetchall()"


def test_a_connection_that_redis_has_closed_fails_no_request(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(Redis.from_url(url)) as client:
        store.reserve("acme", "w1", KeyLimits(), NOTHING, Need(1, 0, 1), 1, DAY)
        client.client_kill_filter(_type="normal", skipme=True)
        # Nor does a Redis that knows the scripts no more.
        client.script_flush()
        store.settle("acme", "w1", NOTHING, 1, 1, DAY)
        assert store.usage("acme", DAY) == Usage(0, 0, 1, 1)


@contextmanager
def first_answer_lost() -> Iterator[None]:
    """Redis does what it is told, and its first answer does not come back."""
    read, lost = AbstractConnection.read_response, list[object]()

    def read_or_lose(connection: AbstractConnection, *given: Any, **more: Any) -> Any:
        answer = read(connection, *given, **more)
        if not lost:
            lost.append(answer)
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise AnswerLost
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "read_response", read_or_lose)
        yield
    assert lost


def test_repeated_redis_calls_have_one_effect(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store:
        # Redis learns the script here.
        store.settle("acme", "w1", NOTHING, 1, 1, DAY)
        with first_answer_lost():
            store.settle("acme", "w1", NOTHING, 2, 1, DAY)
        assert store.usage("acme", DAY).today == 2
        key = StoredKey(KeyEntry("acme"), ())
        with first_answer_lost():
            assert store.put(key)
        assert not store.put(StoredKey(KeyEntry("acme", created_at=1.0), ()))
        assert (store.keys(), store.version()) == ([key], 1)


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
    for name, said in (("notes", "names the file .*notes"), ("nowhere/x", "nowhere"), ("other", "not a key file")):
        with pytest.raises(SettingsError, match=said):
            check_store(f"sqlite:{tmp_path}/{name}")
    # As for others than root, who runs the tests of CI.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SettingsError, match="this user may not read and write it"):
        check_store(f"sqlite:{tmp_path}/keys.db")


def test_key_file_of_an_earlier_version_keeps_keys_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite"
    with closing(sqlite3.connect(path)) as earlier:
        # As the first checkouts made it: one key, three pages counted.
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


def test_ending_process_keeps_the_log_for_other_processes(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        keys.add("anna")
        # By its second connection.
        keys.usage("anna")
        path = tmp_path / "keys.db"
        subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, str(path)], check=True, timeout=60)
        seen = keys.store.version()
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE key SET document = document")
            other.commit()
        assert keys.store.version() == seen + 1
