"""State of unfinished output parts: results in a local file, and the list of begun pages in the destination."""

import logging
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from ocrsvc.batch.destination import Destination
from ocrsvc.batch.pages import PageResult

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_NETWORK: Final = re.compile("nfs4?|cifs|smb3|smbfs|9p|ceph|lustre|glusterfs|beegfs|gpfs|afs|virtiofs|fuse[.].+")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS run(id TEXT);
CREATE TABLE IF NOT EXISTS page(n INTEGER PRIMARY KEY, record BLOB, crc INTEGER, error TEXT, attempts INTEGER, at REAL,
                                seconds REAL, confidence REAL, lines INTEGER, worker TEXT);
CREATE TABLE IF NOT EXISTS content(digest BLOB PRIMARY KEY, n INTEGER) WITHOUT ROWID;
"""
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")


class PageFacts(NamedTuple):
    """Facts missing from a page's JSON record; `attempts` counts tries, `at` is Unix time, others as in PageResult."""

    error: str
    attempts: int
    at: float
    seconds: float
    confidence: float
    lines: int
    worker: str


class WorkFile:
    """The results of one shard in an SQLite file, created if missing; results of another run are deleted.

    One thread writes; any thread may call `record` and `facts`. A damaged file is renamed, and its pages read again.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        try:
            self._open(run_id)
        except sqlite3.DatabaseError as error:
            # Set the file aside only if it is damaged, not after other errors such as a full disk.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            LOGGER.warning("%s is damaged (%s): pages of unfinished parts are read again", path, error)
            for end in _SIDE_FILES:
                with suppress(FileNotFoundError):
                    path.with_name(path.name + end).replace(path.with_name(f"{path.name}.damaged{end}"))
            self._open(run_id)

    def add(self, result: PageResult, attempts: int, at: float) -> None:
        """Store a result, durable after the next commit; a result without an error is not replaced."""
        if self.errors(range(result.index, result.index + 1)).get(result.index) != "":
            facts = (result.error, attempts, at, result.seconds, result.confidence, result.lines, result.worker)
            self.add_kept([(result.index, result.record, PageFacts(*facts))])

    def add_kept(self, rows: Iterable[tuple[int, bytes, PageFacts]]) -> None:
        """Store the results of an output part that will be rewritten; `rows` are from `read_kept`."""
        values = ((n, record, _crc(n, facts.error, record), *facts) for n, record, facts in rows)
        self._db.executemany("INSERT OR REPLACE INTO page VALUES (?,?,?,?,?,?,?,?,?,?)", values)

    def add_content(self, digest: bytes, first: int) -> None:
        """Store that the first file with this content hash begins with page number `first`."""
        self._db.execute("INSERT OR IGNORE INTO content VALUES (?,?)", (digest, first))

    def contents(self) -> dict[bytes, int]:
        """The stored content hashes, each with the number of the first page of the first file with this content."""
        return dict(self._db.execute("SELECT digest, n FROM content").fetchall())

    def commit(self) -> None:
        """Commit the stored results. Raises sqlite3.Error, such as for a full disk."""
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def errors(self, pages: range) -> dict[int, str]:
        """Error codes of the pages in a range that have a result; "" for pages that were read."""
        rows = self._db.execute("SELECT n, error FROM page WHERE n >= ? AND n < ?", (pages.start, pages.stop))
        return dict(rows.fetchall())

    def record(self, page: int) -> bytes | None:
        """The JSON record of a page; None if it has no result, or a damaged one."""
        row = self._db.execute("SELECT record, error, crc FROM page WHERE n = ?", (page,)).fetchone()
        return row[0] if row and _crc(page, row[1], row[0]) == row[2] else None

    def facts(self, pages: range) -> Iterator[tuple[int, PageFacts]]:
        """Yield in order the facts of those pages of the range that have a result."""
        query = "SELECT * FROM page WHERE n >= ? AND n < ? ORDER BY n"
        for n, _, _, *facts in self._db.execute(query, (pages.start, pages.stop)).fetchall():
            yield n, PageFacts(*facts)

    def forget(self, pages: Iterable[int]) -> None:
        """Delete the results of pages."""
        self._db.executemany("DELETE FROM page WHERE n = ?", ((page,) for page in pages))

    def close(self) -> None:
        """Close the file; uncommitted results are lost."""
        self._db.close()

    def remove(self) -> None:
        """Close the file, and delete it."""
        self._db.close()
        for end in _SIDE_FILES:
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def _open(self, run_id: str) -> None:
        # The run's thread and the part-writing thread share the connection; Python's SQLite serializes their calls.
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60, check_same_thread=False)
        try:
            self._db.execute(f"PRAGMA journal_mode={'WAL' if is_local_disk(self.path.parent) else 'DELETE'}")
            self._db.executescript(f"PRAGMA synchronous=FULL; {_SCHEMA}")
            if (problem := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(problem)
            if self._db.execute("SELECT id FROM run").fetchone() != (run_id,):
                self._db.executescript("DELETE FROM run; DELETE FROM page; DELETE FROM content;")
                self._db.execute("INSERT INTO run VALUES (?)", (run_id,))
            self._db.execute("BEGIN")
            # SQLite has no checksums, so only comparing `crc` finds damage inside a row.
            rows = self._db.execute("SELECT n, error, record, crc FROM page")
            self.forget([n for n, error, record, crc in rows if _crc(n, error, record) != crc])
        except BaseException:
            self._db.close()
            raise


def is_local_disk(folder: Path) -> bool:
    """Whether a folder is on a local disk, where SQLite's WAL mode works."""
    device = folder.stat().st_dev
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    own = (line for line in mounts if line.split(" ")[2] == f"{os.major(device)}:{os.minor(device)}")
    return not any(_NETWORK.fullmatch(line.partition(" - ")[2].split(" ")[0]) for line in own)


