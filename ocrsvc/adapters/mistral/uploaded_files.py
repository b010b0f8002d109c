"""Files that callers upload to be read later: documents in a store of their own, of which nothing is read there.

Who has a signed URL of one may read it until that expires. These are made and checked here, and never fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from ocrsvc.errors import BadOption, BodyTooLarge, CallerError
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore

EXPIRES, SIGNATURE = "ocrsvc-expires", "ocrsvc-signature"
"""What stands in the query of a signed URL: until when it holds, in seconds since 1970, and who says so."""

_PATH: Final = re.compile(r"/v1/files/([0-9a-f-]{36})/content")
_MOST_LETTERS: Final = 4096
_HOUR_S: Final = 3600
_LONGEST_H: Final = 24 * 365


class SignatureRefused(CallerError, status=403, code="signature_refused", title="The signed URL is refused"):
    """A signed URL of this service is not good, or not any more."""


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

    def signed_query(self, file: UploadedFile, hours: int) -> str:
        """The query of a signed URL, which holds so many hours, and no longer than the file. Raises BadOption."""
        if not 1 <= hours <= _LONGEST_H:
            raise BadOption(f"expiry is {hours}: accepted are whole hours from 1 to {_LONGEST_H}.")
        expires_s = int(min(self.now_s() + hours * _HOUR_S, self.expires_at_s(file)))
        return f"{EXPIRES}={expires_s}&{SIGNATURE}={self._signature(file.id, str(expires_s))}"

    def signed_id(self, url: str) -> str | None:
        """The id in a URL that this service has signed, at whatever host: behind proxies it has several names.

        None where it is a URL of somebody else. Raises SignatureRefused where it looks like ours, and is not good.
        """
        if len(url) > _MOST_LETTERS or SIGNATURE not in url:
            return None
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        found = _PATH.fullmatch(parts.path)
        if found is None:
            return None
        self.check_signature(found[1], dict(parse_qsl(parts.query)))
        return found[1]

    def check_signature(self, file_id: str, query: Mapping[str, str]) -> None:
        """Raises SignatureRefused unless the query of a URL has a signature for the file that holds now."""
        expires, sent = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
        if not hmac.compare_digest(self._signature(file_id, expires).encode(), sent.encode("utf-8", "replace")):
            raise SignatureRefused("The signature of the URL does not belong to it.", "Ask for a new signed URL.")
        if int(expires) <= self.now_s():
            raise SignatureRefused("The signed URL has expired.", "Ask for a new one.")

    def _signature(self, file_id: str, expires: str) -> str:
        signed = f"{file_id}\n{expires}".encode("utf-8", "replace")
        return hmac.new(self.secret(), signed, hashlib.sha256).hexdigest()


def _file_of(job: Job) -> UploadedFile:
    record, size = job.record(), (job.folder / "file").stat().st_size
    return UploadedFile(job, record.name, record.caller, record.key, size, record.came_at_s)
