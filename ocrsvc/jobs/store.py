"""The job store: documents on disk that are read while no client is connected.

In files, because any worker may be asked, and because a worker that dies must lose nothing. The service has one folder
of its own, made by the arbiter and removed with it; each task is a folder in it:

    file          what was sent
    task.json     what is asked
    taken.json    whose it is, and when it came on the monotonic clock, which no correction of the time of day moves
    lock          held (flock) by the process that reads it, so that its death frees it
    begun.json    the page that is being read, and how often it was begun
    pages.jsonl   what was read, a line a page, in order; a line without its end was being written, and does not count
    done.json     how it ended
    told          how many pages were returned to a caller who asks only for what is new
    out/          files made of the result

A task appears, and goes, by the renaming of its folder; the files in it are written beside their place and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar

import orjson

from ocrsvc.errors import QueueFull, Refused
from ocrsvc.jobs.eviction import Bounds, Need, Stored, displaced

MOST_TASKS: Final = 200
MOST_TRIES: Final = 3
"""How often a page may be begun that is never finished: by then it is what ends the processes that read it."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BESIDE: Final = re.compile(r"\.((?P<pid>[0-9]{1,9})-)?[0-9a-f]{32}")
_RETRY_S: Final = 30
_AGAIN: Final = "Send it again later."
# Others need milliseconds, unless a disk or a process has stopped.
_LOCK_WAIT_S: Final = 5.0
_LOCK_CHECK_S: Final = 0.02
_LACKS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS)
_COUNTER_DIGITS: Final = 8
_LOCK_FILE: Final = ".door"

T = TypeVar("T")
State = Literal["waiting", "running", "success", "failure"]


class StorageFull(Refused):
    """The disk, or the table of open files, has no space for a document."""

    code = "storage_full"
    title = "Documents cannot be stored"


