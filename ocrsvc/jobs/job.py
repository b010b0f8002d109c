"""One job, as it lies in its folder.

    file           what was sent
    job.json       what is asked, whose it is, and when it came
    lock           held (flock) by the process that reads it, so that its death frees it; as old as the first reading
    begun.json     the pages that are being read, and how often each was begun
    pages.jsonl    what was read, a line a page, in order
    pages.index    where each of these lines ends, so that any is found without the others
    done.json      how it ended
    engine.json    which engine read it
    secret         what signs the message to its callback, until that is delivered or given up
    out/           files made of the result

Files are written beside their place and renamed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, Literal

import orjson

from ocrsvc.errors import OcrsvcError
from ocrsvc.jobs.job_database import JobDatabase

State = Literal["waiting", "running", "success", "failure"]
# What the native API calls them, and where its jobs are.
STATES: Final[dict[State, str]] = {"waiting": "waiting", "running": "running", "success": "done", "failure": "failed"}
PATH: Final = "/v1/jobs"
BEGUN, DONE, ENGINE, RECORD, SECRET = "begun.json", "done.json", "engine.json", "job.json", "secret"
LINES, INDEX = "pages.jsonl", "pages.index"
# Twice the place where the line ends, and 1 more for a page that could not be read.
_ENTRY: Final = Struct("<Q")
_MAX_FAILED: Final = 100


@dataclass(frozen=True, slots=True)
class Record:
    """Whose a job is, and what is asked of it.

    `key` is the identity of the API key, `source` the adapter that took it in, `asked` what that remembers. Of the
    `count` pages of the document these `numbers` are read. `repeat` is a hash of the Idempotency-Key, empty for none,
    and `content` of what the job is; `callback` is a URL.
    """

    caller: str
    key: str | None = None
    source: str = ""
    name: str = ""
    count: int = 0
    numbers: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    formats: Sequence[str] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    repeat: str = ""
    content: str = ""
    callback: str = ""
    came_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: why it failed, with the code of the error, and when it ended, by the clock on the wall."""

    state: State
    why: str = ""
    code: str = ""
    ended_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job; any method may raise OSError, FileNotFoundError once it was removed."""

    folder: Path
    database: JobDatabase = field(compare=False)

    @property
    def id(self) -> str:
        """Random, and the only thing that a caller without a key needs to know."""
        return self.folder.name

    def record(self) -> Record:
        """What is asked."""
        return Record(**self.get(RECORD))

    def data(self) -> bytes:
        """What was sent."""
        return (self.folder / "file").read_bytes()

    def started_at_s(self) -> float | None:
        """When reading began, by the clock on the wall; None before that."""
        lock = self.folder / "lock"
        return lock.stat().st_mtime if lock.exists() else None

    def is_there(self) -> bool:
        """Whether it was not removed; False also where the disk fails."""
        return os.path.exists(self.folder)  # noqa: PTH110  raises nothing, which would end engine threads

    def is_done(self) -> bool:
        """Whether nothing more will be read."""
        return (self.folder / DONE).exists()

    def progress(self) -> Progress:
        """How far it is."""
        with suppress(FileNotFoundError):
            return Progress(**self.get(DONE))
        return Progress("running" if (self.folder / BEGUN).exists() else "waiting")

    def finish(self, error: OcrsvcError | None = None) -> None:
        """Nothing more will be read. What was read is on the disk before that is said."""
        self.note_progress()
        progress = Progress("success") if error is None else Progress("failure", str(error), error.code)
        self.put(DONE, replace(progress, ended_at_s=time.time()))
        self.note_progress()

    def note_progress(self) -> None:
        """Have what was read survive a loss of power, and its row say its size and whether it is done."""
        with suppress(FileNotFoundError):
            self.database.sync(self.folder / LINES, self.folder / INDEX)
        sql = "UPDATE job SET bytes = ?, is_done = ? WHERE id = ?"
        self.database.rows(sql, size_of(self.folder), self.is_done(), self.id)

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Whether the job is this process's own within the block; the death of the process ends that, too."""
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self._repair_pages()
            yield True

    def page_count(self) -> int:
        """How many pages were read, or could not be; reads none."""
        return len(self._entries())

    def failed_pages(self) -> list[int]:
        """The places, from 0, of the pages that could not be read."""
        return [place for place, entry in enumerate(self._entries()) if entry & 1]

    def pages_bytes(self, after: int = 0) -> int:
        """The size of what was written for the pages, without the first `after`; reads none."""
        ends = self._ends()
        return ends[-1] - ends[min(after, len(ends) - 1)]

    def pages(self, after: int = 0, most: int | None = None) -> Iterator[Any]:
        """What was written for each page, in order and one at a time, without the first `after`."""
        ends = self._ends()
        if after + 1 < len(ends):
            with (self.folder / LINES).open("rb") as lines:
                lines.seek(ends[after])
                yield from map(orjson.loads, islice(lines, len(ends[after + 1 :][:most])))

    def append_page(self, page: Mapping[str, object]) -> None:
        """Add a page; only for the process that has claimed the job. One that holds "error" counts as failed."""
        with (self.folder / LINES).open("ab") as lines:
            lines.write(orjson.dumps(page) + b"\n")
            lines.flush()
            entry = lines.tell() << 1 | ("error" in page)
        # Afterwards: what the index counts is there.
        with (self.folder / INDEX).open("ab") as index:
            index.write(_ENTRY.pack(entry))

    def reported(self) -> int:
        """How many pages were returned to callers who ask only for what is new, by any worker."""
        rows = self.database.rows("SELECT reported FROM job WHERE id = ?", self.id)
        return rows[0][0] if rows else 0

    def note_reported(self, before: int, count: int) -> bool:
        """So many are returned now; False, and nothing is noted, where others than `before` were returned meanwhile."""
        sql = "UPDATE job SET reported = ? WHERE id = ? AND reported = ? RETURNING id"
        return before == count or bool(self.database.rows(sql, count, self.id, before))

    def result_path(self, name: str) -> Path | None:
        """Where a file lies that was made of the result; None for a name that none has, whatever stands in it."""
        return next((file for file in self.folder.glob("out/*") if file.name == name), None)

    def get(self, name: str) -> Any:
        """The JSON in one of its files."""
        return orjson.loads((self.folder / name).read_bytes())

    def put(self, name: str, value: object, *, is_durable: bool = True) -> None:
        """Write one of its files as JSON; only for the process that has claimed the job."""
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        write_whole(self.folder / name, data, self.database.sync if is_durable else bool)

    def _repair_pages(self) -> None:
        """Cut off what is no whole line, and make the index anew."""
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
            write_whole(self.folder / INDEX, entries)

    def _entries(self) -> list[int]:
        """All whole entries of the index; a torn one at the end does not count."""
        data = (self.folder / INDEX).read_bytes() if (self.folder / INDEX).exists() else b""
        return [entry for (entry,) in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]

    def _ends(self) -> list[int]:
        return [0, *(entry >> 1 for entry in self._entries())]


