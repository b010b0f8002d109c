"""Results of pages whose parts are not in the output yet: one SQLite file on this machine, for one shard."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from ocrsvc.batch.pages import PageResult

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_NETWORK: Final = re.compile("nfs4?|cifs|smb3|smbfs|9p|ceph|lustre|glusterfs|beegfs|gpfs|afs|virtiofs|fuse[.].+")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS run(id TEXT);
CREATE TABLE IF NOT EXISTS page(n INTEGER PRIMARY KEY, error TEXT, record BLOB, crc INTEGER, attempts INTEGER, at REAL,
                                seconds REAL, confidence REAL, lines INTEGER, worker TEXT);
CREATE TABLE IF NOT EXISTS content(digest BLOB PRIMARY KEY, n INTEGER) WITHOUT ROWID;
"""


class ResultLost(Exception):
    """The result of a page is gone or damaged."""


class PageFacts(NamedTuple):
    """What is known of a page beside its record: `at` is Unix time, the others as of PageResult."""

    error: str
    attempts: int
    at: float
    seconds: float
    confidence: float
    lines: int
    worker: str


class WorkFile:
    """Opens or begins the work of a run; for one thread. What belongs to another run is removed.

    A file that is damaged is set aside: its pages are read again.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        try:
            self._open(run_id)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            LOGGER.warning("%s is damaged (%s): pages of unfinished parts are read again", path, error)
            for end in ("", "-wal", "-shm", "-journal"):
                beside = path.with_name(path.name + end)
                if beside.exists():
                    beside.replace(path.with_name(f"{path.name}.damaged{end}"))
            self._open(run_id)

    def add(self, result: PageResult, attempts: int, at: float) -> None:
        """Note a result; durable after the next commit. A page that was read stays read."""
        kept = (result.index, result.error, result.record, _crc(result.index, result.error, result.record))
        self._db.execute(
            "INSERT INTO page VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT(n) DO UPDATE SET error=excluded.error, "
            "record=excluded.record, crc=excluded.crc, attempts=excluded.attempts, at=excluded.at, "
            "seconds=excluded.seconds, confidence=excluded.confidence, lines=excluded.lines, worker=excluded.worker "
            "WHERE page.error != ''",
            (*kept, attempts, at, result.seconds, result.confidence, result.lines, result.worker),
        )

    def add_kept(self, rows: Iterable[tuple[int, bytes, PageFacts]]) -> None:
        """Take over results of a part that is opened again."""
        values = ((n, facts.error, record, _crc(n, facts.error, record), *facts[1:]) for n, record, facts in rows)
        self._db.executemany("INSERT OR REPLACE INTO page VALUES (?,?,?,?,?,?,?,?,?,?)", values)

    def add_content(self, digest: bytes, first: int) -> None:
        """Note the first page of the first file with this content."""
        self._db.execute("INSERT OR IGNORE INTO content VALUES (?,?)", (digest, first))

    def contents(self) -> dict[bytes, int]:
        """The contents that were noted."""
        return dict(self._db.execute("SELECT digest, n FROM content").fetchall())

    def commit(self) -> None:
        """Make durable what was noted. Raises sqlite3.Error where the disk is full."""
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def errors(self, pages: range) -> dict[int, str]:
        """The pages of a range that have a result, with their errors."""
        rows = self._db.execute("SELECT n, error FROM page WHERE n >= ? AND n < ?", (pages.start, pages.stop))
        return dict(rows.fetchall())

    def record(self, page: int) -> bytes | None:
        """The record of a page that was read and is undamaged."""
        row = self._db.execute("SELECT error, record, crc FROM page WHERE n = ?", (page,)).fetchone()
        return row[1] if row and not row[0] and _crc(page, row[0], row[1]) == row[2] else None

    def forget(self, pages: Iterable[int]) -> None:
        """Forget the results of pages."""
        self._db.executemany("DELETE FROM page WHERE n = ?", ((page,) for page in pages))

    def drop(self, pages: range) -> None:
        """Forget the results of a part that is in the output."""
        self._db.execute("DELETE FROM page WHERE n >= ? AND n < ?", (pages.start, pages.stop))

    def close(self) -> None:
        """Close the file with what was committed."""
        self._db.close()

    def remove(self) -> None:
        """Close the file, and remove it."""
        self.close()
        for end in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def _open(self, run_id: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        try:
            self._begin(run_id)
        except BaseException:
            self._db.close()
            raise

    def _begin(self, run_id: str) -> None:
        self._db.execute(f"PRAGMA journal_mode={'WAL' if is_local_disk(self.path.parent) else 'DELETE'}")
        self._db.executescript(f"PRAGMA synchronous=FULL; {_SCHEMA}")
        if (problem := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise _damage(problem)
        known = self._db.execute("SELECT id FROM run").fetchone()
        if known != (run_id,):
            self._db.executescript("DELETE FROM run; DELETE FROM page; DELETE FROM content;")
            self._db.execute("INSERT INTO run VALUES (?)", (run_id,))
        self._db.execute("BEGIN")
        # SQLite has no checksums of what it keeps: damage inside a row is found by nothing else.
        rows = self._db.execute("SELECT n, error, record, crc FROM page")
        self.forget([n for n, error, record, crc in rows if _crc(n, error, record) != crc])


class WorkRecords:
    """The results of a part for the thread that writes it; all of them were committed before."""

    def __init__(self, path: Path, pages: range) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
        self._pages = pages

    def record(self, page: int) -> bytes:
        """The record of a page. Raises ResultLost."""
        row = self._db.execute("SELECT error, record, crc FROM page WHERE n = ?", (page,)).fetchone()
        if row is None or _crc(page, row[0], row[1]) != row[2]:
            raise ResultLost
        return bytes(row[1])

    def facts(self) -> Iterator[tuple[int, PageFacts]]:
        """What is known of each page, in their order."""
        columns = "n, error, attempts, at, seconds, confidence, lines, worker"
        with closing(self._db.cursor()) as cursor:
            query = f"SELECT {columns} FROM page WHERE n >= ? AND n < ? ORDER BY n"  # noqa: S608  constants
            for n, *rest in cursor.execute(query, (self._pages.start, self._pages.stop)):
                yield n, PageFacts(*rest)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def is_local_disk(folder: Path) -> bool:
    """Whether a folder lies on a disk of this machine, where SQLite's WAL works."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2] == wanted]
    return not any(_NETWORK.fullmatch(kind) for kind in kinds)


def _crc(n: int, error: str, record: Any) -> int:
    known = record if isinstance(record, bytes) else b""
    return zlib.crc32(known, zlib.crc32(f"{n} {error}".encode()))


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is at fault, and not the room on the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _damage(problem: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(problem)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
