"""API keys and their usage in a SQLite file, for all workers of one machine.

The file is in WAL mode: readers never wait, and a writer waits for the others' single statements. It is synchronised
with the disk when a key changes and when the log is checkpointed: counts survive the death of any process, and only a
power failure can lose the last moments. Times in it are monotonic seconds, equal in all processes of a machine.
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
from typing import Any, Final, cast

from ocrsvc.access.api_keys import KeyLimits, StoredKey, read_keys, write_key
from ocrsvc.access.key_store import (
    LEASE_S,
    LIMIT_NAMES,
    SETTLED_DAYS,
    Hold,
    LimitName,
    LimitReached,
    Need,
    Period,
    Usage,
    burst_s,
    oldest_period,
)
from ocrsvc.errors import KeysUnavailable

LIMIT_S: Final = 1.0
"""How long a call waits for others at most."""

_MOST_LOG_BYTES: Final = 8 << 20
_OWNER_ONLY: Final = 0o600
_SCHEMA_VERSION: Final = 1

# Monotonic seconds restart with the machine: no bucket is further ahead than its burst.
_FULL: Final = "max(new.now, min(new.now + new.burst, coalesce((SELECT full FROM rate WHERE name = new.name), 0)))"
_OTHERS: Final = "coalesce((SELECT sum({0}) FROM held WHERE name = new.name AND worker <> new.worker), 0)"
_PAGES: Final = f"""{_OTHERS.format("pages")} + new.held_pages + new.spare * new.pages
        + coalesce((SELECT pages FROM usage WHERE name = new.name AND period = new.{{0}}), 0)"""  # noqa: S608  made of constants only

# Each INSERT into a view is one transaction, run by a trigger inside SQLite. A transaction of several statements from
# Python holds the file's write lock while its thread waits for the interpreter between two of them: 20 ms at the median
# beside two busy threads.
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
-- Grows with each change of a key. Starts at random, so that a file that replaces another is read again.
CREATE TABLE IF NOT EXISTS change (number INTEGER NOT NULL);
INSERT INTO change SELECT random() & 0xffffffff WHERE NOT EXISTS (SELECT 1 FROM change);
CREATE TRIGGER IF NOT EXISTS key_added AFTER INSERT ON key BEGIN UPDATE change SET number = number + 1; END;
CREATE TRIGGER IF NOT EXISTS key_changed AFTER UPDATE ON key BEGIN UPDATE change SET number = number + 1; END;

-- Pages counted, per day and per month.
CREATE TABLE IF NOT EXISTS usage (
    name TEXT, period TEXT, pages INTEGER NOT NULL, PRIMARY KEY (name, period)
) WITHOUT ROWID;
-- What each worker has reserved.
CREATE TABLE IF NOT EXISTS held (
    name TEXT, worker TEXT, requests INTEGER NOT NULL, pages INTEGER NOT NULL, PRIMARY KEY (name, worker)
) WITHOUT ROWID;
-- What was counted of each series, see page_counts.py.
CREATE TABLE IF NOT EXISTS series_total (series INTEGER PRIMARY KEY, total INTEGER NOT NULL, day TEXT NOT NULL);
-- When a key's bucket of requests is full again (GCRA).
CREATE TABLE IF NOT EXISTS rate (name TEXT PRIMARY KEY, full REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (worker TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;

-- Check every limit, then reserve: a refused request changes nothing.
CREATE VIEW IF NOT EXISTS reserve AS SELECT
    '' AS name, '' AS worker, 0 AS held_requests, 0 AS held_pages, 0 AS requests, 0 AS tokens, 0 AS pages, 0 AS spare,
    0.0 AS now, 0.0 AS step, 0.0 AS burst, 0 AS concurrency,
    '' AS day, 0 AS day_most, '' AS month, 0 AS month_most;
CREATE TRIGGER IF NOT EXISTS on_reserve INSTEAD OF INSERT ON reserve BEGIN
    SELECT raise(ABORT, 'rate') WHERE new.tokens > 0
        AND {_FULL} + new.spare * new.tokens * new.step > new.now + new.burst + 1e-9;
    SELECT raise(ABORT, 'concurrency') WHERE new.concurrency IS NOT NULL AND new.requests > 0
        AND {_OTHERS.format("requests")} + new.held_requests + new.spare * new.requests > new.concurrency;
    SELECT raise(ABORT, 'day') WHERE new.day_most IS NOT NULL AND new.pages > 0
        AND {_PAGES.format("day")} > new.day_most;
    SELECT raise(ABORT, 'month') WHERE new.month_most IS NOT NULL AND new.pages > 0
        AND {_PAGES.format("month")} > new.month_most;
    INSERT OR REPLACE INTO rate SELECT new.name, {_FULL} + new.tokens * new.step WHERE new.tokens > 0;
    INSERT OR REPLACE INTO held
        VALUES (new.name, new.worker, new.held_requests + new.requests, new.held_pages + new.pages);
END;

-- Set what a worker holds, and count what the series has grown by since it was settled last.
CREATE VIEW IF NOT EXISTS settle_series AS SELECT
    '' AS name, '' AS worker, 0 AS requests, 0 AS held_pages, 0 AS series, 0 AS total, '' AS day, '' AS month;
CREATE TRIGGER IF NOT EXISTS on_settle_series INSTEAD OF INSERT ON settle_series BEGIN
    INSERT OR REPLACE INTO held VALUES (new.name, new.worker, new.requests, new.held_pages);
    DELETE FROM held WHERE name = new.name AND worker = new.worker AND requests = 0 AND pages = 0;
    INSERT OR IGNORE INTO series_total SELECT new.series, 0, new.day WHERE new.total > 0;
    INSERT INTO usage SELECT new.name, period, new.total - known.total
        FROM (SELECT new.day AS period UNION ALL SELECT new.month), series_total AS known
        WHERE known.series = new.series AND known.total < new.total
        ON CONFLICT DO UPDATE SET pages = pages + excluded.pages;
    UPDATE series_total SET total = new.total WHERE series = new.series AND total < new.total;
END;

-- Note that a worker lives, and give back what those have reserved that were not seen lately.
CREATE VIEW IF NOT EXISTS alive AS SELECT '' AS worker, 0.0 AS now;
CREATE TRIGGER IF NOT EXISTS on_alive INSTEAD OF INSERT ON alive BEGIN
    INSERT OR REPLACE INTO worker VALUES (new.worker, new.now);
    DELETE FROM worker WHERE seen NOT BETWEEN new.now - {LEASE_S} AND new.now + {LEASE_S};
    DELETE FROM held WHERE worker NOT IN (SELECT worker FROM worker);
END;

-- Give back what an earlier worker of this name has reserved, and forget what is too old.
CREATE VIEW IF NOT EXISTS begin_worker AS SELECT '' AS worker, '' AS oldest, '' AS before;
CREATE TRIGGER IF NOT EXISTS on_begin_worker INSTEAD OF INSERT ON begin_worker BEGIN
    DELETE FROM held WHERE worker = new.worker;
    DELETE FROM usage WHERE period < new.oldest;
    DELETE FROM series_total WHERE day < new.before;
END;

PRAGMA user_version = {_SCHEMA_VERSION};
"""  # noqa: S608  made of constants only

