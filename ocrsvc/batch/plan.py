"""The plan of a run: every file with its pages, in the order of the output, cut into parts; one SQLite file."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from ocrsvc.batch.pages import SourceFile

_SCHEMA: Final = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
CREATE TABLE part(number INTEGER PRIMARY KEY, first INTEGER, pages INTEGER);
CREATE TABLE file(first INTEGER PRIMARY KEY, name TEXT, locator TEXT, version TEXT, size INTEGER, total INTEGER,
                  pages TEXT);
"""


class Plan:
    """A plan that is written; for any thread. A page's number in the plan counts from 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self._lock = threading.Lock()
        self._firsts = array("q", [row[0] for row in self._db.execute("SELECT first FROM part ORDER BY number")])
        self.parts = len(self._firsts)
        self.pages = self._db.execute("SELECT coalesce(sum(pages), 0) FROM part").fetchone()[0]
        self.files, self.bytes = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM file").fetchone()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def pages_of(self, part: int) -> range:
        """The numbers of a part's pages."""
        behind = self._firsts[part + 1] if part + 1 < self.parts else self.pages
        return range(self._firsts[part], behind)

    def part_of(self, page: int) -> int:
        """The part that has a page."""
        return bisect_right(self._firsts, page) - 1

    def files_of(self, part: int) -> list[tuple[int, SourceFile]]:
        """The files of a part, each with the number of its first page."""
        pages = self.pages_of(part)
        with self._lock:
            query = "SELECT * FROM file WHERE first >= ? AND first < ? ORDER BY first"
            rows = self._db.execute(query, (pages.start, pages.stop)).fetchall()
        return [(first, _to_file(rest)) for first, *rest in rows]

    def page(self, page: int) -> tuple[SourceFile, int]:
        """The file that a page is of, and the page's number in it."""
        with self._lock:
            query = "SELECT * FROM file WHERE first <= ? ORDER BY first DESC LIMIT 1"
            first, *rest = self._db.execute(query, (page,)).fetchone()
        file = _to_file(rest)
        return file, file.pages[page - first]

    def files_by_name(self) -> Iterator[SourceFile]:
        """Every file, sorted by names."""
        for _, *rest in self._db.execute("SELECT * FROM file ORDER BY name"):
            yield _to_file(rest)

    def all_files(self) -> Iterator[SourceFile]:
        """Every file in the order of the output; memory holds those of one part."""
        for part in range(self.parts):
            for _, file in self.files_of(part):
                yield file


def write_plan(path: Path, files: Iterable[SourceFile], part_pages: int, after: Plan | None = None) -> Plan:
    """Write a plan of these files; a part ends with the file that brings it to `part_pages`.

    The parts of `after` come before those of the files.
    """
    path.unlink(missing_ok=True)
    if after is not None:
        shutil.copyfile(after.path, path)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.executescript(_SCHEMA if after is None else "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
        db.execute("BEGIN")
        begin = (after.parts, after.pages) if after else (0, 0)
        parts: list[tuple[int, int, int]] = []
        db.executemany("INSERT INTO file VALUES (?,?,?,?,?,?,?)", _rows(files, part_pages, begin, parts))
        db.executemany("INSERT INTO part VALUES (?,?,?)", parts)
        db.execute("COMMIT")
    finally:
        db.close()
    return Plan(path)


def _rows(
    files: Iterable[SourceFile], part_pages: int, begin: tuple[int, int], parts: list[tuple[int, int, int]]
) -> Iterator[tuple[object, ...]]:
    number, first = begin
    at = first
    for file in files:
        yield at, *_to_values(file)
        at += len(file.pages)
        if at - first >= part_pages:
            parts.append((number, first, at - first))
            number, first = number + 1, at
    if at > first:
        parts.append((number, first, at - first))


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_values(file: SourceFile) -> list[object]:
    """A file as columns: what follows from the others is null. Names and locators are valid text."""
    locator = None if file.locator == file.name else file.locator
    pages = None if file.pages == range(1, max(1, file.total) + 1) else orjson.dumps(list(file.pages)).decode()
    return [file.name, locator, file.version, file.size, file.total, pages]


def _to_file(values: list[Any]) -> SourceFile:
    name, locator, version, size, total, pages = values
    numbers = range(1, max(1, total) + 1) if pages is None else tuple(orjson.loads(pages))
    return SourceFile(name, name if locator is None else locator, version, size, total, numbers)