def job_status(job: Job) -> dict[str, Any]:
    """How a job is, for the native API and callbacks. Raises FileNotFoundError once it was removed."""
    record, progress, failed, where = job.record(), job.progress(), job.failed_pages(), f"{PATH}/{job.id}"
    total = len(record.numbers)
    status: dict[str, Any] = {
        "id": job.id,
        "state": STATES[progress.state],
        "name": record.name,
        "pages": {"total": total, "done": job.page_count(), "failed": len(failed), "in_document": record.count},
        "failed_pages": [record.numbers[place] for place in failed[:_MAX_FAILED]],
        "created_at": _moment(record.came_at_s),
        "started_at": _moment(job.started_at_s()),
        "finished_at": _moment(progress.ended_at_s),
        "formats": record.formats,
        "links": {"self": where, "pages": f"{where}/pages", "result": f"{where}/result"},
    }
    if progress.state == "failure":
        status["error"] = {"code": progress.code, "detail": progress.why}
    if record.callback:
        rows = job.database.rows("SELECT state, tries, status FROM callback WHERE job_id = ?", job.id)
        for state, tries, answered in rows:
            status["callback"] = {"url": record.callback, "state": state, "tries": tries, "status": answered}
    return status


def write_whole(path: Path, data: bytes, sync: Callable[[Path], object] = bool) -> None:
    """Write a file as a whole or not at all; for one process at a time."""
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_bytes(data)
        sync(beside)
        beside.rename(path)
        sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _moment(at_s: float | None) -> str | None:
    """RFC 3339, by the clock on the wall."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
