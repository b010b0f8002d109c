"""Mistral's files, /v1/files: documents that callers upload to be read later, with signed URLs.

They lie in a job store of their own (`JobStore.uploads`), which reads nothing. A signed URL is a right to read its file
until the URL expires; such URLs are made and checked here, and never fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from flask import Response
from pydantic import Field

from ocrsvc.adapters.context import RequestValues, Route
from ocrsvc.errors import BadOption, BodyTooLarge, CallerError, NothingSent
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.job_requests import owner_of_request
from ocrsvc.jobs.job import Job, Record
from ocrsvc.jobs.job_store import JobStore

PATH: Final = "/v1/files"
EXPIRES, SIGNATURE = "ocrsvc-expires", "ocrsvc-signature"
"""The query of a signed URL: the end of its validity, in seconds since 1970, and the signature."""

_CONTENT_PATH: Final = re.compile(r"/v1/files/([0-9a-f-]{36})/content")
_LONGEST_URL: Final = 4096
_LONGEST_NAME: Final = 255
_HOUR_S: Final = 3600
_LONGEST_H: Final = 24 * 365
_Whole = Annotated[int, Field(ge=0, lt=10**6)]


class SignatureRefused(CallerError, status=403, code="signature_refused", title="The signed URL is refused"):
    """A signed URL of this service is wrong or has expired."""


class NoSuchFile(CallerError, status=404, code="no_such_file", title="No such file"):
    """There is no file with this id, or it came with another key."""

    def __init__(self) -> None:
        super().__init__("There is no file of this id, or not any more.", "Upload it again.")


class _Form(RequestValues):
    """The form of an upload."""

    purpose: Literal["ocr"] = "ocr"


class _Query(RequestValues):
    """The query of these paths; `expiry` is in hours."""

    page: _Whole = 0
    page_size: _Whole = 100
    search: str = ""
    purpose: str = "ocr"
    expiry: _Whole = 24


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One uploaded file; its `record` has its name, its owner and the time when it came."""

    job: Job
    record: Record
    size_bytes: int

    @property
    def id(self) -> str:
        """Random; a caller without keys needs nothing else."""
        return self.job.id

    def data(self) -> bytes:
        """Its bytes, counted in the account of this thread's request. Raises NoSuchFile, QueueFull, BodyTooLarge."""
        request.share.take(self.size_bytes)
        try:
            return self.job.data()
        except FileNotFoundError as error:
            raise NoSuchFile from error


class UploadedFiles:
    """The uploaded files of a service, in `JobStore.uploads`; methods may raise QueueFull and OSError."""

    def __init__(self, store: JobStore) -> None:
        self._store, self._secret = store, b""

    def add(self, data: bytes, name: str, caller: str, key: str | None) -> UploadedFile:
        """Take in a file; older ones may be removed for it. Raises BodyTooLarge."""
        most = self._store.max_bytes
        if len(data) > most:
            raise BodyTooLarge(
                f"The file has {len(data)} bytes; uploaded files may have {most} together.",
                "Send it in the request that reads it, or ask the operator to raise OCRSVC_TASKS_BYTES.",
            )
        self._store.folder.mkdir(0o700, exist_ok=True)
        job = self._store.add(data, Record(caller, key, name=name))
        job.finish()
        return UploadedFile(job, job.record(), len(data))

    def find(self, file_id: str) -> UploadedFile | None:
        """The file with this id; None where there is none, or it is too old."""
        job = self._store.find(file_id)
        if job is None:
            return None
        with suppress(FileNotFoundError, TypeError, ValueError):
            file = UploadedFile(job, job.record(), (job.folder / "file").stat().st_size)
            return file if self._store.wall() < self.expires_at_s(file) else None
        return None

    def find_own(self, file_id: str) -> UploadedFile:
        """The file with this id; with keys, only one that came with the caller's. Raises NoSuchFile."""
        file = self.find(file_id)
        if file is None or owner_of_request().key not in {None, file.record.key}:
            raise NoSuchFile
        return file

    def all(self) -> list[UploadedFile]:
        """All files, the newest first."""
        if not self._store.folder.exists():
            return []
        return [file for job in self._store.all()[::-1] if (file := self.find(job.id)) is not None]

    def remove(self, file: UploadedFile) -> None:
        """Remove a file, unless it is gone already."""
        self._store.clear(file.job)

    def expires_at_s(self, file: UploadedFile) -> float:
        """When it is removed, in seconds since 1970."""
        return file.record.came_at_s + self._store.keep_s

    def secret(self) -> bytes:
        """Random bytes that all processes of the service share."""
        if not self._secret:
            self._store.folder.mkdir(0o700, exist_ok=True)
            with self._store.database.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO fact VALUES ('signing', ?)", [secrets.token_bytes(32)])
                ((self._secret,),) = connection.execute("SELECT value FROM fact WHERE name = 'signing'")
        return self._secret

    def signed_query(self, file: UploadedFile, hours: int) -> str:
        """The query of a signed URL, valid for some hours, and no longer than the file is kept. Raises BadOption."""
        if not 1 <= hours <= _LONGEST_H:
            raise BadOption(f"expiry is {hours}: accepted are whole hours from 1 to {_LONGEST_H}.")
        expires_s = int(min(self._store.wall() + hours * _HOUR_S, self.expires_at_s(file)))
        return f"{EXPIRES}={expires_s}&{SIGNATURE}={self._signature(file.id, str(expires_s))}"

    def signed_id(self, url: str) -> str | None:
        """The id in a URL signed by this service, on any host; None for others' URLs. Raises SignatureRefused."""
        if len(url) > _LONGEST_URL or SIGNATURE not in url:
            return None
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        found = _CONTENT_PATH.fullmatch(parts.path)
        if found is None:
            return None
        self.check_signature(found[1], dict(parse_qsl(parts.query)))
        return found[1]

    def check_signature(self, file_id: str, query: Mapping[str, str]) -> None:
        """Raises SignatureRefused unless the query of a URL has a valid signature for the file."""
        expires, sent = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
        if not hmac.compare_digest(self._signature(file_id, expires).encode(), sent.encode("utf-8", "replace")):
            raise SignatureRefused("The signature of the URL does not belong to it.", "Ask for a new signed URL.")
        if int(expires) <= self._store.wall():
            raise SignatureRefused("The signed URL has expired.", "Ask for a new one.")

    def _signature(self, file_id: str, expires: str) -> str:
        signed = f"{file_id}\n{expires}".encode("utf-8", "replace")
        return hmac.new(self.secret(), signed, hashlib.sha256).hexdigest()


