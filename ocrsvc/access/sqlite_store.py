"""The key store in a SQLite file, for all workers of one machine.

The file is in WAL mode: readers never wait, and writers only for single statements. It is synced when a key changes and
at checkpoints. Counts survive the death of any process; only a power failure can lose those of the last moments. Times
in the file are monotonic seconds, which all processes of a machine share.
"""

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from ocrsvc.access import key_store
from ocrsvc.access.api_keys import KeyLimits, StoredKey, read_keys, write_key
from ocrsvc.access.key_store import Hold, LimitName, LimitReached, Need, Usage
from ocrsvc.errors import KeysUnavailable

LIMIT_S: Final = 1.0
"""Longest wait for a connection that another thread uses, and for a lock that another process holds."""

_MAX_LOG_BYTES: Final = 8 << 20
_OWNER_ONLY: Final = 0o600
_SCHEMA_VERSION: Final = 1

# Finds the table that was added to the schema last; in a file without it, missing tables are created.
_LAST_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'series_total'"
_RESERVE: Final = "INSERT INTO reserve VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SETTLE: Final = "INSERT INTO settle VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADD: Final = "INSERT INTO key VALUES (:name, :document) ON CONFLICT DO NOTHING RETURNING name"
_CHANGE: Final = "UPDATE key SET document = :document WHERE name = :name AND document = :before RETURNING name"
_USAGE: Final = """
SELECT coalesce(sum(requests), 0), coalesce(sum(pages), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = :day), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = substr(:day, 1, 7)), 0),
    coalesce((SELECT full FROM rate WHERE name = :name), 0)
FROM held WHERE name = :name
"""


class SqliteStore:
    """A KeyStore (see key_store.py) in a file that is opened at the first call, so it may be created before a fork.

    A missing file is created; `clock` gives monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        # Two connections, so that checkpoints, which run in the access gate's thread, do not delay requests.
        self._for_requests, self._for_upkeep = _Connection(path), _Connection(path)

    def version(self) -> int:
        """Number of the last change of a key; see KeyStore. If the file was replaced, opens the new one first."""
        self._for_upkeep.close_if_replaced()
        self._for_requests.close_if_replaced()
        [[number]] = self._for_upkeep.run("SELECT number FROM change")
        return int(number)

    def keys(self) -> list[StoredKey]:
        return read_keys(document for (document,) in self._for_upkeep.run("SELECT document FROM key"))

    def put(self, key: StoredKey) -> bool:
        """Add or change a key, synced to disk; see KeyStore."""
        values = {"name": key.entry.name, "document": write_key(key), "before": key.document}
        self._for_upkeep.run("PRAGMA synchronous = FULL")
        done = self._for_upkeep.run(_ADD if key.document is None else _CHANGE, values)
        self._for_upkeep.run("PRAGMA synchronous = NORMAL")
        return bool(done)

    def usage(self, name: str, day: str) -> Usage:
        [[*used, full]] = self._for_requests.run(_USAGE, {"name": name, "day": day})
        return Usage._make([*used, max(0.0, full - self._clock())])

    def begin_worker(self, worker: str) -> None:
        self._for_upkeep.run("DELETE FROM held WHERE worker = ?", (worker,))
        self._for_upkeep.run("DELETE FROM usage WHERE period < ?", (key_store.oldest_day(),))
        self._for_upkeep.run("DELETE FROM series_total WHERE day < ?", (key_store.oldest_day(key_store.SETTLED_DAYS),))

    def keep_alive(self, worker: str) -> None:
        """Note that a worker is alive; see KeyStore. Also checkpoints a large write-ahead log."""
        run, now_s = self._for_upkeep.run, self._clock()
        run("INSERT OR REPLACE INTO worker VALUES (?, ?)", (worker, now_s))
        run("DELETE FROM worker WHERE seen NOT BETWEEN ? AND ?", (now_s - key_store.LEASE_S, now_s + key_store.LEASE_S))
        run("DELETE FROM held WHERE worker NOT IN (SELECT worker FROM worker)")
        with suppress(FileNotFoundError):
            if Path(f"{self._path}-wal").stat().st_size > _MAX_LOG_BYTES:
                # PASSIVE copies most pages without blocking writers, so that TRUNCATE blocks them only briefly.
                run("PRAGMA wal_checkpoint(PASSIVE)")
                run("PRAGMA wal_checkpoint(TRUNCATE)")

    def reserve(self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, day: str) -> None:
        rate = limits.requests_per_s
        counts = (limits.concurrency, day, limits.pages_a_day, limits.pages_a_month)
        steps = (rate and 1 / rate, rate and key_store.burst_s(rate))
        self._for_requests.run(_RESERVE, (name, worker, *held, *need, spare, self._clock(), *steps, *counts))

    def settle(self, name: str, worker: str, held: Hold, series: int = 0, total: int = 0, day: str = "") -> None:
        self._for_requests.run(_SETTLE, (name, worker, *held, series, total, day))

    def close(self) -> None:
        self._for_requests.close()
        self._for_upkeep.close()


class _Connection:
    """One connection, opened at its first use; threads use it one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def run(self, statement: str, values: Any = ()) -> list[Any]:
        """Run one statement as a transaction; returns its rows.

        Raises LimitReached if a trigger of the database refuses it, KeysUnavailable for SQLite's errors and timeouts.
        """
        if not self._lock.acquire(timeout=LIMIT_S):
            raise _unavailable(self._path, "it is busy")
        try:
            if self._opened is None:
                self._opened = open_file(self._path)
                self._file = _identity(self._path)
            return self._opened.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            if str(error) in key_store.LIMIT_NAMES:
                raise LimitReached(cast("LimitName", str(error))) from None
            raise _unavailable(self._path, reason_of(error)) from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection if it is open."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def close_if_replaced(self) -> None:
        """Close the connection if it is open and the file at the path was replaced."""
        if self._opened is not None and _identity(self._path) != self._file:
            self.close()


