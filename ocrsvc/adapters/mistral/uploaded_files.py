"""Mistral's /v1/files: documents that clients upload to read later, and signed URLs.

Files are kept in a separate job store (`JobStore.uploads`), whose jobs never run. A signed URL gives access to its file
until it expires; the service recognizes its own signed URLs and does not fetch them.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
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
"""Query parameters of a signed URL: expiry time in seconds since 1970, and signature."""

_CONTENT_PATH: Final = re.compile(r"/v1/files/([0-9a-f-]{36})/content")
_MAX_URL_CHARACTERS: Final = 4096
_MAX_NAME_CHARACTERS: Final = 255
_HOUR_S: Final = 3600
_MAX_EXPIRY_H: Final = 24 * 365
_Whole = Annotated[int, Field(ge=0, lt=10**6)]


class SignatureRefused(CallerError, status=403, code="signature_refused", title="The signed URL is refused"):
    """The signature of a URL is wrong or has expired."""


class NoSuchFile(CallerError, status=404, code="no_such_file", title="No such file"):
    """No file has this id, or it belongs to another API key."""

    def __init__(self) -> None:
        super().__init__("No file has this id; it may have expired.", "Upload it again.")


class _Form(RequestValues):
    """The form fields of an upload."""

    purpose: Literal["ocr"] = "ocr"


class _Query(RequestValues):
    """The query parameters of all routes; `expiry` is in hours."""

    page: _Whole = 0
    page_size: _Whole = 100
    search: str = ""
    purpose: str = "ocr"
    expiry: _Whole = 24


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One uploaded file; `record` has its name, owner and upload time.

    Without API keys, any client that knows the file's random id, `job.id`, has access to it.
    """

    job: Job
    record: Record
    size_bytes: int

    def data(self) -> bytes:
        """The file's bytes, counted in the request's memory share. Raises NoSuchFile, QueueFull, BodyTooLarge."""
        request.share.take(self.size_bytes)
        try:
            return self.job.data()
        except FileNotFoundError as error:
            raise NoSuchFile from error


