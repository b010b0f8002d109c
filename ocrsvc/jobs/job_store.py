"""The job store: documents on disk that are read while no client is connected.

A service has one folder (see job_folder.py) with a folder per job (see job.py), added and removed by renaming, and the
database. A job's folder is added and removed before its row, so a crash leaves a folder without a row, which gets one,
or a row without a folder, which is removed.

If the store is durable, accepted documents and finished jobs are synced before they are reported; after a power failure
the last pages may be read again, but none is stored twice.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Final

import orjson

from ocrsvc.errors import KeyReused, QueueFull, TooManyJobs
from ocrsvc.jobs.callbacks import add_callback, leave_message
from ocrsvc.jobs.job import RECORD, SECRET, Job, Record, size_of
from ocrsvc.jobs.job_database import DAMAGED, LOGGER, JobDatabase
from ocrsvc.results import ignore
from ocrsvc.serving.limiter import Limiter
from ocrsvc.telemetry import metrics
from ocrsvc.telemetry.metric import Metric

MAX_JOBS: Final = 1000
MAX_UPLOADS: Final = 200
# Interval between calls of `read_usage`.
USAGE_S: Final = 15.0
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BESIDE: Final = re.compile(r"\.([0-9]{1,9})-[0-9a-f]{32}")
_RETRY_S: Final = 30
_UPLOADS_PART: Final = 4
_ADDED_AT_ONCE: Final = 2
_ADDED_WAITING: Final = 32
_WRITTEN_BYTES: Final = 1 << 18

# To make room, the caller's own finished jobs are removed, oldest first; then, if the caller holds less than its fair
# share of the store, jobs of callers that hold more than their share (finished jobs first, then the newest). A caller
# without jobs may also displace the oldest finished job of any other caller.
_KEPT: Final = "WITH kept AS (SELECT * FROM job WHERE id NOT IN (SELECT value FROM json_each(:gone)))"
_FITS: Final = """
SELECT count(*) + (:document = '') <= :max_jobs AND total(bytes) + :size <= :max_bytes FROM kept"""
# Selects the next job to remove. `shares` is what a caller stores as a multiple of its fair share, `needed` the same
# once the new document is added. Order of removal (`turn`): 1 finished jobs of the caller that adds the document; 2
# finished and 3 other jobs of the caller that stores most; 4 finished jobs of any caller.
_NEXT: Final = """,
  caller AS (SELECT caller FROM kept UNION SELECT :caller),
  share AS (SELECT max(1, :max_jobs / count(*)) AS jobs, max(1, :max_bytes / count(*)) AS bytes FROM caller),
  held AS (
    SELECT caller, max(1.0 * count(*) / share.jobs, total(kept.bytes) / share.bytes) AS shares,
      max(1.0 * (count(*) + (:document = '')) / share.jobs, (total(kept.bytes) + :size) / share.bytes) AS needed
    FROM kept, share GROUP BY caller),
  own AS (SELECT needed FROM held WHERE caller = :caller),
  most AS (SELECT caller FROM held WHERE shares > 1 ORDER BY shares DESC, caller LIMIT 1),
  turns AS (
    SELECT id, came_s, CASE
      WHEN caller = :caller AND is_done AND id != :document THEN 1
      WHEN (SELECT needed > 1 FROM own) THEN NULL
      WHEN caller IN most THEN 3 - is_done
      WHEN is_done AND NOT EXISTS (SELECT * FROM own) AND NOT EXISTS (SELECT * FROM most) THEN 4
      END AS turn
    FROM kept)