def open_file(path: Path) -> sqlite3.Connection:
    """Connect to the file, which is created if missing. Raises sqlite3.Error and OSError."""
    # Create the file so that only its owner may read it, whatever the umask. Do not open an existing file: closing it
    # would drop the locks of this process's other connection (SQLite, "How to corrupt", 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))
    if not os.access(path, os.R_OK | os.W_OK):
        # SQLite's own error does not give the reason.
        raise PermissionError(errno.EACCES, "this user may not read and write it")
    opened = sqlite3.connect(path, timeout=LIMIT_S, isolation_level=None, check_same_thread=False)
    try:
        # Small pages, because each transaction writes two or three. No automatic checkpoints: `keep_alive` runs them.
        for pragma in ("page_size = 1024", "journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 0"):
            opened.execute(f"PRAGMA {pragma}")
        _make_tables(opened)
        opened.executescript(_read("sqlite_calls.sql"))
    except BaseException:
        opened.close()
        raise
    return opened


def reason_of(error: sqlite3.Error | OSError) -> str:
    """An error's reason without path and number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None if there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _make_tables(opened: sqlite3.Connection) -> None:
    """Create missing tables. Raises sqlite3.DatabaseError for a file of another kind or version."""
    [[version]] = opened.execute("PRAGMA user_version").fetchall()
    if version not in (0, _SCHEMA_VERSION):
        raise sqlite3.DatabaseError(f"it is not a key file of this version ({version}, not {_SCHEMA_VERSION})")
    if not opened.execute(_LAST_TABLE).fetchall():
        opened.executescript(_read("sqlite_tables.sql"))


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _unavailable(path: Path, reason: str) -> KeysUnavailable:
    return KeysUnavailable(reason=f"The API key file {path} cannot be used: {reason}.")