class UploadedFiles:
    """A service's uploaded files, in `JobStore.uploads`, and Flask views. Methods may raise QueueFull, OSError."""

    def __init__(self, store: JobStore) -> None:
        self._store, self._secret = store, b""

    def add(self, data: bytes, name: str, caller: str, key: str | None) -> UploadedFile:
        """Store a file of `caller` for API key `key`, evicting older files if space is needed. Raises BodyTooLarge."""
        max_bytes = self._store.max_bytes
        if len(data) > max_bytes:
            raise BodyTooLarge(
                f"The file has {len(data)} bytes; all uploaded files together may have {max_bytes}.",
                "Send it in the request that reads it, or ask the operator to raise OCRSVC_JOBS_BYTES.",
            )
        self._store.folder.mkdir(0o700, exist_ok=True)
        job = self._store.add(data, Record(caller, key, name=name))
        job.finish()
        return UploadedFile(job, job.record(), len(data))

    def find(self, file_id: str) -> UploadedFile | None:
        """The file with this id; None if there is none or it has expired."""
        job = self._store.find(file_id)
        if job is None:
            return None
        with suppress(FileNotFoundError, TypeError, ValueError):
            file = UploadedFile(job, job.record(), (job.folder / "file").stat().st_size)
            return file if self._store.wall() < self.expires_at_s(file) else None
        return None

    def find_own(self, file_id: str) -> UploadedFile:
        """The file with this id, if it belongs to the caller's API key. Raises NoSuchFile."""
        file = self.find(file_id)
        if file is None or owner_of_request().key not in {None, file.record.key}:
            raise NoSuchFile
        return file

    def all(self) -> list[UploadedFile]:
        """The files of all callers that have not expired, newest first."""
        if not self._store.folder.exists():
            return []
        return [file for job in self._store.all()[::-1] if (file := self.find(job.id)) is not None]

    def expires_at_s(self, file: UploadedFile) -> float:
        """When the file expires, in seconds since 1970."""
        return file.record.came_at_s + self._store.keep_s

    def secret(self) -> bytes:
        """The signing key, which is the same in all processes of the service."""
        if not self._secret:
            self._store.folder.mkdir(0o700, exist_ok=True)
            with self._store.database.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO fact VALUES ('signing', ?)", [secrets.token_bytes(32)])
                ((self._secret,),) = connection.execute("SELECT value FROM fact WHERE name = 'signing'")
        return self._secret

    def signed_query(self, file: UploadedFile, hours: int) -> str:
        """The query of a signed URL, valid for `hours` but at most until the file expires. Raises BadOption."""
        if not 1 <= hours <= _MAX_EXPIRY_H:
            raise BadOption(f"expiry is {hours}: accepted are whole hours from 1 to {_MAX_EXPIRY_H}.")
        expires_s = int(min(self._store.wall() + hours * _HOUR_S, self.expires_at_s(file)))
        return f"{EXPIRES}={expires_s}&{SIGNATURE}={self._signature(file.job.id, str(expires_s))}"

    def signed_id(self, url: str) -> str | None:
        """The file id in a URL that this service signed, on any host; None for other URLs. Raises SignatureRefused."""
        if len(url) > _MAX_URL_CHARACTERS or SIGNATURE not in url:
            return None
        with suppress(ValueError):
            parts = urlsplit(url)
            if match := _CONTENT_PATH.fullmatch(parts.path):
                self.check_signature(match[1], dict(parse_qsl(parts.query)))
                return match[1]
        return None

    def check_signature(self, file_id: str, query: Mapping[str, str]) -> None:
        """Raises SignatureRefused unless the query of a URL has a valid signature for the file."""
        expires, signature = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
        if not hmac.compare_digest(self._signature(file_id, expires).encode(), signature.encode("utf-8", "replace")):
            raise SignatureRefused("The signature does not match the URL.", "Request a new signed URL.")
        if int(expires) <= self._store.wall():
            raise SignatureRefused("The signed URL has expired.", "Request a new one.")

    def _signature(self, file_id: str, expires: str) -> str:
        signed = f"{file_id}\n{expires}".encode("utf-8", "replace")
        return hmac.new(self.secret(), signed, hashlib.sha256).hexdigest()

    def routes(self) -> list[Route]:
        """The routes of /v1/files."""
        path = f"{PATH}/<file_id>"
        return [
            *(("POST", PATH, self._upload), ("GET", PATH, self._list)),
            *(("GET", path, self._retrieve), ("DELETE", path, self._delete)),
            *(("GET", f"{path}/url", self._sign), ("GET", f"{path}/content", self._download)),
        ]

    def _upload(self) -> Response:
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise NothingSent("No file was sent.", "Send it in the form field 'file'.")
        _Form.from_values(content.members)
        name = (part.filename or "document")[-_MAX_NAME_CHARACTERS:].encode("utf-8", "replace").decode()
        return as_json(self._described(self.add(part.data, name, *owner_of_request()), part.data))

    def _list(self) -> Response:
        """The caller's files, newest first."""
        query, owner = _Query.from_values(request.args), owner_of_request()
        files = [
            file
            for file in self.all()
            if query.purpose == "ocr"
            and (file.record.caller == owner.caller if owner.key is None else file.record.key == owner.key)
        ]
        if len(query.search) <= _MAX_NAME_CHARACTERS:
            files = [file for file in files if query.search in file.record.name]
        listed = files[query.page * query.page_size :][: query.page_size]
        return as_json({"data": list(map(self._described, listed)), "object": "list", "total": len(files)})

    def _retrieve(self, file_id: str) -> Response:
        return as_json({**self._described(self.find_own(file_id)), "deleted": False})

    def _sign(self, file_id: str) -> Response:
        query = self.signed_query(self.find_own(file_id), _Query.from_values(request.args).expiry)
        return as_json({"url": f"{request.host_url}{PATH[1:]}/{file_id}/content?{query}"})

    def _download(self, file_id: str) -> Response:
        """Return the file; a request with a signed URL needs no API key."""
        if SIGNATURE in request.args:
            self.check_signature(file_id, request.args)
            file = self.find(file_id)
        else:
            file = self.find_own(file_id)
        if file is None:
            raise NoSuchFile
        headers = {"Content-Disposition": "attachment"}
        return Response(file.data(), headers=headers, content_type="application/octet-stream")

    def _delete(self, file_id: str) -> Response:
        self._store.clear(self.find_own(file_id).job)
        return as_json({"id": file_id, "object": "file", "deleted": True})

    def _described(self, file: UploadedFile, data: bytes = b"") -> Mapping[str, object]:
        return {
            "id": file.job.id,
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
            "expires_at": int(self.expires_at_s(file)),
        }
