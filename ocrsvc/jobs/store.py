"""The job store: documents on disk that are read while no client is connected.

In files, because any worker may be asked, and because a worker that dies, or a whole service, must lose nothing. A
service has one folder (see folder.py); each job is a folder in it (see job.py), which appears, and goes, by renaming.

Where the store is durable, a document that was accepted and a job that is said to be done are on the disk (fsync)
before anybody is told. Pages survive the death of any process; after a loss of power those of the last moments may be
read again, and each is there once in any case.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from ocrsvc.errors import KeyReused, QueueFull, Refused, TooManyJobs
from ocrsvc.jobs.eviction import Bounds, Need, displaced
from ocrsvc.jobs.files import locked, put, sync
from ocrsvc.jobs.job import Job, Taken
from ocrsvc.jobs.job_index import JobEntry, JobIndex
from ocrsvc.jobs.untold_ends import UNTOLD_S, UntoldEnds
from ocrsvc.jobs.uploaded_files import UploadedFiles
from ocrsvc.serving.limiter import Limiter

LOGGER: Final = logging.getLogger("ocrsvc.jobs")
MOST_JOBS: Final = 1000
DAMAGED: Final = "damaged-"
"""How the folder of a job begins that cannot be understood: it is kept for who looks into it, and nobody reads it."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BESIDE: Final = re.compile(r"\.((?P<pid>[0-9]{1,9})-)?[0-9a-f]{32}")
_RETRY_S: Final = 30
_AGAIN: Final = "Send it again later."
_LACKS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EROFS)
_LOCK_FILE: Final = ".lock"
_UPLOADS_PART: Final = 4
_ADDED_AT_ONCE: Final = 2
_ADDED_WAITING: Final = 32


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
class CallerLimits:
    """What one caller may have in the store that is not read yet: jobs, and pages of all of them together."""

    jobs: int = MOST_JOBS
    pages: int = 1 << 40