def _crc(n: int, error: str, record: Any) -> int:
    return zlib.crc32(record if isinstance(record, bytes) else b"", zlib.crc32(f"{n} {error}".encode()))


class Deaths(NamedTuple):
    """How many processes died while reading this page: in total, and while reading no other page."""

    all: int
    alone: int


class BegunPages:
    """A shard's file with the pages being read, in the destination; `deaths` counts process deaths by page.

    In an object store, the file is written only every few seconds, but always before pages that may kill a process.
    Not thread-safe. Methods raise OSError.
    """

    def __init__(
        self, destination: Destination, shard: str, run_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._destination, self._name = destination, f"_ocrsvc/begun/{shard}.json"
        self._run_id, self._clock = run_id, clock
        self._noted_s = -1e9
        self.deaths = self._read()

    def note(self, pages: Iterable[int], *, is_apart: bool = False) -> None:
        """Write which pages are being read: now if they may kill the process (`is_apart`), else every `note_s` s."""
        if not is_apart and self._clock() - self._noted_s < self._destination.note_s:
            return
        self._noted_s = self._clock()
        deaths = [[page, *counts] for page, counts in self.deaths.items()]
        note = {"run": self._run_id, "begun": list(pages), "deaths": deaths}
        self._destination.note(self._name, orjson.dumps(note))

    def forget(self, pages: Iterable[int]) -> None:
        """Reset the counts of deaths for these pages."""
        for page in pages:
            self.deaths.pop(page, None)

    def end(self) -> None:
        """Record that no page is being read any more, so that the next process counts no death."""
        if self.deaths:
            self.note((), is_apart=True)
        else:
            self._destination.delete(self._name)

    def _read(self) -> dict[int, Deaths]:
        """Read the death counts; add one for each page that the previous process left unfinished. {} if unreadable."""
        try:
            note: Any = orjson.loads(self._destination.read(self._name))
            if note["run"] != self._run_id:
                return {}
            deaths = {page: Deaths(*counts) for page, *counts in note["deaths"]}
            for page in note["begun"]:
                had = deaths.get(page, Deaths(0, 0))
                deaths[page] = Deaths(had.all + 1, had.alone + (len(note["begun"]) == 1))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}
        return deaths
