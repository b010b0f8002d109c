"""One job and the files in its folder.

    file           the document
    job.json       the request, its owner, and its time
    lock           locked (flock) by the process that reads the job; its modification time is when reading began
    begun.json     the pages being read, and how often each was begun
    pages.jsonl    results, a line per page, in order
    pages.index    the end of each of these lines, for random access
    done.json      the outcome
    engine.json    the engine that read it
    secret         the callback's secret, until the callback was delivered or given up
    out/           files made from the result

Files are written under another name and renamed.
"""

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
from ocrsvc.results import ignore

State = Literal["waiting", "running", "success", "failure"]
# Job states as clients of the native API see them.
STATES: Final[dict[State, str]] = {"waiting": "waiting", "running": "running", "success": "done", "failure": "failed"}
PATH: Final = "/v1/jobs"
BEGUN, DONE, ENGINE, RECORD, SECRET = "begun.json", "done.json", "engine.json", "job.json", "secret"
LINES, INDEX = "pages.jsonl", "pages.index"
# Index entry of a page: twice the offset at which its line in LINES ends, plus 1 if the page could not be read.
_ENTRY: Final = Struct("<Q")
_MAX_FAILED: Final = 100


@dataclass(frozen=True, slots=True)
class Record:
    """A job's owner and request.

    `key` is the identity of the API key, `source` the adapter that accepted the job, `asked` that adapter's own data.
    `count` is the document's number of pages, `numbers` the pages to read. `repeat` is a hash of the Idempotency-Key,
    "" for none, and `content` a hash of the request and file; `callback` is a URL.
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
    """A job's state, the reason and error code of a failure, and when it ended (Unix time)."""

    state: State
    why: str = ""
    code: str = ""
    ended_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Any method may raise OSError, and FileNotFoundError if the job was removed."""

    folder: Path
    database: JobDatabase = field(compare=False)

    @property
    def id(self) -> str:
        """The random id; it alone gives a client without an API key access to the job."""
        return self.folder.name

    def record(self) -> Record:
        """The job's owner and request."""
        return Record(**self.get(RECORD))

    def data(self) -> bytes:
        """The document as sent."""
        return (self.folder / "file").read_bytes()

    def document_bytes(self) -> int:
        """The size of the document."""
        return (self.folder / "file").stat().st_size

    def started_at_s(self) -> float | None:
        """When reading began (Unix time); None before that."""
        lock = self.folder / "lock"
        return lock.stat().st_mtime if lock.exists() else None

    def is_there(self) -> bool:
        """Whether the job exists; False also if the disk fails."""
        return os.path.exists(self.folder)  # noqa: PTH110  raises nothing, which would end engine threads

    def is_done(self) -> bool:
        """Whether the job has ended."""
        return (self.folder / DONE).exists()

    def progress(self) -> Progress:
        """The job's state and outcome."""
        with suppress(FileNotFoundError):
            return Progress(**self.get(DONE))
        return Progress("running" if (self.folder / BEGUN).exists() else "waiting")

    def finish(self, error: OcrsvcError | None = None) -> None:
        """End the job; its pages are synced before its outcome is written."""
        self.note_progress()
        progress = Progress("success") if error is None else Progress("failure", str(error), error.code)
        self.put(DONE, replace(progress, ended_at_s=time.time()))
        self.note_progress()

    def note_progress(self) -> None:
        """Flush the pages to disk, and update the job's size and state in the database."""
        with suppress(FileNotFoundError):
            self.database.sync(self.folder / LINES, self.folder / INDEX)
        sql = "UPDATE job SET bytes = ?, is_done = ? WHERE id = ?"
        self.database.rows(sql, size_of(self.folder), self.is_done(), self.id)

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Lock the job during the block; yields False if another process has the lock. A crash releases the lock."""
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self._repair_pages()
            yield True

    def page_count(self) -> int:
        """The number of pages that were read or failed, from the index."""
        return len(self._entries())

    def failed_pages(self) -> list[int]:
        """The positions, from 0, of the pages that could not be read."""
        return [place for place, entry in enumerate(self._entries()) if entry & 1]

    def pages_bytes(self, after: int = 0) -> int:
        """Total bytes of the pages' lines except the first `after` lines, from the index."""
        ends = self._ends()
        return ends[-1] - ends[min(after, len(ends) - 1)]

    def pages(self, after: int = 0, most: int | None = None) -> Iterator[Any]:
        """The pages' rows in order, one at a time, except the first `after` rows."""
        ends = self._ends()
        if after + 1 < len(ends):
            with (self.folder / LINES).open("rb") as lines:
                lines.seek(ends[after])
                yield from map(orjson.loads, islice(lines, len(ends[after + 1 :][:most])))

    def append_page(self, page: Mapping[str, object]) -> None:
        """Append a page's JSON; with "error" in it, the page failed. Only for the process that has claimed the job."""
        with (self.folder / LINES).open("ab") as lines:
            lines.write(orjson.dumps(page) + b"\n")
            lines.flush()
            entry = lines.tell() << 1 | ("error" in page)
        # Written last, so that no index entry points beyond the end of the file LINES.
        with (self.folder / INDEX).open("ab") as index:
            index.write(_ENTRY.pack(entry))

    def reported(self) -> int:
        """The number of pages already returned to a client that polls for new pages; all workers share it."""
        rows = self.database.rows("SELECT reported FROM job WHERE id = ?", self.id)
        return rows[0][0] if rows else 0

    def note_reported(self, before: int, count: int) -> bool:
        """Raise the number of reported pages from `before` to `count`; False if another worker changed it meanwhile."""
        sql = "UPDATE job SET reported = ? WHERE id = ? AND reported = ? RETURNING id"
        return before == count or bool(self.database.rows(sql, count, self.id, before))

    def result_path(self, name: str) -> Path | None:
        """The path of a file made from the result; None if there is none. Safe for any name."""
        return next((file for file in self.folder.glob("out/*") if file.name == name), None)

    def get(self, name: str) -> Any:
        """Read one of the job's JSON files."""
        return orjson.loads((self.folder / name).read_bytes())

    def put(self, name: str, value: object, *, is_durable: bool = True) -> None:
        """Write one of the job's JSON files. Only for the process that has claimed the job."""
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        write_whole(self.folder / name, data, self.database.sync if is_durable else bool)

    def _repair_pages(self) -> None:
        """Truncate the pages after the last complete line, and rebuild the index."""
        entries, ends = b"", 0
        with suppress(FileNotFoundError), (self.folder / LINES).open("r+b") as lines:
            # After a power failure a line may contain anything.
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
        """The entries of the index file, without an incomplete last one."""
        data = (self.folder / INDEX).read_bytes() if (self.folder / INDEX).exists() else b""
        return [entry for (entry,) in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]

    def _ends(self) -> list[int]:
        return [0, *(entry >> 1 for entry in self._entries())]


def job_status(job: Job) -> dict[str, Any]:
    """A job's status as JSON values, for the native API and callbacks. Raises FileNotFoundError if it was removed."""
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


def write_whole(path: Path, data: bytes, sync: Callable[[Path], object] = ignore) -> None:
    """Write a file atomically; for one process at a time."""
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_bytes(data)
        sync(beside)
        beside.rename(path)
        sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """The size of all files in a folder and its subfolders."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _moment(at_s: float | None) -> str | None:
    """A Unix time in RFC 3339 format."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