SELECT id FROM turns WHERE turn ORDER BY turn, CASE turn WHEN 3 THEN -came_s ELSE came_s END LIMIT 1"""


@dataclass(eq=False)
class JobStore:
    """The jobs in one folder, for any thread of any process. Every method may raise QueueFull and OSError.

    `max_bytes` and `max_jobs` hold for all callers together, `max_waiting` and `max_pages` for each caller's unfinished
    jobs. `clock` is monotonic, `wall` Unix time. `note` is called with the outcome of jobs, for metrics; `added` is set
    when this process has added a job. `adding` limits the request threads that add a job or wait to add one.
    """

    folder: Path
    max_bytes: int
    keep_s: float
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    max_jobs: int = MAX_JOBS
    max_waiting: int = MAX_JOBS
    max_pages: int = 1 << 40
    is_durable: bool = False
    note: Callable[[str], object] = ignore
    added: threading.Event = field(default_factory=threading.Event)
    adding: Limiter = field(default_factory=lambda: Limiter(_ADDED_AT_ONCE, _ADDED_WAITING))

    @cached_property
    def database(self) -> JobDatabase:
        """The jobs' database."""
        return JobDatabase(self.folder, is_durable=self.is_durable)

    @cached_property
    def uploads(self) -> JobStore:
        """The store of uploaded files (see uploaded_files.py), in a subfolder."""
        max_bytes, folder = self.max_bytes // _UPLOADS_PART, self.folder / "uploads"
        return JobStore(folder, max_bytes, self.keep_s, self.clock, self.wall, MAX_UPLOADS)

    def add(self, data: bytes, record: Record, secret: str = "") -> Job:
        """Add a job, or return the one with the same Idempotency-Key and content. Raises TooManyJobs, KeyReused."""
        record, folder = replace(record, came_at_s=self.wall()), self.folder / str(uuid.uuid4())
        with self._beside() as beside:
            # Written before the transaction begins, because large files take long on slow disks.
            (beside / "file").write_bytes(data)
            (beside / RECORD).write_bytes(orjson.dumps(record))
            if record.callback:
                (beside / SECRET).write_text(secret, encoding="utf-8")
            self.database.sync(*beside.iterdir(), beside)
            try:
                with self.database.transaction() as connection:
                    # First find jobs that a crash left without a row, because one may have this Idempotency-Key.
                    self._match_rows(connection)
                    self._expire(connection)
                    if found := self._same(connection, record):
                        return found
                    self._check_limits(connection, record)
                    self._make_room(connection, record.caller, len(data))
                    beside.rename(folder)
                    self.database.sync(self.folder)
                    job = self._insert(connection, self._job(folder.name), record)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        self.added.set()
        self.note("accepted")
        return job

    def make_file(self, job: Job, name: str, write: Callable[[IO[bytes]], object]) -> Path:
        """Write a result file of a job; returns its path. Raises as `write`, FileNotFoundError for a deleted job."""
        with self._beside() as beside:
            made = beside / "file"
            with made.open("wb", buffering=_WRITTEN_BYTES) as output:
                write(output)
            self.database.sync(made)
            with self.database.transaction() as connection:
                self._make_room(connection, job.record().caller, made.stat().st_size, job.id)
                (job.folder / "out").mkdir(exist_ok=True)
                kept = made.rename(job.folder / "out" / name)
                job.note_progress()
        return kept

    def find(self, name: object) -> Job | None:
        """The job with this id, or None; safe for any value."""
        if isinstance(name, str) and _ID.fullmatch(name) and (self.folder / name).exists():
            return self._job(name)
        return None

    def all(self, condition: str = "TRUE", *values: object) -> list[Job]:
        """All jobs that match an SQL condition, oldest first."""
        sql = f"SELECT id FROM job WHERE {condition} ORDER BY came_s, id"  # noqa: S608  no input
        return [job for (name,) in self.database.rows(sql, *values) if (job := self._job(name)).is_there()]

    def clear(self, job: Job, why: str = "deleted") -> None:
        """Remove a job, even while it is read. Unless `why` is "deleted", a callback reports that the job expired."""
        with self.database.transaction() as connection:
            self._remove(connection, job.id, why)

    def sweep(self, boot: str | None = None) -> None:
        """Remove expired jobs and files of dead processes. When the service starts, pass the machine's boot id."""
        for path in self._paths(_BESIDE):
            if boot is not None or not Path("/proc", path.name[1:].partition("-")[0]).exists():
                shutil.rmtree(path, ignore_errors=True)
        self.database.check()
        with self.database.transaction() as connection:
            # A reboot resets the monotonic clock: convert arrival times once, so that wall clock changes do no harm.
            if boot is not None and not connection.execute("SELECT 1 FROM fact WHERE value = ?", [boot]).fetchone():
                connection.execute("UPDATE job SET came_s = ? - max(0, ? - came_at_s)", (self.clock(), self.wall()))
                connection.execute("INSERT OR REPLACE INTO fact VALUES ('boot', ?)", [boot])
            self._match_rows(connection, only_new=boot is None)
            self._expire(connection)
        if self.uploads.folder.exists():
            self.uploads.sweep(boot)

    def _same(self, connection: sqlite3.Connection, record: Record) -> Job | None:
        """The job with the same Idempotency-Key and content. Raises KeyReused for other content."""
        sql = "SELECT id, content FROM job WHERE repeat = ? AND repeat != ''"
        for name, content in connection.execute(sql, [record.repeat]):
            if content == record.content:
                return self._job(name)
            raise KeyReused("This Idempotency-Key belongs to a different job.", "Use a new key for each job.")
        return None

    def _check_limits(self, connection: sqlite3.Connection, record: Record) -> None:
        """Raises TooManyJobs if the caller has too many unfinished jobs or pages."""
        sql = "SELECT count(*), coalesce(sum(pages), 0) FROM job WHERE caller = ? AND NOT is_done"
        waiting, pages = connection.execute(sql, [record.caller]).fetchone()
        pages += len(record.numbers)
        if waiting >= self.max_waiting or pages > self.max_pages:
            raise TooManyJobs(
                f"This caller has {waiting} unfinished jobs, and {pages} pages with this one; the limits are "
                f"{self.max_waiting} (OCRSVC_JOBS_WAITING) and {self.max_pages} (OCRSVC_JOBS_WAITING_PAGES).",
                "Wait until some of them are done, or delete them.",
                _RETRY_S,
            )

    def _make_room(self, connection: sqlite3.Connection, caller: str, size: int, document: str = "") -> None:
        """Remove jobs so that a new document or result file fits. Raises QueueFull if it cannot fit."""
        need = {"caller": caller, "size": size, "document": document, "max_jobs": self.max_jobs}
        names = displaced(connection, {**need, "max_bytes": self.max_bytes})
        if names is None:
            raise QueueFull(
                f"The job store is full ({self.max_jobs} jobs, or {self.max_bytes} bytes, OCRSVC_JOBS_BYTES), and no "
                "job may be removed for this caller.",
                "Wait until your jobs are done, or delete them.",
                _RETRY_S,
            )
        for name in names:
            self._remove(connection, name, "displaced")

    def _expire(self, connection: sqlite3.Connection) -> None:
        sql = "SELECT id FROM job WHERE came_s < ?"
        for (name,) in connection.execute(sql, [self.clock() - self.keep_s]).fetchall():
            self._remove(connection, name, "expired")

    def _remove(self, connection: sqlite3.Connection, name: str, why: str) -> None:
        """Remove a job's folder, then its row; either may be missing, because another process has removed it."""
        job = self._job(name)
        if why != "deleted" and job.is_there():
            leave_message(connection, job, self.wall())
        gone = self._beside_path()
        with suppress(FileNotFoundError):
            job.folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            self.note(why)
        connection.execute("DELETE FROM job WHERE id = ?", [name])

    def _match_rows(self, connection: sqlite3.Connection, *, only_new: bool = True) -> None:
        """Insert rows for job folders without one (renew all unless `only_new`), and remove rows without a folder."""
        known, paths = {name for (name,) in connection.execute("SELECT id FROM job")}, self._paths(_ID)
        for path in paths:
            if path.name in known and only_new:
                continue
            try:
                job = self._job(path.name)
                job.progress()
                self._insert(connection, job, job.record())
            except (FileNotFoundError, TypeError, ValueError):
                LOGGER.error("%s is damaged: it is kept as %s%s, and not read", path.name, DAMAGED, path.name)
                path.rename(self.folder / f"{DAMAGED}{path.name}")
                connection.execute("DELETE FROM job WHERE id = ?", [path.name])
        gone = known - {path.name for path in paths}
        connection.executemany("DELETE FROM job WHERE id = ?", [(name,) for name in gone])

    def _insert(self, connection: sqlite3.Connection, job: Job, record: Record) -> Job:
        """Insert the row of a job and its callback; an existing row keeps its time of arrival."""
        values = {"id": job.id, "pages": len(record.numbers), "bytes": size_of(job.folder), "is_done": job.is_done()}
        came_s = self.clock() - max(0.0, self.wall() - record.came_at_s)
        connection.execute(
            """INSERT INTO job VALUES
            (:id, :caller, :key, :pages, :bytes, :is_done, :came_s, :came_at_s, :repeat, :content, 0)
            ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, is_done = excluded.is_done""",
            {**asdict(record), **values, "came_s": came_s},
        )
        add_callback(connection, job, record)
        return job

    def _beside_path(self) -> Path:
        """The path of a hidden folder, named after this process, for jobs that are being added or removed."""
        return self.folder / f".{os.getpid()}-{uuid.uuid4().hex}"

    @contextmanager
    def _beside(self) -> Iterator[Path]:
        folder = self._beside_path()
        folder.mkdir(0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _job(self, name: str) -> Job:
        return Job(self.folder / name, self.database)

    def _paths(self, pattern: re.Pattern[str]) -> list[Path]:
        return [path for path in self.folder.iterdir() if pattern.fullmatch(path.name)]


def displaced(connection: sqlite3.Connection, need: Mapping[str, object]) -> list[str] | None:
    """Ids of jobs to remove so that the caller may add `need["size"]` bytes; None if it may not. See `_make_room`."""
    gone: list[str] = []
    while True:
        values = {**need, "gone": orjson.dumps(gone).decode()}
        if connection.execute(_KEPT + _FITS, values).fetchone()[0]:
            return gone
        if (row := connection.execute(_KEPT + _NEXT, values).fetchone()) is None:
            return None
        gone.extend(row)


def read_usage(jobs: JobStore) -> Iterator[tuple[Metric, float]]:
    """The number of jobs, their bytes, the limit, and the free disk space. Raises OSError, QueueFull."""
    ((stored, waiting, size),) = jobs.database.rows("SELECT count(*), total(NOT is_done), total(bytes) FROM job")
    disk = os.statvfs(jobs.folder)
    yield metrics.JOBS_KEPT, stored
    yield metrics.JOBS_WAITING, waiting
    yield metrics.JOBS_BYTES, size
    yield metrics.JOBS_LIMIT, jobs.max_bytes
    yield metrics.JOBS_DISK_FREE, disk.f_bavail * disk.f_frsize
