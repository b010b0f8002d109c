"""One job of the store, as it lies in its folder.

    file          what was sent
    task.json     what is asked
    taken.json    whose it is, and when it came
    lock          held (flock) by the process that reads it, so that its death frees it
    started       when reading began
    begun.json    the pages that are being read, and how often each was begun
    pages.jsonl   what was read, a line a page, in order; with pages.index (see page_log.py)
    done.json     how it ended
    engine.json   which engine read it
    callback.json where its end is to be told, and how far that has come
    told          how many pages were returned to a caller who asks only for what is new
    out/          files made of the result

The files are written beside their place and renamed.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from ocrsvc.jobs.files import put, try_lock
from ocrsvc.jobs.page_log import PageLog

State = Literal["waiting", "running", "success", "failure"]

BEGUN: Final = "begun.json"
CALLBACK: Final = "callback.json"
DONE: Final = "done.json"
ENGINE: Final = "engine.json"
_COUNTER_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Taken:
    """When a job came, and whose it is.

    Attributes:
        caller: With whom it shares the store.
        pages: How many are asked for.
        came_s: Monotonic seconds of this boot, which no correction of the time of day moves; `store.py` translates
            those of an earlier boot.
        came_at_s: By the clock on the wall, for people, and for the translation.
        boot: Which boot `came_s` belongs to.
        repeat: What the caller sends again when it sends the same job once more, hashed; empty for nothing.
        content: What the job is, hashed; tells another job under the same `repeat`.
        key: The identity of the API key that it was left with; None for none.
    """

    caller: str
    pages: int
    came_s: float
    came_at_s: float
    boot: str
    repeat: str = ""
    content: str = ""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended: why, if it failed, with the code of the error, and when by the clock on the wall."""

    state: Literal["success", "failure"]
    why: str = ""
    code: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job; any method may raise FileNotFoundError once it was cleared.

    Attributes:
        folder: Where it lies.
        is_durable: Whether it is to survive a loss of power.
    """

    folder: Path
    is_durable: bool = field(default=False, compare=False)

    @property
    def id(self) -> str:
        """Random, and the only thing that a caller without a key needs to know."""
        return self.folder.name

    @property
    def log(self) -> PageLog:
        """Its pages."""
        return PageLog(self.folder)

    def about(self) -> Any:
        """What was asked; see intake.py."""
        return self.get("task.json")

    def data(self) -> bytes:
        """What was sent."""
        return (self.folder / "file").read_bytes()

    def taken(self) -> Taken:
        """When it came, and whose it is."""
        return Taken(**self.get("taken.json"))

    def came_at_s(self) -> float:
        """When it came, in seconds of the clock on the wall; for people."""
        return self.taken().came_at_s

    def came_s(self) -> float:
        """When it came, in monotonic seconds."""
        return self.taken().came_s

    def started_at_s(self) -> float | None:
        """When reading began, by the clock on the wall; None before that."""
        with suppress(FileNotFoundError):
            return (self.folder / "started").stat().st_mtime
        return None

    def note_start(self) -> None:
        """Reading begins, if it did not before."""
        path = self.folder / "started"
        if not path.exists():
            path.touch()

    def is_there(self) -> bool:
        """Whether nobody has cleared it; False also where the disk does not tell. Raises nothing.

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
        end = self.end()
        if end is not None:
            return end.state, end.why
        return ("running" if (self.folder / BEGUN).exists() else "waiting"), ""

    def finish(self, state: Literal["success", "failure"], why: str = "", code: str = "") -> None:
        """Nothing more will be read. What was read is on the disk before that is said."""
        if self.is_durable:
            self.log.sync()
        self.put(DONE, {"state": state, "why": why, "code": code, "at_s": time.time()})

    def pages(self, after: int = 0) -> Iterator[Any]:
        """What was written for each page, in order and one at a time, from the one on that has `after` before it."""
        return self.log.read(after)

    def count_pages(self) -> int:
        """How many pages were written."""
        return self.log.count()

    def add_page(self, page: Mapping[str, object]) -> None:
        """Write one more; only for who has claimed the job. Whoever claims it next cuts off what a failure left."""
        self.log.append(page)

    def release(self) -> None:
        """Nobody reads it now, and that is not its fault. Needs no space on the disk."""
        (self.folder / BEGUN).unlink(missing_ok=True)

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Whether the job is this process's own within the block, and nobody else's."""
        with (self.folder / "lock").open("ab") as lock:
            if not try_lock(lock):
                yield False
                return
            self.log.repair()
            yield True

    def take_unreported(self) -> list[Any]:
        """The pages that were not taken before, by any worker."""
        counter = os.open(self.folder / "told", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(counter, fcntl.LOCK_EX)
            before = int(os.pread(counter, _COUNTER_DIGITS, 0) or 0)
            pages = list(self.pages(before))
            os.pwrite(counter, b"%0*d" % (_COUNTER_DIGITS, before + len(pages)), 0)
        finally:
            os.close(counter)
        return pages

    def remove_unfinished_files(self) -> None:
        """Those that a process was writing when it ended; for when none can be writing any."""
        for place in (self.folder, self.folder / "out"):
            for left in place.glob(".*"):
                left.unlink(missing_ok=True)

    def put_result_file(self, name: str, data: bytes) -> None:
        """Keep a file that was made of the result; the name must be that of a file and nothing else."""
        with self.unfinished_file() as made:
            made.write_bytes(data)
            self.keep_result_file(made, name)

    def keep_result_file(self, made: Path, name: str) -> Path:
        """The same for one that lies in the job's own folder; where it lies then.

        The time of the folder moves with it, in one step: who knows how large the job was sees that it has changed
        (see job_index.py), whenever this process ends.
        """
        (self.folder / "out").mkdir(exist_ok=True)
        return made.rename(self.folder / "out" / name)

    @contextmanager
    def unfinished_file(self) -> Iterator[Path]:
        """Where a file is made that nobody is to see yet, named after this process; what is left there is removed."""
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
        with suppress(FileNotFoundError):
            return next((file for file in (self.folder / "out").iterdir() if file.name == name), None)
        return None

    def result_file(self, name: str) -> bytes | None:
        """A file that was made of the result; None for a name that none has, whatever stands in it."""
        path = self.result_path(name)
        with suppress(FileNotFoundError):
            return path.read_bytes() if path is not None else None
        return None

    def get(self, name: str) -> Any:
        """The JSON in one of its files."""
        return orjson.loads((self.folder / name).read_bytes())

    def put(self, name: str, value: object) -> None:
        """Write one of its files as JSON."""
        put(self.folder / name, orjson.dumps(value), is_durable=self.is_durable)
