"""The plan of a run, an SQLite file: all files with their pages in output order, divided into parts."""

import os
import shutil
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.batch.pages import SourceFile

_SCHEMA: Final = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
CREATE TABLE IF NOT EXISTS file(first INTEGER PRIMARY KEY, part INTEGER, name TEXT, address BLOB, version TEXT,
                                size INTEGER, total INTEGER, pages TEXT, count INTEGER, kind TEXT, place BLOB);
BEGIN;
"""


class Plan:
    """A finished plan, opened for reading; thread-safe. Pages are numbered across the whole plan, from 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self.close = self._db.close
        firsts = self._db.execute("SELECT min(first) FROM file GROUP BY part ORDER BY part")
        self._firsts = array("q", [row[0] for row in firsts])
        self.parts = len(self._firsts)
        totals = "SELECT count(*), coalesce(sum(count), 0), coalesce(sum(size), 0) FROM file"
        self.files, self.pages, self.bytes = self._db.execute(totals).fetchone()

    def pages_of(self, part: int) -> range:
        """The range of page numbers in a part."""
        behind = self._firsts[part + 1] if part + 1 < self.parts else self.pages
        return range(self._firsts[part], behind)

    def part_of(self, page: int) -> int:
        """The number of the part that contains a page."""
        return bisect_right(self._firsts, page) - 1

    def files_of(self, part: int) -> list[tuple[int, SourceFile]]:
        """(n, file) for each file of a part; n is the number of the file's first page in the whole plan."""
        pages = self.pages_of(part)
        return list(self._select("WHERE first >= ? AND first < ? ORDER BY first", pages.start, pages.stop))

    def page(self, page: int) -> tuple[SourceFile, int]:
        """The file that contains a page, and the page's number in it."""
        [(first, file)] = self._select("WHERE first <= ? ORDER BY first DESC LIMIT 1", page)
        return file, file.pages[page - first]

    def all_files(self, order: str = "first") -> Iterator[SourceFile]:
        """All files in output order, or sorted by "name"."""
        return (file for _, file in self._select(f"ORDER BY {order}"))

    def _select(self, which: str, *values: int) -> Iterator[tuple[int, SourceFile]]:
        rows = self._db.execute(f"SELECT * FROM file {which}", values)  # noqa: S608  constants
        for first, _, name, address, version, size, total, pages, _, kind, place in rows:
            numbers = range(1, max(1, total) + 1) if pages is None else tuple(orjson.loads(pages))
            where = name if address is None else os.fsdecode(address)
            yield first, SourceFile(name, where, version, size, total, numbers, kind or "", os.fsdecode(place or b""))


def write_plan(path: Path, files: Iterable[SourceFile], part_pages: int, after: Plan | None = None) -> Plan:
    """Write a plan: the parts of `after`, then these files. A part ends with the file that fills its `part_pages`."""
    path.unlink(missing_ok=True)
    if after is not None:
        shutil.copyfile(after.path, path)
    part, first = (after.parts, after.pages) if after else (0, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(_SCHEMA)
        rows = _rows(files, part_pages, part, first)
        db.executemany("INSERT INTO file VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)
        db.execute("COMMIT")
    return Plan(path)


def _rows(files: Iterable[SourceFile], part_pages: int, part: int, first: int) -> Iterator[tuple[object, ...]]:
    """Yield a row per file: `address` is null if it equals the name, `pages` is null if all pages are read.

    Paths are stored as bytes, because they may not be UTF-8.
    """
    begin = first
    for file in files:
        address = None if file.address == file.name else os.fsencode(file.address)
        pages = None if file.pages == range(1, max(1, file.total) + 1) else orjson.dumps(list(file.pages)).decode()
        own = (file.name, address, file.version, file.size, file.total, pages, len(file.pages))
        yield first, part, *own, file.kind, os.fsencode(file.place)
        first += len(file.pages)
        if first - begin >= part_pages:
            part, begin = part + 1, first