@contextmanager
def storing() -> Iterator[None]:
    """Raises StorageFull where the block fails for want of space: on the disk, in a quota, in the table of files."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LACKS:
            raise
        raise StorageFull(f"Documents cannot be stored now: {error.strerror}.", _AGAIN, _RETRY_S) from error


@dataclass(frozen=True, slots=True)
class Task:
    """One document, as it lies in its folder; any method may raise FileNotFoundError once it was cleared."""

    folder: Path

    @property
    def id(self) -> str:
        """Random, and the only thing that a caller needs to know."""
        return self.folder.name

    def about(self) -> Any:
        """What was asked."""
        return self._get("task.json")

    def data(self) -> bytes:
        """What was sent."""
        return (self.folder / "file").read_bytes()

    def came_at_s(self) -> float:
        """When it came, in seconds of the clock on the wall; for people."""
        return (self.folder / "file").stat().st_mtime

    def came_s(self) -> float:
        """When it came, in monotonic seconds."""
        return float(self._get("taken.json")[1])

    def stored(self) -> Stored:
        """What it takes of the store, and whose it is."""
        caller, came_s = self._get("taken.json")
        size = sum(_size(Path(place) / name) for place, _, names in os.walk(self.folder) for name in names)
        return Stored(self.id, caller, size, came_s, self.is_done())

    def is_there(self) -> bool:
        """Whether nobody has cleared it."""
        return self.folder.exists()

    def is_done(self) -> bool:
        """Whether nothing more will be read."""
        return (self.folder / "done.json").exists()

    def state(self) -> tuple[State, str]:
        """How far it is, and for a failure why."""
        with suppress(FileNotFoundError):
            state, why = self._get("done.json")
            return state, why
        return ("running" if (self.folder / "begun.json").exists() else "waiting"), ""

    def finish(self, state: Literal["success", "failure"], why: str = "") -> None:
        """Nothing more will be read."""
        self._put("done.json", orjson.dumps([state, why]))

    def pages(self, after: int = 0) -> list[Any]:
        """What was written for each page, in order, from the one on that has `after` before it."""
        try:
            with (self.folder / "pages.jsonl").open("rb") as lines:
                return [orjson.loads(line) for line in islice(lines, after, None) if line.endswith(b"\n")]
        except FileNotFoundError:
            return []

    def count_pages(self) -> int:
        """How many pages were written."""
        with suppress(FileNotFoundError), (self.folder / "pages.jsonl").open("rb") as lines:
            return sum(line.endswith(b"\n") for line in lines)
        return 0

    def add_page(self, page: object) -> None:
        """Write one more; only for who has claimed the task. Whoever claims it next cuts off what a failure left."""
        with (self.folder / "pages.jsonl").open("ab") as pages:
            pages.write(orjson.dumps(page) + b"\n")

    def begin(self, number: int) -> int:
        """Note that a page is begun; how often it was before, by processes that did not come back."""
        times = 0
        with suppress(FileNotFoundError):
            begun, count = self._get("begun.json")
            times = count if begun == number else 0
        self._put("begun.json", orjson.dumps([number, times + 1]))
        return times

    def release(self) -> None:
        """Nobody reads it now, and that is not its fault. Needs no space on the disk."""
        (self.folder / "begun.json").unlink(missing_ok=True)

    def forget_begin(self, number: int) -> None:
        """The page was released in good order, and is to be begun by another process: the last time does not count."""
        _, times = self._get("begun.json")
        self._put("begun.json", orjson.dumps([number, times - 1]))

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Whether the task is this process's own within the block, and nobody else's."""
        with (self.folder / "lock").open("ab") as lock:
            if not _try_lock(lock):
                yield False
                return
            self._cut_half_a_line()
            yield True

    def take_unreported(self) -> list[Any]:
        """The pages that were not taken before, by any worker."""
        counter = os.open(self.folder / "told", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(counter, fcntl.LOCK_EX)
            before = int(os.pread(counter, _COUNTER_DIGITS, 0) or 0)
            pages = self.pages(before)
            os.pwrite(counter, b"%0*d" % (_COUNTER_DIGITS, before + len(pages)), 0)
        finally:
            os.close(counter)
        return pages

    def put_result_file(self, name: str, data: bytes) -> None:
        """Keep a file that was made of the result; the name must be that of a file and nothing else."""
        (self.folder / "out").mkdir(exist_ok=True)
        self._put(f"out/{name}", data)

    def result_file(self, name: str) -> bytes | None:
        """A file that was made of the result; None for a name that none has, whatever stands in it."""
        with suppress(FileNotFoundError):
            return next((file.read_bytes() for file in (self.folder / "out").iterdir() if file.name == name), None)
        return None

    def _cut_half_a_line(self) -> None:
        with suppress(FileNotFoundError), (self.folder / "pages.jsonl").open("r+b") as pages:
            pages.truncate(pages.read().rfind(b"\n") + 1)

    def _get(self, name: str) -> Any:
        return orjson.loads((self.folder / name).read_bytes())

    def _put(self, name: str, data: bytes) -> None:
        beside = self.folder / f".{uuid.uuid4().hex}"
        try:
            beside.write_bytes(data)
            beside.rename(self.folder / name)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


class Tasks:
    """The tasks of a service, seen by one of its processes.

    Args:
        folder: See `make_folder`.
        most_bytes: Of all files together; more are refused.
        keep_s: How long a task is kept after it came.
        clock: Monotonic seconds, the same in all processes.

    Attributes:
        folder, most_bytes: As given.
        added: Set when this process added a task.
    """

    def __init__(
        self, folder: Path, most_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder, self.most_bytes, self._keep_s, self._clock = folder, most_bytes, keep_s, clock
        self.added = threading.Event()

    def add(self, data: bytes, about: Mapping[str, object], caller: str = "") -> Task:
        """Take in a document of a caller, for which others may have to go (see `shares`).

        Raises:
            QueueFull: There is no space for it, or others are stored that take too long.
            OSError: It cannot be stored; nothing is left of it.
        """
        beside = self.folder / f".{os.getpid()}-{uuid.uuid4().hex}"
        try:
            beside.mkdir(0o700)
            # Before the lock, which nobody may hold for as long as a large file takes on a slow disk.
            (beside / "file").write_bytes(data)
            (beside / "task.json").write_bytes(orjson.dumps(about))
            with self._locked():
                self._clear_for(Need(caller, len(data)))
                (beside / "taken.json").write_bytes(orjson.dumps([caller, self._clock()]))
                task = Task(beside.rename(self.folder / str(uuid.uuid4())))
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        self.added.set()
        return task

    def put_result_file(self, task: Task, name: str, data: bytes) -> None:
        """Keep a file that was made of the result of a task, under the conditions of `add`."""
        with self._locked():
            self._clear_for(Need(task.stored().caller, len(data), document=task.id))
            task.put_result_file(name, data)

    def _clear_for(self, need: Need) -> None:
        """Clear what has to go. Raises QueueFull when that is not enough."""
        self.sweep()
        gone = displaced(self._each(Task.stored), need, Bounds(MOST_TASKS, self.most_bytes))
        if gone is None:
            raise QueueFull(
                f"{MOST_TASKS} documents, or {self.most_bytes} bytes of them (OCRSVC_TASKS_BYTES), are kept already, "
                "and none of them has to make room for this caller.",
                "Wait until those that you sent are done, or clear them.",
                _RETRY_S,
            )
        for document in gone:
            self.clear(Task(self.folder / document.id))

    def find(self, name: object) -> Task | None:
        """The task with this id; None for any other text, and for what is no text."""
        if not isinstance(name, str) or not _ID.fullmatch(name):
            return None
        task = Task(self.folder / name)
        return task if task.is_there() else None

    def all(self) -> list[Task]:
        """All that are kept."""
        return [Task(Path(entry)) for entry in self._entries() if _ID.fullmatch(entry.name)]

    def waiting(self) -> list[Task]:
        """Those that are not done, the oldest first."""
        found = self._each(lambda task: (task.came_s(), task.id, task))
        return [task for *_, task in sorted(found) if not task.is_done()]

    def clear(self, task: Task) -> None:
        """Remove a task, also while it is read: its reader finds out by itself."""
        gone = self.folder / f".{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            task.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what is too old, and what is left of those that were not taken in or not cleared to the end."""
        for entry in self._entries():
            found = _BESIDE.fullmatch(entry.name)
            if found and not (found["pid"] and Path("/proc", found["pid"]).exists()):
                shutil.rmtree(entry, ignore_errors=True)
        for came_s, task in self._each(lambda task: (task.came_s(), task)):
            if self._clock() - came_s > self._keep_s:
                self.clear(task)

    def _entries(self) -> list[os.DirEntry[str]]:
        with suppress(FileNotFoundError):
            return list(os.scandir(self.folder))
        return []

    def _each(self, look: Callable[[Task], T]) -> list[T]:
        """What is seen at each task that is not cleared meanwhile."""
        seen = []
        for task in self.all():
            with suppress(FileNotFoundError):
                seen.append(look(task))
        return seen

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No other process takes one in meanwhile. Raises QueueFull when another, which may be frozen, does not end."""
        until_s = time.monotonic() + _LOCK_WAIT_S
        with (self.folder / _LOCK_FILE).open("ab") as lock:
            while not _try_lock(lock):
                if time.monotonic() >= until_s:
                    raise QueueFull("Other documents are being stored, and that takes long.", _AGAIN, _RETRY_S)
                time.sleep(_LOCK_CHECK_S)
            yield


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0
