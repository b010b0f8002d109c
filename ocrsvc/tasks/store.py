"""Where do documents wait that are read while nobody is connected, and who may read each of them?

In files, because any worker may be asked, and because a worker that dies must lose nothing. The service has one folder
of its own, made by the arbiter and removed with it; each task is a folder in it:

    file          what was sent
    task.json     what is asked
    lock          held (flock) by the process that reads it, so that its death frees it
    begun.json    the page that is being read, and how often it was begun
    pages.jsonl   what was read, a line a page, in order; a line without its end was being written, and does not count
    done.json     how it ended
    told          how many pages were told to a caller who asks only for what is new
    out/          files made of the result

A task appears, and goes, by the renaming of its folder; the files in it are written beside their place and renamed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from ocrsvc.errors import QueueFull, SettingsError

PREFIX: Final = "ocrsvc-tasks-"
MOST_TASKS: Final = 200
MOST_TRIES: Final = 3
"""How often a page may be begun that is never finished: by then it is what ends the processes that read it."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BESIDE: Final = re.compile(r"\.[0-9a-f]{32}")
_RETRY_S: Final = 30
_ALIVE: Final = ".alive"
_DOOR: Final = ".door"

State = Literal["waiting", "running", "success", "failure"]


def make_folder(parent: Path | None) -> Path:
    """A new folder for one service, with those removed that services left which were killed.

    It is in use for as long as this process, or one that it forks, lives.

    Raises:
        SettingsError: None can be made there.
    """
    parent = parent or Path(tempfile.gettempdir())
    try:
        for left in parent.glob(f"{PREFIX}*"):
            if _is_left(left):
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        # Never closed: it is what tells others that this process lives, or one that it forked.
        fcntl.flock(os.open(made / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
        folder = made.rename(parent / made.name[1:])
    except OSError as error:
        raise SettingsError(
            f"No folder for documents can be made in {parent}: {error.strerror}.",
            "Set OCRSVC_TASKS_DIR to a folder that the service may write to.",
        ) from error
    return folder


def remove_folder(folder: Path) -> None:
    """Everything that is left, when the service ends."""
    shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Is it a folder of this user's, and has whoever made it ended?"""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        with (folder / _ALIVE).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
        return orjson.loads((self.folder / "task.json").read_bytes())

    def data(self) -> bytes:
        """What was sent."""
        return (self.folder / "file").read_bytes()

    def came_s(self) -> float:
        """When it came, in seconds of the clock on the wall."""
        return (self.folder / "file").stat().st_mtime

    def is_there(self) -> bool:
        """Has nobody cleared it?"""
        return self.folder.exists()

    def state(self) -> tuple[State, str]:
        """How far it is, and for a failure why."""
        with suppress(FileNotFoundError):
            state, why = orjson.loads((self.folder / "done.json").read_bytes())
            return state, why
        return ("running" if (self.folder / "begun.json").exists() else "waiting"), ""

    def finish(self, state: Literal["success", "failure"], why: str = "") -> None:
        """Nothing more will be read."""
        self._put("done.json", orjson.dumps([state, why]))

    def pages(self) -> list[Any]:
        """What was written for each page, in order."""
        try:
            whole, _, _ = (self.folder / "pages.jsonl").read_bytes().rpartition(b"\n")
        except FileNotFoundError:
            return []
        return [orjson.loads(line) for line in whole.split(b"\n") if line]

    def add_page(self, page: object) -> None:
        """Write one more. Only for who has claimed the task, by which half a line was cut off."""
        with (self.folder / "pages.jsonl").open("ab") as pages:
            pages.write(orjson.dumps(page) + b"\n")

    def begin(self, number: int) -> int:
        """Note that a page is begun; how often it was before, by processes that did not come back."""
        times = 0
        with suppress(FileNotFoundError):
            begun, count = orjson.loads((self.folder / "begun.json").read_bytes())
            times = count if begun == number else 0
        self._put("begun.json", orjson.dumps([number, times + 1]))
        return times

    def forget_begin(self, number: int) -> None:
        """The page was laid down in good order, and is to be begun by somebody else: the last time does not count."""
        _, times = orjson.loads((self.folder / "begun.json").read_bytes())
        self._put("begun.json", orjson.dumps([number, times - 1]))

    @contextmanager
    def claim(self) -> Iterator[bool]:
        """Whether the task is this process's own within the block, and nobody else's."""
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self._cut_half_a_line()
            yield True

    def take_untold(self) -> list[Any]:
        """The pages that were not taken before, by any worker."""
        with (self.folder / "told").open("a+b") as told:
            fcntl.flock(told, fcntl.LOCK_EX)
            told.seek(0)
            before, pages = int(told.read() or 0), self.pages()
            told.truncate(0)
            told.write(b"%d" % len(pages))
        return pages[before:]

    def put_out(self, name: str, data: bytes) -> None:
        """Keep a file that was made of the result; the name must be that of a file and nothing else."""
        (self.folder / "out").mkdir(exist_ok=True)
        self._put(f"out/{name}", data)

    def out(self, name: str) -> bytes | None:
        """A file that was made of the result; None for a name that none has, whatever stands in it."""
        with suppress(FileNotFoundError):
            return next((file.read_bytes() for file in (self.folder / "out").iterdir() if file.name == name), None)
        return None

    def _cut_half_a_line(self) -> None:
        with suppress(FileNotFoundError), (self.folder / "pages.jsonl").open("r+b") as pages:
            pages.truncate(pages.read().rfind(b"\n") + 1)

    def _put(self, name: str, data: bytes) -> None:
        beside = self.folder / f".{uuid.uuid4().hex}"
        beside.write_bytes(data)
        beside.rename(self.folder / name)


class Tasks:
    """The tasks of a service, seen by one of its processes.

    Args:
        folder: See `make_folder`.
        most_bytes: Of all files together; more are refused.
        keep_s: How long a task is kept after it came.

    Attributes:
        folder: As given.
        news: Set when this process took one in.
    """

    def __init__(self, folder: Path, most_bytes: int, keep_s: float) -> None:
        self.folder, self._most_bytes, self._keep_s = folder, most_bytes, keep_s
        self.news = threading.Event()

    def add(self, data: bytes, about: Mapping[str, object]) -> Task:
        """Take in a document. Raises QueueFull when the tasks that are kept leave no room for it."""
        with self._alone():
            self._remove_left()
            self.check_room(len(data), tasks=1)
            beside = self.folder / f".{uuid.uuid4().hex}"
            try:
                beside.mkdir(0o700)
                (beside / "file").write_bytes(data)
                (beside / "task.json").write_bytes(orjson.dumps(about))
                task = Task(beside.rename(self.folder / str(uuid.uuid4())))
            except BaseException:
                shutil.rmtree(beside, ignore_errors=True)
                raise
        self.news.set()
        return task

    def check_room(self, more_bytes: int, tasks: int = 0) -> None:
        """Raises QueueFull when so much more would be too much."""
        self.sweep()
        used = sum(_size(Path(place) / name) for place, _, names in os.walk(self.folder) for name in names)
        if len(self.all()) + tasks > MOST_TASKS or used + more_bytes > self._most_bytes:
            raise QueueFull(
                f"{MOST_TASKS} documents, or {self._most_bytes} bytes of them (OCRSVC_TASKS_BYTES), are kept already.",
                "Clear those that are done, or send it again later.",
                _RETRY_S,
            )

    def find(self, name: object) -> Task | None:
        """The task with this id; None for any other text, and for what is no text."""
        if not isinstance(name, str) or not _ID.fullmatch(name):
            return None
        task = Task(self.folder / name)
        return task if task.is_there() else None

    def all(self) -> list[Task]:
        """All that are kept."""
        try:
            return [Task(Path(entry)) for entry in os.scandir(self.folder) if _ID.fullmatch(entry.name)]
        except FileNotFoundError:
            return []

    def waiting(self) -> list[Task]:
        """Those that are not done, the oldest first."""
        found = []
        for task in self.all():
            with suppress(FileNotFoundError):
                if not (task.folder / "done.json").exists():
                    found.append((task.came_s(), task))
        return [task for _, task in sorted(found, key=lambda entry: entry[0])]

    def clear(self, task: Task) -> None:
        """Remove a task, whoever reads it: he finds out by himself."""
        gone = self.folder / f".{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            task.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what is too old."""
        for task in self.all():
            with suppress(FileNotFoundError):
                if time.time() - task.came_s() > self._keep_s:
                    self.clear(task)

    def _remove_left(self) -> None:
        """What processes that died were adding or clearing; only for who is alone, so that nobody is adding any."""
        for entry in os.scandir(self.folder):
            if _BESIDE.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process takes one in meanwhile."""
        with (self.folder / _DOOR).open("ab") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            yield


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0
