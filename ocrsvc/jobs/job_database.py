"""The jobs' SQLite database: one row per job, uploaded file and callback.

The jobs' folders are authoritative: a missing or malformed database is rebuilt from them, except for callbacks about
expired jobs. Each process opens its own connection, after the fork.
"""

import errno
import logging
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ocrsvc.errors import QueueFull, Refused

LOGGER: Final = logging.getLogger("ocrsvc.jobs")
NAME: Final = "jobs.sqlite"
# Name prefix of damaged files and job folders, which are kept for inspection and not used.
DAMAGED: Final = "damaged-"
# Ages of jobs are computed from monotonic time (came_s); Unix times (…_at_s) are for people, and after a reboot.
# Deleting a job deletes its callback too, unless the callback reports the job's expiry.
_SCHEMA: Final = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS job (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, key TEXT, pages INTEGER NOT NULL,
    bytes INTEGER NOT NULL, is_done INTEGER NOT NULL, came_s REAL NOT NULL, came_at_s REAL NOT NULL,
    repeat TEXT NOT NULL, content TEXT NOT NULL, reported INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS callback (
    job_id TEXT PRIMARY KEY, caller TEXT NOT NULL, key TEXT, url TEXT NOT NULL, secret TEXT NOT NULL,
    host TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'waiting', tries INTEGER NOT NULL DEFAULT 0, status INTEGER,
    due_at_s REAL NOT NULL DEFAULT 0, sending_until_s REAL NOT NULL DEFAULT 0, turn INTEGER NOT NULL DEFAULT 0,
    expired BLOB, expired_at_s REAL);
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON job BEGIN
    DELETE FROM callback WHERE job_id = OLD.id AND expired IS NULL; END;
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value);
COMMIT;
"""
_WAIT_S: Final = 5.0
_RETRY_S: Final = 30
_BUSY: Final = ("Storing other jobs takes long.", "Send it again later.", _RETRY_S)
_STORAGE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS)
_ERRNO: Final = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}


class StorageFull(Refused):
    """The disk is full or read-only, or too many files are open."""

    code = "storage_full"
    title = "Jobs cannot be stored"


@contextmanager
def storing() -> Iterator[None]:
    """Turn errors of a full disk, quota or file table into StorageFull within the block."""
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE_ERRORS:
            raise
        text = f"Jobs cannot be stored now: {error.strerror}."
        raise StorageFull(text, "Send it again later.", _RETRY_S) from error


class JobDatabase:
    """The database in one folder, for any thread of any process. Every method may raise QueueFull and OSError."""

    def __init__(self, folder: Path, *, is_durable: bool) -> None:
        self.folder, self.wait_s, self._is_durable = folder, _WAIT_S, is_durable
        self._lock = threading.RLock()
        self._opened: tuple[int, Path, sqlite3.Connection] | None = None

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Run and commit a single statement; returns its rows."""
        with self._connected() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """An exclusive transaction, committed at the block's end, or rolled back if it raises."""
        with self._connected() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def check(self) -> None:
        """Rename the database file if it is malformed, so that a new one is made."""
        # If the file is too damaged for the query, `rows` has already set the file aside.
        with suppress(QueueFull):
            if self.rows("PRAGMA quick_check(1)") != [("ok",)]:
                self._set_aside()

    def sync(self, *paths: Path) -> None:
        """Flush files, and the entries of folders, to disk, if the database is durable."""
        for path in paths if self._is_durable else ():
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def close(self) -> None:
        """Close this process's connection; the next call opens a new one."""
        if self._opened is not None:
            self._opened[2].close()
            self._opened = None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=self.wait_s):
            raise QueueFull(*_BUSY)
        try:
            yield self._connection()
        except sqlite3.Error as error:
            raise self._translated(error) from error
        finally:
            self._lock.release()

    def _connection(self) -> sqlite3.Connection:
        """This process's connection to the current file; opened again if another process has replaced the file."""
        path = self._path()
        if self._opened is None or self._opened[:2] != (os.getpid(), path):
            self.close()
            connection = sqlite3.connect(path, timeout=self.wait_s, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'OFF'}")
            connection.executescript(_SCHEMA)
            self._opened = os.getpid(), path, connection
        return self._opened[2]

    def _translated(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            self._set_aside()
            return QueueFull("The jobs' database is malformed, and is being rebuilt.", "Send it again.", _RETRY_S)
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return QueueFull(*_BUSY)
        if (number := _ERRNO.get(code)) is not None:
            return OSError(number, os.strerror(number), str(self.folder / NAME))
        # Any other error becomes QueueFull, because QueueFull does not fail a job: reading continues later.
        LOGGER.error("%s cannot be used: %s", NAME, error)
        return QueueFull("The jobs' database cannot be used now.", "Send it again later.", _RETRY_S)

    def _path(self) -> Path:
        """The database file, to which the link NAME points; creates a missing link."""
        if not (self.folder / NAME).is_symlink():
            with suppress(FileExistsError):
                self._link(NAME)
        return self.folder / (self.folder / NAME).readlink()

    def _link(self, name: str) -> Path:
        link = self.folder / name
        link.symlink_to(f"jobs-{uuid.uuid4().hex}.sqlite")
        return link

    def _set_aside(self) -> None:
        """Rename the malformed file, unless another process has done so; the next call creates a new one."""
        old = self._path() if self._opened is None else self._opened[1]
        self.close()
        if self._path() == old:
            # The new database needs a new file name: processes that close the old one delete the WAL file of its name.
            self._link(f"{NAME}.{os.getpid()}").rename(self.folder / NAME)
            with suppress(FileNotFoundError):
                old.rename(self.folder / f"{DAMAGED}{NAME}")
                LOGGER.error("%s is malformed: it is kept as %s%s, and rebuilt", NAME, DAMAGED, NAME)
