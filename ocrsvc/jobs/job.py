"""One job, as it lies in its folder.

    file           what was sent
    job.json       what is asked, whose it is, and when it came
    lock           held (flock) by the process that reads it, so that its death frees it
    started        when reading began
    begun.json     the pages that are being read, and how often each was begun
    pages.jsonl    what was read, a line a page, in order; with pages.index (see PageLog)
    done.json      how it ended
    engine.json    which engine read it
    callback.json  where its end is sent, until that is delivered or given up
    out/           files made of the result

Files are written beside their place and renamed.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

import orjson

from ocrsvc.jobs.job_database import JobDatabase

State = Literal["waiting", "running", "success", "failure"]

BEGUN: Final = "begun.json"
CALLBACK: Final = "callback.json"
DONE: Final = "done.json"
ENGINE: Final = "engine.json"
RECORD: Final = "job.json"
LINES: Final = "pages.jsonl"
INDEX: Final = "pages.index"
# Twice the place where the line ends, and 1 more for a page that could not be read.
_ENTRY: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a job from its arrival on, by the clock on the wall.

    `caller` shares the store, `key` is the identity of the API key that it was left with. `repeat` is a hash of the
    Idempotency-Key, empty for none, and `content` of what the job is; `about` is what was asked, see intake.py.
    Without a callback the status of a job needs no database.
    """

    caller: str
    key: str | None
    pages: int
    came_at_s: float
    repeat: str
    content: str
    has_callback: bool
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended: why, if it failed, with the code of the error, and when by the clock on the wall."""

    state: Literal["success", "failure"]
    why: str = ""
    code: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PageLog:
    """The pages of the job in this folder: lines of JSON, and an index by which any is found without the others.

    One process at a time appends, and any may read meanwhile. A line is written before its entry in the index, so that
    what the index counts is there. Methods may raise OSError.
    """

    folder: Path

    def count(self) -> int:
        """How many pages are there; reads none."""
        return len(self._entries())

    def size_bytes(self, after: int = 0) -> int:
        """Of the lines, without the first `after`; reads none."""
        ends = [0, *(entry >> 1 for entry in self._entries())]
        return ends[-1] - ends[min(after, len(ends) - 1)]

    def failed(self) -> list[int]:
        """The places, from 0, of the pages that could not be read."""
        return [place for place, entry in enumerate(self._entries()) if entry & 1]

    def read(self, after: int = 0, most: int | None = None) -> Iterator[Any]:
        """The pages, in order and one at a time, without the first `after`; at most so many, or all that are there."""
        ends = [0, *(entry >> 1 for entry in self._entries())]
        if after + 1 < len(ends):
            with (self.folder / LINES).open("rb") as lines:
                lines.seek(ends[after])
                there = len(ends) - 1 - after
                yield from map(orjson.loads, islice(lines, there if most is None else min(there, most)))

    def append(self, page: Mapping[str, object]) -> None:
        """Add a page; only for the process that has claimed the job. One that holds "error" counts as failed."""
        with (self.folder / LINES).open("ab") as lines:
            lines.write(orjson.dumps(page) + b"\n")
            lines.flush()
            ends = lines.tell()
        with (self.folder / INDEX).open("ab") as index:
            index.write(_ENTRY.pack(ends << 1 | ("error" in page)))

    def repair(self) -> None:
        """Cut off what is no whole line, and count anew; only for the process that has claimed the job."""
        entries, ends = b"", 0
        with suppress(FileNotFoundError), (self.folder / LINES).open("r+b") as lines:
            # A disk without power may leave anything in place of a line.
            with suppress(ValueError):
                for line in lines:
                    if not line.endswith(b"}\n"):
                        break
                    is_failed = "error" in orjson.loads(line)
                    ends += len(line)
                    entries += _ENTRY.pack(ends << 1 | is_failed)
            lines.truncate(ends)
            (self.folder / f"{INDEX}.new").write_bytes(entries)
            (self.folder / f"{INDEX}.new").rename(self.folder / INDEX)

    def sync(self) -> None:
        """Have what was appended survive a loss of power."""
        for name in (LINES, INDEX):
            with suppress(FileNotFoundError), (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())

    def _entries(self) -> list[int]:
        """All whole entries; a torn one at the end does not count."""
        with suppress(FileNotFoundError):
            data = (self.folder / INDEX).read_bytes()
            return [entry for (entry,) in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]
        return []


@dataclass(frozen=True, slots=True)
class Job:
    """One job; any method may raise FileNotFoundError once it was removed."""

    folder: Path
    database: JobDatabase = field(compare=False)

    @property
    def id(self) -> str:
        """Random, and the only thing that a caller without a key needs to know."""
        return self.folder.name

    @property
    def log(self) -> PageLog:
        """Its pages."""
        return PageLog(self.folder)

    def record(self) -> Record:
        """Whose it is, and when it came."""
        return Record(**self.get(RECORD))

    def about(self) -> Any:
        """What was asked; see intake.py."""
        return self.record().about

    def data(self) -> bytes:
        """What was sent."""
        return (self.folder / "file").read_bytes()

    def came_at_s(self) -> float:
        """When it came, in seconds of the clock on the wall; for people."""
        return self.record().came_at_s

    def started_at_s(self) -> float | None:
        """When reading began, by the clock on the wall; None before that."""
        with suppress(FileNotFoundError):
            return (self.folder / "started").stat().st_mtime
        return None

    def note_start(self) -> None:
        """Reading begins, if it did not before."""
        if self.started_at_s() is None:
            (self.folder / "started").touch()

    def is_there(self) -> bool:
        """Whether it was not removed; False also where the disk fails. Raises nothing.

        Engine threads ask, before each page: what `Path.exists` raises on a disk that fails would end them.
        """
        return os.path.exists(self.folder)  # noqa: PTH110  see above

    def is_done(self) -> bool:
        """Whether nothing more will be read."""
        return (self.folder / DONE).exists()

    def end(self) -> End | None:
        """How it ended; None while it has not."""
        with suppress(FileNotFoundError):
            return End(**self.get(DONE))
        return None

    def state(self) -> tuple[State, str]:
        """How far it is, and for a failure why."""
        if (end := self.end()) is not None:
            return end.state, end.why
        return ("running" if (self.folder / BEGUN).exists() else "waiting"), ""

    def finish(self, state: Literal["success", "failure"], why: str = "", code: str = "") -> None:
        """Nothing more will be read. What was read is on the disk before that is said."""
        self._sync_pages()
        self.put(DONE, asdict(End(state, why, code, time.time())))
        self.note_progress()

    def note_progress(self) -> None:
        """Have what was read survive a loss of power, and its row say its size and whether it is done."""
        self._sync_pages()
        sql = "UPDATE job SET bytes = ?, is_done = ? WHERE id = ?"
        self.database.rows(sql, size_of(self.folder), self.is_done(), self.id)

    def callback(self) -> dict[str, Any] | None:
        """How far sending its end has come; None for a job without a callback."""
        names = ("url", "state", "tries", "status")
        rows = self.database.rows(f"SELECT {', '.join(names)} FROM callback WHERE job_id = ?", self.id)  # noqa: S608
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def pages(self) -> Iterator[Any]:
        """What was written for each page, in order and one at a time."""
        return self.log.read()

    def release(self) -> None:
        """Have it wait again, as after a full disk. Needs no space."""
        (self.folder / BEGUN).unlink(missing_ok=True)

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Whether the job is this process's own within the block; the death of the process ends that, too."""
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.log.repair()
            yield True

    def reported(self) -> int:
        """How many pages were returned to callers who ask only for what is new, by any worker."""
        rows = self.database.rows("SELECT reported FROM job WHERE id = ?", self.id)
        return rows[0][0] if rows else 0

    def note_reported(self, before: int, count: int) -> bool:
        """So many are returned now; False, and nothing is noted, where others than `before` were returned meanwhile."""
        sql = "UPDATE job SET reported = ? WHERE id = ? AND reported = ? RETURNING id"
        return before == count or bool(self.database.rows(sql, count, self.id, before))

    @contextmanager
    def unfinished_file(self) -> Iterator[Path]:
        """Where a file is made that is not shown yet, named after this process; what is left there is removed."""
        path = self.folder / f".{os.getpid()}-{uuid.uuid4().hex}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def unfinished_files(self) -> list[Path]:
        """Those that processes make, or have left."""
        return list(self.folder.glob(".*-*"))

    def result_path(self, name: str) -> Path | None:
        """Where a file lies that was made of the result; None for a name that none has, whatever stands in it."""
        return next((file for file in self.folder.glob("out/*") if file.name == name), None)

    def get(self, name: str) -> Any:
        """The JSON in one of its files."""
        return orjson.loads((self.folder / name).read_bytes())

    def put(self, name: str, value: object, *, is_durable: bool = True) -> None:
        """Write one of its files as JSON, as a whole or not at all; durable where the database is."""
        is_synced = is_durable and self.database.is_durable
        with self.unfinished_file() as beside:
            beside.write_bytes(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
            if is_synced:
                sync(beside)
            beside.rename(self.folder / name)
        if is_synced:
            sync(self.folder)

    def _sync_pages(self) -> None:
        if self.database.is_durable:
            self.log.sync()


def sync(*paths: Path) -> None:
    """Have files, or the names in folders, survive a loss of power. Raises OSError."""
    for path in paths:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder and below it; one that is renamed meanwhile may not count."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size
