"""Keys and their usage in a file of SQLite, for all workers of one machine.

The file is in WAL mode: readers never wait, and writers wait for each other, each for the microseconds of one call (see
sqlite_schema). It is synchronised with the disk when a key changes, and when its log is folded into it: what is counted
survives the death of any process, and only a power failure can take the last moments of it.

Times in it are monotonic seconds, which are the same in all processes of a machine, and which no clock that is set can
make jump.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ocrsvc.access.key_documents import read_keys, write_key
from ocrsvc.access.quotas import burst_s
from ocrsvc.access.records import Hold, KeyLimits, Need, StoredKey, Usage
from ocrsvc.access.sqlite_schema import PAGE_BYTES, SCHEMA, SCHEMA_VERSION, USAGE
from ocrsvc.access.store import LIMIT_NAMES, LimitReached, Period, oldest_period
from ocrsvc.errors import KeysUnavailable

LIMIT_S: Final = 1.0
"""How long a call waits for the others at most."""

_MOST_LOG_BYTES: Final = 8 << 20
_OWN_USER_ONLY: Final = 0o600
_ADD: Final = "INSERT INTO key VALUES (:name, :document) ON CONFLICT DO NOTHING RETURNING name"
_CHANGE: Final = "UPDATE key SET document = :document WHERE name = :name AND document = :before RETURNING name"
_SETTLE: Final = "INSERT INTO settle VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
# How long the last number of a worker is known; what it counted is settled within seconds.
_SETTLED_DAYS: Final = 2


class SqliteStore:
    """See `ocrsvc.access.store.KeyStore`. Opens the file when it is first used: make it before a fork, use it after.

    Args:
        path: Of the file, which is made when it is not there.
        clock: Monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        # The gate's own thread must not keep requests waiting while it folds the log into the file.
        self._for_requests = _Connection(path)
        self._for_upkeep = _Connection(path)

    def version(self) -> int:
        """See KeyStore; of the file that is there now, should another have taken its place."""
        self._for_upkeep.close_if_replaced()
        self._for_requests.close_if_replaced()
        [[number]] = self._for_upkeep.run("SELECT number FROM change")
        return int(number)

    def keys(self) -> list[StoredKey]:
        """See KeyStore."""
        return read_keys([document for (document,) in self._for_upkeep.run("SELECT document FROM key ORDER BY name")])

    def put(self, key: StoredKey) -> bool:
        """See KeyStore. On the disk when this returns."""
        values = {"name": key.entry.name, "document": write_key(key), "before": key.document}
        self._for_upkeep.run("PRAGMA synchronous = FULL")
        done = self._for_upkeep.run(_ADD if key.document is None else _CHANGE, values)
        self._for_upkeep.run("PRAGMA synchronous = NORMAL")
        return bool(done)

    def usage(self, name: str, period: Period) -> Usage:
        """See KeyStore."""
        values = {"name": name, "day": period.day, "month": period.month}
        [[requests, reserved, today, this_month, full]] = self._for_requests.run(USAGE, values)
        return Usage(requests, reserved, today, this_month, max(0.0, full - self._clock()))

    def begin_worker(self, worker: str) -> None:
        """See KeyStore."""
        self._for_upkeep.run(
            "INSERT INTO begun VALUES (?, ?, ?)", (worker, oldest_period(), oldest_period(_SETTLED_DAYS))
        )

    def keep_alive(self, worker: str) -> None:
        """See KeyStore; and fold the log into the file when it has grown."""
        self._for_upkeep.run("INSERT INTO alive VALUES (?, ?)", (worker, self._clock()))
        with suppress(FileNotFoundError):
            if Path(f"{self._path}-wal").stat().st_size > _MOST_LOG_BYTES:
                # Nearly all of it beside the writers; they wait for what came meanwhile.
                self._for_upkeep.run("PRAGMA wal_checkpoint(PASSIVE)")
                self._for_upkeep.run("PRAGMA wal_checkpoint(TRUNCATE)")

    def reserve(
        self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, period: Period
    ) -> None:
        """See KeyStore."""
        rate = limits.requests_per_s
        step, burst = (None, None) if rate is None else (1 / rate, burst_s(rate))
        self._for_requests.run(
            "INSERT INTO reserve VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(name, worker, *held, *need, spare, self._clock(), step, burst, limits.concurrency),
                *(period.day, limits.pages_a_day, period.month, limits.pages_a_month),
            ),
        )

    def hold(self, name: str, worker: str, held: Hold) -> None:
        """See KeyStore."""
        self._for_requests.run(_SETTLE, (name, worker, *held, 0, 0, "", ""))

    def settle(self, name: str, worker: str, held: Hold, number: int, pages: int, period: Period) -> None:
        """See KeyStore."""
        self._for_requests.run(_SETTLE, (name, worker, *held, number, pages, period.day, period.month))

    def close(self) -> None:
        """See KeyStore."""
        self._for_requests.close()
        self._for_upkeep.close()


