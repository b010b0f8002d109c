"""Files that callers upload to be read later: documents in a store of their own, of which nothing is read there."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass

from ocrsvc.errors import BodyTooLarge
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One file that was uploaded: its caller's name for it, whose it is, and when it came, by the clock on the wall."""

    job: Job
    name: str
    caller: str
    key: str | None
    size_bytes: int
    came_at_s: float

    @property
    def id(self) -> str:
        """Random; without keys it is all that a caller needs to know."""
        return self.job.id

    def data(self) -> bytes:
        """What was sent. Raises FileNotFoundError once it was removed."""
        return self.job.data()


class UploadedFiles:
    """The uploaded files of a service, in `JobStore.uploads`; methods may raise QueueFull and OSError."""

    def __init__(self, store: JobStore) -> None:
        self._store, self._secret = store, b""

    def add(self, data: bytes, name: str, caller: str, key: str | None) -> UploadedFile:
        """Take in a file of a caller, for which others may have to go. Raises BodyTooLarge."""
        most = self._store.most_bytes
        if len(data) > most:
            raise BodyTooLarge(
                f"The file has {len(data)} bytes; uploaded files may have {most} together.",
                "Send it in the request that reads it, or ask the operator to raise OCRSVC_TASKS_BYTES.",
            )
        self._store.folder.mkdir(0o700, exist_ok=True)
        job = self._store.add(data, Record(caller, key, name=name))
        job.finish()
        return _file_of(job)

    def find(self, name: str) -> UploadedFile | None:
        """The file with this id; None for any other text, and for one that is too old."""
        job = self._store.find(name)
        with suppress(FileNotFoundError, TypeError, ValueError):
            file = None if job is None else _file_of(job)
            return file if file is not None and self.now_s() < self.expires_at_s(file) else None
        return None

    def all(self) -> list[UploadedFile]:
        """All that are kept, the newest first."""
        if not self._store.folder.exists():
            return []
        return [file for job in self._store.all()[::-1] if (file := self.find(job.id)) is not None]

    def remove(self, file: UploadedFile) -> None:
        """Remove a file; nothing happens where it is gone already."""
        self._store.clear(file.job)

    def expires_at_s(self, file: UploadedFile) -> float:
        """When it is removed, in seconds of the clock on the wall."""
        return file.came_at_s + self._store.keep_s

    def now_s(self) -> float:
        """Seconds of the clock on the wall."""
        return self._store.wall()

    def secret(self) -> bytes:
        """Random bytes that all processes of the service share."""
        if not self._secret:
            self._store.folder.mkdir(0o700, exist_ok=True)
            with self._store.database.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO fact VALUES ('signing', ?)", [secrets.token_bytes(32)])
                ((self._secret,),) = connection.execute("SELECT value FROM fact WHERE name = 'signing'")
        return self._secret


def _file_of(job: Job) -> UploadedFile:
    record, size = job.record(), (job.folder / "file").stat().st_size
    return UploadedFile(job, record.name, record.caller, record.key, size, record.came_at_s)