# Files that earlier checkouts made lack it. Their keys and counts stay, and so do the tables and views of theirs.
_IS_COMPLETE: Final = "SELECT name FROM sqlite_master WHERE name = 'settle_series'"
_RESERVE: Final = """INSERT INTO reserve VALUES (
    :name, :worker, :held_requests, :held_pages, :requests, :tokens, :pages, :spare,
    :now, :step, :burst, :concurrency, :day, :pages_a_day, :month, :pages_a_month)"""
_SETTLE: Final = "INSERT INTO settle_series VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ADD: Final = "INSERT INTO key VALUES (:name, :document) ON CONFLICT DO NOTHING RETURNING name"
_CHANGE: Final = "UPDATE key SET document = :document WHERE name = :name AND document = :before RETURNING name"
_USAGE: Final = """
SELECT coalesce(sum(requests), 0), coalesce(sum(pages), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = :day), 0),
    coalesce((SELECT pages FROM usage WHERE name = :name AND period = :month), 0),
    coalesce((SELECT full FROM rate WHERE name = :name), 0)
FROM held WHERE name = :name
"""


class SqliteStore:
    """See `ocrsvc.access.key_store.KeyStore`. Opens the file at the first call: make it before a fork, use it after.

    Args:
        path: Of the file, which is made when it is missing.
        clock: Monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        # A checkpoint, made by the gate's own thread, must not delay requests.
        self._for_requests, self._for_upkeep = _Connection(path), _Connection(path)

    def version(self) -> int:
        """See KeyStore; reads the file that is at the path now, should another have replaced it."""
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
        [[requests, reserved, today, this_month, full]] = self._for_requests.run(_USAGE, values)
        return Usage(requests, reserved, today, this_month, max(0.0, full - self._clock()))

    def begin_worker(self, worker: str) -> None:
        """See KeyStore."""
        values = (worker, oldest_period(), oldest_period(SETTLED_DAYS))
        self._for_upkeep.run("INSERT INTO begin_worker VALUES (?, ?, ?)", values)

    def keep_alive(self, worker: str) -> None:
        """See KeyStore; checkpoints the log when it has grown."""
        self._for_upkeep.run("INSERT INTO alive VALUES (?, ?)", (worker, self._clock()))
        with suppress(FileNotFoundError):
            if Path(f"{self._path}-wal").stat().st_size > _MOST_LOG_BYTES:
                # PASSIVE does nearly all of it beside the writers; TRUNCATE makes them wait for what came meanwhile.
                self._for_upkeep.run("PRAGMA wal_checkpoint(PASSIVE)")
                self._for_upkeep.run("PRAGMA wal_checkpoint(TRUNCATE)")

    def reserve(
        self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, period: Period
    ) -> None:
        """See KeyStore."""
        rate = limits.requests_per_s
        self._for_requests.run(
            _RESERVE,
            {"name": name, "worker": worker, "held_requests": held.requests, "held_pages": held.pages, "spare": spare}
            | need._asdict()
            | {"now": self._clock(), "step": rate and 1 / rate, "burst": rate and burst_s(rate)}
            | {"concurrency": limits.concurrency, "day": period.day, "month": period.month}
            | {"pages_a_day": limits.pages_a_day, "pages_a_month": limits.pages_a_month},
        )

    def hold(self, name: str, worker: str, held: Hold) -> None:
        """See KeyStore."""
        self.settle(name, worker, held, 0, 0, Period("", ""))

    def settle(self, name: str, worker: str, held: Hold, series: int, total: int, period: Period) -> None:
        """See KeyStore."""
        self._for_requests.run(_SETTLE, (name, worker, *held, series, total, period.day, period.month))

    def close(self) -> None:
        """See KeyStore."""
        self._for_requests.close()
        self._for_upkeep.close()


class _Connection:
    """One connection, opened at its first use, which threads use one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def run(self, statement: str, values: Any = ()) -> list[Any]:
        """The rows of one statement, which is a transaction of its own.

        Raises:
            KeysUnavailable: The file cannot be used, or is busy for a second.
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
                raise LimitReached(cast("LimitName", str(error))) from None
            raise _unavailable(self._path, reason_of(error)) from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close it, if it is open."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def close_if_replaced(self) -> None:
        """Close it, if it is open and another file is at the path now."""
        if self._opened is not None and _identity(self._path) != self._file:
            self.close()


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made when it is missing. Raises sqlite3.Error and OSError."""
    # Readable by its own user only, whatever the umask is. A file that exists is opened by SQLite alone: closing it
    # here would drop the locks that this process's other connection has on it (SQLite, "How to corrupt", 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))
    if not os.access(path, os.R_OK | os.W_OK):
        # SQLite would not say why.
        raise PermissionError(errno.EACCES, "this user may not read and write it")
    opened = sqlite3.connect(path, timeout=LIMIT_S, isolation_level=None, check_same_thread=False)
    try:
        # Small pages: a transaction writes two or three whole ones. Checkpoints are made by keep_alive.
        for pragma in ("page_size = 1024", "journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 0"):
            opened.execute(f"PRAGMA {pragma}")
        _make_tables(opened)
    except BaseException:
        opened.close()
        raise
    return opened


def reason_of(error: sqlite3.Error | OSError) -> str:
    """What is wrong with a file, without its path and number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_tables(opened: sqlite3.Connection) -> None:
    """Make the tables, unless they are there. Raises sqlite3.DatabaseError for a file of something else."""
    [[version]] = opened.execute("PRAGMA user_version").fetchall()
    if version == 0 or (version == _SCHEMA_VERSION and not opened.execute(_IS_COMPLETE).fetchall()):
        with suppress(sqlite3.OperationalError):
            # Fails when another process has just made them.
            opened.executescript(f"BEGIN IMMEDIATE;\n{_SCHEMA}\nCOMMIT;")
        if opened.in_transaction:
            opened.execute("ROLLBACK")
        [[version]] = opened.execute("PRAGMA user_version").fetchall()
    if version != _SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"it is not a file of keys of this version ({version}, not {_SCHEMA_VERSION})")


def _unavailable(path: Path, reason: str) -> KeysUnavailable:
    return KeysUnavailable(reason=f"The file of the API keys {path} cannot be used: {reason}.")