class _Connection:
    """One connection, which is opened when it is first used, and which threads use one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def run(self, statement: str, values: Any = ()) -> list[Any]:
        """The rows of one statement, which is a transaction of its own.

        Raises:
            KeysUnavailable: The file cannot be used, or others keep it busy for a second.
            LimitReached: A trigger refused it.
        """
        if not self._lock.acquire(timeout=LIMIT_S):
            raise _unavailable(self._path, "it is busy")
        try:
            if self._opened is None:
                self._opened = open_file(self._path)
                self._file = _identity(self._path)
            return self._opened.execute(statement, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            if str(error) in LIMIT_NAMES:
                raise LimitReached(LIMIT_NAMES[str(error)]) from None
            raise _unavailable(self._path, reason_of(error)) from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close it, if it is open."""
        with self._lock:
            self._drop()

    def close_if_replaced(self) -> None:
        """Close it, if it is open and the path leads to another file now."""
        if self._opened is not None and _identity(self._path) != self._file:
            self.close()

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def reason_of(error: sqlite3.Error | OSError) -> str:
    """What is wrong with a file, without its path and number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file at a path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made when it is not there. Raises sqlite3.Error and OSError."""
    # For its own user only, whatever the umask says. One that is there is opened by SQLite alone: closing it here would
    # give up the locks that this process's other connection has on it (SQLite, "How to corrupt", 2.2), and another
    # process would then take away the log under it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWN_USER_ONLY))
    if not os.access(path, os.R_OK | os.W_OK):
        # SQLite would not say why.
        raise PermissionError(errno.EACCES, "this user may not read and write it")
    opened = sqlite3.connect(path, timeout=LIMIT_S, isolation_level=None, check_same_thread=False)
    try:
        opened.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = NORMAL")
        # Not in the middle of a request; see keep_alive.
        opened.execute("PRAGMA wal_autocheckpoint = 0")
        _make_tables(opened)
    except BaseException:
        opened.close()
        raise
    return opened


def _make_tables(opened: sqlite3.Connection) -> None:
    """Make the tables, unless they are there. Raises sqlite3.DatabaseError for a file of something else."""
    [[version]] = opened.execute("PRAGMA user_version").fetchall()
    if version == 0:
        with suppress(sqlite3.OperationalError):
            # Fails when another process has just made them.
            opened.executescript(f"BEGIN IMMEDIATE;\n{SCHEMA}\nCOMMIT;")
        if opened.in_transaction:
            opened.execute("ROLLBACK")
        [[version]] = opened.execute("PRAGMA user_version").fetchall()
    if version != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"it is not a file of keys of this version ({version}, not {SCHEMA_VERSION})")


def _unavailable(path: Path, reason: str) -> KeysUnavailable:
    return KeysUnavailable(reason=f"The file of the API keys {path} cannot be used: {reason}.")