class FileViews:
    """The views of /v1/files, each called with the names in its path."""

    def __init__(self, files: UploadedFiles) -> None:
        self._files = files

    def routes(self) -> Iterator[Route]:
        """The routes of /v1/files."""
        yield from (("POST", PATH, self._upload), ("GET", PATH, self._list))
        yield from (("GET", f"{PATH}/<file_id>", self._retrieve), ("DELETE", f"{PATH}/<file_id>", self._delete))
        yield "GET", f"{PATH}/<file_id>/url", self._sign
        yield "GET", f"{PATH}/<file_id>/content", self._download

    def _upload(self) -> Response:
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise NothingSent("No file was sent.", "Send it in the field 'file' of a form.")
        _Form.from_sent(content.members)
        name = (part.filename or "document")[-_LONGEST_NAME:].encode("utf-8", "replace").decode()
        return as_json(self._described(self._files.add(part.data, name, *owner_of_request()), part.data))

    def _list(self) -> Response:
        """The caller's own files, the newest first."""
        asked, owner = _Query.from_sent(request.args), owner_of_request()
        own = [
            file
            for file in self._files.all()
            if asked.purpose == "ocr"
            and (file.record.caller == owner.caller if owner.key is None else file.record.key == owner.key)
        ]
        if len(asked.search) <= _LONGEST_NAME:
            own = [file for file in own if asked.search in file.record.name]
        shown = own[asked.page * asked.page_size :][: asked.page_size]
        return as_json({"data": list(map(self._described, shown)), "object": "list", "total": len(own)})

    def _retrieve(self, file_id: str) -> Response:
        return as_json({**self._described(self._files.find_own(file_id)), "deleted": False})

    def _sign(self, file_id: str) -> Response:
        query = self._files.signed_query(self._files.find_own(file_id), _Query.from_sent(request.args).expiry)
        return as_json({"url": f"{request.host_url}{PATH[1:]}/{file_id}/content?{query}"})

    def _download(self, file_id: str) -> Response:
        """The file itself; a signature in the address needs no key."""
        if SIGNATURE in request.args:
            self._files.check_signature(file_id, request.args)
            file = self._files.find(file_id)
        else:
            file = self._files.find_own(file_id)
        if file is None:
            raise NoSuchFile
        headers = {"Content-Disposition": "attachment"}
        return Response(file.data(), headers=headers, content_type="application/octet-stream")

    def _delete(self, file_id: str) -> Response:
        self._files.remove(self._files.find_own(file_id))
        return as_json({"id": file_id, "object": "file", "deleted": True})

    def _described(self, file: UploadedFile, data: bytes = b"") -> Mapping[str, object]:
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.size_bytes,
            "created_at": int(file.record.came_at_s),
            "filename": file.record.name,
            "purpose": "ocr",
            "sample_type": "ocr_input",
            "source": "upload",
            "num_lines": None,
            "mimetype": "application/pdf" if is_pdf(data) else None,
            "signature": None,
            "expires_at": int(self._files.expires_at_s(file)),
        }
