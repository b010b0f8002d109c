"""What goes wrong with a store of API keys while a service uses it: other processes, other files, failures."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from keys_support import keys_in
from support import wait_until

from ocrsvc.access.api_keys import KeyEntry
from ocrsvc.access.key_store import Period, Usage
from ocrsvc.access.manage_keys import add_key
from ocrsvc.access.open_store import check_store
from ocrsvc.access.sqlite_store import SqliteStore
from ocrsvc.cli.main import run
from ocrsvc.errors import KeyRefused, KeysUnavailable, SettingsError

# As every run of `ocrsvc keys` does; the last one that closes a file in WAL mode removes its log.
OPEN_AND_CLOSE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM key').fetchall()"


def make_file(folder: Path, *names: str) -> Path:
    """A file with keys of these names."""
    folder.mkdir()
    with keys_in(folder) as keys:
        for name in names:
            keys.add(name)
    return folder / "keys.db"


def test_a_file_that_takes_the_place_of_another_is_read(tmp_path: Path) -> None:
    other = make_file(tmp_path / "other", "ben")
    with keys_in(tmp_path) as keys:
        secret = keys.add("anna")
        keys.usage("anna")
        for ending in ("", "-wal", "-shm"):
            (tmp_path / f"keys.db{ending}").unlink()
        other.rename(tmp_path / "keys.db")
        keys.gate.refresh()
        assert keys.gate.check_named("ben").name == "ben"
        with pytest.raises(KeyRefused):
            keys.gate.check(secret)
        assert keys.usage("ben") == Usage()
        (tmp_path / "keys.db").unlink()
        keys.gate.refresh()
        with pytest.raises(KeyRefused):
            keys.gate.check_named("ben")


def test_a_key_that_cannot_be_read_leaves_the_others_valid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with keys_in(tmp_path) as keys:
        keys.add("anna")
        with closing(sqlite3.connect(tmp_path / "keys.db")) as other:
            # As of a later version of this program.
            document = "json_set(document, '$.entry.name', 'ben', '$.entry.colour', 'red')"
            other.execute(f"INSERT INTO key SELECT 'ben', {document} FROM key")
            other.execute("INSERT INTO key VALUES ('carl', '{')")
            other.commit()
        keys.gate.refresh()
        assert keys.gate.check_named("anna").name == "anna"
        for name in ("ben", "carl"):
            with pytest.raises(KeyRefused):
                keys.gate.check_named(name)
    assert caplog.text.count("cannot be read") == 2


def test_the_gate_goes_on_after_a_failure_that_nobody_foresaw(tmp_path: Path) -> None:
    with keys_in(tmp_path) as keys:
        calls: list[int] = []

        def fail() -> int:
            calls.append(1)
            raise ValueError

        keys.gate.start()
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(keys.store, "version", fail)
            wait_until(lambda: calls)
        add_key(keys.store, KeyEntry("anna"))

        def is_known() -> bool:
            with suppress(KeyRefused):
                return keys.gate.check_named("anna").name == "anna"
            return False

        wait_until(is_known)
        keys.gate.stop()


def test_clients_are_not_told_where_the_keys_are(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "none" / "keys.db")) as store:
        with pytest.raises(KeysUnavailable) as refused:
            store.usage("anna", Period("", ""))
        assert str(tmp_path) not in str(refused.value)
        assert str(tmp_path) in refused.value.reason


def test_a_file_of_another_user_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_file(tmp_path / "keys", "anna")
    # As for others than root, who runs the tests of CI.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SettingsError, match="this user may not read and write it"):
        check_store(f"sqlite:{tmp_path}/keys/keys.db")


def test_the_command_says_which_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCRSVC_KEYS", f"sqlite:{tmp_path}/none/keys.db")
    assert run(["keys", "add", "anna"]) == 75
    assert f"file of the API keys {tmp_path}/none/keys.db cannot be used" in capsys.readouterr().err


def test_a_process_that_ends_takes_no_log_from_those_that_still_use_the_file(tmp_path: Path) -> None:
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
