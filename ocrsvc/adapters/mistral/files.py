"""Mistral's files: /v1/files, where documents wait to be read, with signed URLs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final, Literal

from flask import Blueprint, Response
from pydantic import Field

from ocrsvc.adapters.context import add_job_routes
from ocrsvc.adapters.mistral.uploaded_files import SIGNATURE, UploadedFile, UploadedFiles
from ocrsvc.adapters.request_values import RequestValues, parse_values
from ocrsvc.errors import CallerError, NothingSent
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.job_requests import owner_of_request

PATH: Final = "/v1/files"

_NAME_LETTERS: Final = 255
_FILE_HEADERS: Final = {"Content-Disposition": "attachment"}
_Whole = Annotated[int, Field(ge=0, lt=10**6)]


class NoSuchFile(CallerError, status=404, code="no_such_file", title="No such file"):
    """There is no file of this id, or it came with another key."""

    def __init__(self) -> None:
        super().__init__("There is no file of this id, or not any more.", "Upload it again.")


class _Form(RequestValues):
    """Files are taken here to be read."""

    purpose: Literal["ocr"] = "ocr"


class _Query(RequestValues):
    """What may stand in the query of these paths; `expiry` is in hours."""

    page: _Whole = 0
    page_size: _Whole = 100
    search: str = ""
    purpose: str = "ocr"
    expiry: _Whole = 24


class FileViews:
    """The views, each called with the names in its path."""

    def __init__(self, files: UploadedFiles) -> None:
        self._files = files

    def add_to(self, blueprint: Blueprint) -> None:
        """Add /v1/files… to the adapter's blueprint."""
        add_job_routes(
            blueprint,
            ("POST", PATH, self._upload),
            ("GET", PATH, self._list),
            ("GET", f"{PATH}/<file_id>", self._retrieve),
            ("GET", f"{PATH}/<file_id>/url", self._sign),
            ("GET", f"{PATH}/<file_id>/content", self._download),
            ("DELETE", f"{PATH}/<file_id>", self._delete),
        )

    def _upload(self) -> Response:
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise NothingSent("No file was sent.", "Send it in the field 'file' of a form.")
        parse_values(_Form, content.members)
        name = (part.filename or "document")[-_NAME_LETTERS:].encode("utf-8", "replace").decode()
        return as_json(self._described(self._files.add(part.data, name, *owner_of_request()), part.data))

    def _list(self) -> Response:
        """The caller's own files, the newest first."""
        asked = parse_values(_Query, request.args)
        own = [file for file in self._files.all() if asked.purpose == "ocr" and _is_own(file)]
        if len(asked.search) <= _NAME_LETTERS:
            own = [file for file in own if asked.search in file.name]
        shown = own[asked.page * asked.page_size :][: asked.page_size]
        return as_json({"data": list(map(self._described, shown)), "object": "list", "total": len(own)})

    def _retrieve(self, file_id: str) -> Response:
        return as_json({**self._described(find_file(self._files, file_id)), "deleted": False})

    def _sign(self, file_id: str) -> Response:
        query = self._files.signed_query(find_file(self._files, file_id), parse_values(_Query, request.args).expiry)
        return as_json({"url": f"{request.host_url}{PATH[1:]}/{file_id}/content?{query}"})

    def _download(self, file_id: str) -> Response:
        """The file itself; with a signature in the address whoever asks."""
        if SIGNATURE in request.args:
            self._files.check_signature(file_id, request.args)
            file = self._files.find(file_id)
        else:
            file = find_file(self._files, file_id)
        return Response(stored_data(file), headers=_FILE_HEADERS, content_type="application/octet-stream")

    def _delete(self, file_id: str) -> Response:
        self._files.remove(find_file(self._files, file_id))
        return as_json({"id": file_id, "object": "file", "deleted": True})

    def _described(self, file: UploadedFile, data: bytes = b"") -> Mapping[str, object]:
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.size_bytes,
            "created_at": int(file.came_at_s),
            "filename": file.name,
            "purpose": "ocr",
            "sample_type": "ocr_input",
            "source": "upload",
            "num_lines": None,
            "mimetype": "application/pdf" if is_pdf(data) else None,
            "signature": None,
            "expires_at": int(self._files.expires_at_s(file)),
        }


def _is_own(file: UploadedFile) -> bool:
    owner = owner_of_request()
    return file.caller == owner.caller if owner.key is None else file.key == owner.key


def find_file(files: UploadedFiles, file_id: str) -> UploadedFile:
    """The file of this id; with keys, none that came with another key. Raises NoSuchFile."""
    file = files.find(file_id)
    if file is None or owner_of_request().key not in {None, file.key}:
        raise NoSuchFile
    return file


def stored_data(file: UploadedFile | None) -> bytes:
    """Its bytes, in the request's account of memory. Raises NoSuchFile, QueueFull, BodyTooLarge."""
    if file is not None:
        request.share.take(file.size_bytes)
        with suppress(FileNotFoundError):
            return file.job.data()
    raise NoSuchFile
