"""The stores of API keys when something is wrong: broken connections, lost answers, files that are none."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis_support import running_redis
from support import ROOT

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, StoredKey
from ocrsvc.access.key_store import Hold, Need, Period, Usage
from ocrsvc.access.open_store import check_store, open_store
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.errors import KeysUnavailable, SettingsError

DAY = Period("2027-03-31", "2027-03")
NONE = KeyLimits()
NOTHING = Hold()


def test_a_connection_that_redis_has_closed_fails_no_request(tmp_path: Path) -> None:
    with running_redis(tmp_path) as url, closing(open_store(url)) as store, closing(Redis.from_url(url)) as client:
        store.reserve("acme", "w1", NONE, NOTHING, Need(1, 0, 1), 1, DAY)
        client.client_kill_filter(_type="normal", skipme=True)
        # Nor does a Redis that knows the scripts no more.
        client.script_flush()
        store.settle("acme", "w1", NOTHING, 1, 1, DAY)
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


def test_what_redis_did_though_its_answer_was_lost_is_done_once(tmp_path: Path) -> None:
    lost = threading.Event()
    with (
        running_redis(tmp_path) as url,
        losing_answers(url, tmp_path / "bad.sock", lost) as bad,
        closing(open_store(bad)) as store,
    ):
        # Redis learns the scripts here.
        store.settle("acme", "w1", NOTHING, 1, 1, DAY)
        lost.set()
        with pytest.raises(KeysUnavailable):
            store.settle("acme", "w1", NOTHING, 2, 1, DAY)
        lost.clear()
        assert store.usage("acme", DAY).today == 2
        store.settle("acme", "w1", NOTHING, 2, 1, DAY)
        assert store.usage("acme", DAY).today == 2
        # A key as well.
        lost.set()
        key = StoredKey(KeyEntry("acme"), ())
        with pytest.raises(KeysUnavailable):
            store.put(key)
        lost.clear()
        assert store.put(key)
        assert not store.put(StoredKey(KeyEntry("acme", created_at=1.0), ()))
        assert (store.keys(), store.version()) == ([key], 1)


def test_a_redis_that_is_not_there_is_said_without_its_password() -> None:
    store = open_store("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(KeysUnavailable) as refused:
        store.version()
    assert "secret" not in refused.value.reason
    assert "127.0.0.1" in refused.value.reason
    assert "127.0.0.1" not in str(refused.value)
    assert refused.value.retry_after_s > 0


def test_an_address_that_is_none_is_said_without_its_password() -> None:
    for address in ("redis://u:sec#ret@h:1/0", "redis://u:sec?ret@h:1/0", "redis://:pass@h:sec/0"):
        with pytest.raises(SettingsError, match="OCRSVC_KEYS is no address of a Redis") as refused:
            check_store(address)
        assert "sec" not in str(refused.value)


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


def test_keys_and_counts_of_a_file_of_an_earlier_version_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite"
    with closing(sqlite3.connect(path)) as earlier:
        # As the first checkouts made it: one key, three pages counted.
        earlier.executescript((ROOT / "tests" / "keys_of_version_1.sql").read_text("utf-8"))
    check_store(f"sqlite:{path}")
    with closing(SqliteStore(path)) as store:
        [key] = store.keys()
        assert (key.entry.name, key.entry.limits.pages_a_day, key.secrets[0].id) == ("acme", 10, "0123456789ab")
        store.begin_worker("w1")
        for _ in range(2):
            store.settle("acme", "w1", NOTHING, 7, 2, DAY)
        assert store.usage("acme", DAY).today == 5


def test_the_file_is_for_its_own_user_only(tmp_path: Path) -> None:
    check_store(f"sqlite:{tmp_path}/keys.sqlite")
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"keys.sqlite": 0o600}


def test_a_file_that_others_hold_is_waited_for_a_second_at_most(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        store.version()
        other = sqlite3.connect(tmp_path / "keys.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(KeysUnavailable) as refused:
            store.hold("acme", "w1", Hold(1, 1))
        assert "locked" in refused.value.reason
        other.execute("ROLLBACK")
        store.hold("acme", "w1", Hold(1, 1))
        assert store.usage("acme", DAY).requests == 1
        other.close()


def test_the_log_of_a_file_is_folded_into_it_before_it_grows_large(tmp_path: Path) -> None:
    log = tmp_path / "keys.sqlite-wal"
    with closing(SqliteStore(tmp_path / "keys.sqlite")) as store:
        for number in range(1, 10_000):
            store.settle("acme", "w1", NOTHING, number, 1, DAY)
            if log.stat().st_size > 8 << 20:
                break
        store.keep_alive("w1")
        assert log.stat().st_size == 0
        assert store.usage("acme", DAY).today > 1000