class JobStore:
    """The jobs of a service, seen by one of its processes.

    Args:
        folder: See `open_folder`.
        most_bytes: Of all files together; more are refused.
        keep_s: How long a job is kept after it came.
        clock: Monotonic seconds, the same in all processes.
        limits: For each caller.
        is_durable: Whether jobs are to survive a loss of power.

    Attributes:
        folder, most_bytes, is_durable: As given.
        added: Set when this process added a job.
        untold: Ends of jobs that nobody deleted, and whose callbacks are still to be told.
        adding: For who calls `add` in a request: threads that wait for the lock are threads that other requests need.
        uploads: Files that are uploaded to be read later; they may take a quarter of `most_bytes`, beside it.
        note: Told what became of jobs here: "accepted", "deleted", "displaced", "expired", and by others that read
            and tell them "done", "failed" and how callbacks went.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
        limits: CallerLimits | None = None,
        *,
        is_durable: bool = False,
    ) -> None:
        self.folder, self.most_bytes, self._keep_s, self._clock = folder, most_bytes, keep_s, clock
        self._limits, self.is_durable = limits or CallerLimits(), is_durable
        self._index = JobIndex(self._job, clock)
        self.added = threading.Event()
        self.untold = UntoldEnds(folder / "untold", self._job)
        self.uploads = UploadedFiles(folder / "uploads", most_bytes // _UPLOADS_PART, keep_s)
        self.note: Callable[[str], object] = bool
        self.adding = Limiter(_ADDED_AT_ONCE, _ADDED_WAITING)

    def add(
        self,
        data: bytes,
        about: Mapping[str, object],
        caller: str = "",
        *,
        pages: int = 1,
        repeat: str = "",
        content: str = "",
        more: Mapping[str, object] | None = None,
    ) -> Job:
        """Take in a document of a caller, for which others may have to go (see eviction.py).

        Args:
            data: What was sent.
            about: What is asked; its `key` is the identity of the API key that the document was left with.
            caller: With whom it shares the store.
            pages: How many are asked for.
            repeat, content: See `Taken`: a job that is there with the same of both is what comes back.
            more: Further files of the job, by name, as JSON.

        Raises:
            QueueFull: There is no space for it, or others are stored that take too long.
            TooManyJobs: The caller has as many as one may have.
            KeyReused: There is another job under the same `repeat`.
            OSError: It cannot be stored; nothing is left of it.
        """
        beside = self.folder / f".{os.getpid()}-{uuid.uuid4().hex}"
        try:
            beside.mkdir(0o700)
            # Before the lock, which nobody may hold for as long as a large file takes on a slow disk.
            (beside / "file").write_bytes(data)
            for name, value in {"task.json": about, **(more or {})}.items():
                put(beside / name, orjson.dumps(value), is_durable=False)
            self._sync(*beside.iterdir())
            with self._locked():
                kept = self._sweep_jobs()
                if repeat and (found := _same(kept, repeat, content)):
                    shutil.rmtree(beside, ignore_errors=True)
                    return found
                self._check_limits(kept, caller, pages)
                self._clear_for(kept, Need(caller, len(data)))
                came = (self._clock(), time.time(), boot_id())
                taken = Taken(caller, pages, *came, repeat, content, _text_or_none(about.get("key")))
                (beside / "taken.json").write_bytes(orjson.dumps(asdict(taken)))
                self._sync(beside / "taken.json", beside)
                job = self._job(beside.rename(self.folder / str(uuid.uuid4())))
                self._sync(self.folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        self.added.set()
        self.note("accepted")
        return job

    def put_result_file(self, job: Job, name: str, data: bytes) -> None:
        """Keep a file that was made of the result of a job, under the conditions of `add`."""
        with self._locked():
            self._clear_for(self._sweep_jobs(), Need(job.taken().caller, len(data), document=job.id))
            job.put_result_file(name, data)

    def keep_result_file(self, job: Job, made: Path, name: str) -> Path:
        """The same for a file that lies in the job's own folder already; where it lies then."""
        # Before the lock, as in `add`.
        self._sync(made)
        with self._locked():
            # What it takes is among what the job takes.
            self._clear_for(self._sweep_jobs(), Need(job.taken().caller, 0, document=job.id))
            return job.keep_result_file(made, name)

    def _check_limits(self, kept: Sequence[JobEntry], caller: str, pages: int) -> None:
        """Raises TooManyJobs."""
        waiting = [entry for entry in kept if entry.taken.caller == caller and not entry.stored.is_done]
        asked = sum(entry.taken.pages for entry in waiting) + pages
        if len(waiting) < self._limits.jobs and asked <= self._limits.pages:
            return
        raise TooManyJobs(
            f"{len(waiting)} documents of this caller wait already, and with this one {asked} pages would; the limits "
            f"are {self._limits.jobs} (OCRSVC_JOBS_WAITING) and {self._limits.pages} (OCRSVC_JOBS_WAITING_PAGES).",
            "Wait until some of them are read, or delete them.",
            _RETRY_S,
        )

    def _clear_for(self, kept: Sequence[JobEntry], need: Need) -> None:
        """Clear what has to go. Raises QueueFull when that is not enough."""
        gone = displaced([entry.stored for entry in kept], need, Bounds(MOST_JOBS, self.most_bytes))
        if gone is None:
            raise QueueFull(
                f"{MOST_JOBS} documents, or {self.most_bytes} bytes of them (OCRSVC_TASKS_BYTES), are kept already, "
                "and none of them has to make room for this caller.",
                "Wait until those that you sent are done, or clear them.",
                _RETRY_S,
            )
        for document in gone:
            self.clear(self._job(self.folder / document.id), "displaced")

    def find(self, name: object) -> Job | None:
        """The job with this id; None for any other text, and for what is no text. Raises OSError of a failing disk."""
        if isinstance(name, str) and _ID.fullmatch(name):
            with suppress(FileNotFoundError):
                (self.folder / name).stat()
                return self._job(self.folder / name)
        return None

    def all(self) -> list[Job]:
        """All that are kept."""
        return [self._job(Path(entry)) for entry in self._entries() if _ID.fullmatch(entry.name)]

    def entries(self) -> list[JobEntry]:
        """What is known of all that are kept; costs little for those that have not changed since the last time."""
        return self._known(self._entries())

    def waiting(self) -> list[Job]:
        """Those that are not done, the oldest first."""
        found = [entry for entry in self.entries() if not entry.stored.is_done]
        return [entry.job for entry in sorted(found, key=lambda entry: (entry.taken.came_s, entry.job.id))]

    def clear(self, job: Job, why: str = "deleted") -> None:
        """Remove a job, also while it is read: its reader finds out by itself. `why` is noted.

        Who has not deleted it himself is told by its callback, if there is one that was not told its end.
        """
        if why != "deleted" and self.untold.keep(job):
            self.note(why)
            return
        gone = self.folder / f".{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            job.folder.rename(gone)
            self.note(why)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what is too old, and what is left of those that were not taken in or not cleared to the end."""
        self._sweep_jobs()
        self.untold.sweep(self._clock() - self._keep_s - UNTOLD_S)
        self.uploads.sweep()

    def _sweep_jobs(self) -> list[JobEntry]:
        """The same for jobs alone; those that are kept."""
        entries = self._entries()
        for entry in entries:
            found = _BESIDE.fullmatch(entry.name)
            if found and not (found["pid"] and Path("/proc", found["pid"]).exists()):
                shutil.rmtree(entry, ignore_errors=True)
        known, oldest_s = self._known(entries), self._clock() - self._keep_s
        for each in known:
            if each.taken.came_s < oldest_s:
                self.clear(each.job, "expired")
        return [each for each in known if each.taken.came_s >= oldest_s]

    def begin_again(self, wall: Callable[[], float] = time.time) -> None:
        """For the service that has just opened the folder: what an earlier one left.

        What was not taken in to the end is removed, and what a loss of power damaged is set aside. The ages of jobs
        that came before this boot are translated, once, by the clock on the wall: from then on no correction of it
        counts.
        """
        for entry in self._entries():
            if _BESIDE.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
        self.uploads.begin_again()
        self.untold.remove_damaged()
        for job in self.all():
            self._put_right(job)
        boot, now_s, now_at_s = boot_id(), self._clock(), wall()
        for job in (*self.all(), *self.untold.all()):
            taken = job.taken()
            if taken.boot != boot:
                came_s = now_s - max(0.0, now_at_s - taken.came_at_s)
                job.put("taken.json", asdict(replace(taken, came_s=came_s, boot=boot)))
        self._index.forget()

    def _put_right(self, job: Job) -> None:
        """Remove what was being written when all ended, or set the job aside where it cannot be understood."""
        job.remove_unfinished_files()
        try:
            for look in (Job.taken, Job.about, Job.end):
                look(job)
        except (FileNotFoundError, TypeError, ValueError):
            LOGGER.error("job %s is damaged: it is kept as %s%s, and not read", job.id, DAMAGED, job.id)
            job.folder.rename(self.folder / f"{DAMAGED}{job.id}")

    def _job(self, folder: Path) -> Job:
        return Job(folder, self.is_durable)

    def _sync(self, *paths: Path) -> None:
        if self.is_durable:
            for path in paths:
                sync(path)

    def _known(self, entries: Sequence[os.DirEntry[str]]) -> list[JobEntry]:
        return self._index.look_at(entry for entry in entries if _ID.fullmatch(entry.name))

    def _entries(self) -> list[os.DirEntry[str]]:
        with suppress(FileNotFoundError):
            return list(os.scandir(self.folder))
        return []

    def _locked(self) -> AbstractContextManager[None]:
        """No other process takes one in meanwhile. Raises as `locked`."""
        return locked(self.folder / _LOCK_FILE, "documents")


def boot_id() -> str:
    """Of this boot of the machine; empty where the system does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _same(kept: Sequence[JobEntry], repeat: str, content: str) -> Job | None:
    """The job that was sent with the same key before. Raises KeyReused for another one with that key."""
    found = next((entry for entry in kept if entry.taken.repeat == repeat), None)
    if found is None:
        return None
    if found.taken.content != content:
        raise KeyReused("Another job was sent with this Idempotency-Key.", "Send each job with a key of its own.")
    return found.job
