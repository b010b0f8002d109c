"""Mistral's files: /v1/files, where documents wait to be read, with signed URLs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.mistral.signed_urls import SIGNATURE, check_signature, query_of
from ocrsvc.adapters.mistral.uploaded_files import UploadedFile, UploadedFiles
from ocrsvc.errors import BadOption, CallerError, NothingSent
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.document import is_pdf
from ocrsvc.job_requests import job_view

PATH: Final = "/v1/files"
PURPOSE: Final = "ocr"

_NAME_LETTERS: Final = 255
_DEFAULT_HOURS: Final = 24
_PAGE_FILES: Final = 100
_FILE_HEADERS: Final = {"Content-Disposition": "attachment"}


class NoSuchFile(CallerError):
    """There is no file of this id, or it came with another key."""

    status = 404
    code = "no_such_file"
    title = "No such file"


def add_files(blueprint: Blueprint, files: UploadedFiles) -> None:
    """Add /v1/files… to the adapter's blueprint."""
    views = _FileViews(files)

    def add(method: str, path: str, view: Callable[..., Response]) -> None:
        blueprint.add_url_rule(f"{PATH}{path}", f"files_{view.__name__}", job_view(view), methods=[method])

    add("POST", "", views.upload)
    add("GET", "", views.list_files)
    add("GET", "/<file_id>", views.retrieve)
    add("GET", "/<file_id>/url", views.sign)
    add("GET", "/<file_id>/content", views.download)
    add("DELETE", "/<file_id>", views.delete)


class _FileViews:
    """The views, each called with the names in its path."""

    def __init__(self, files: UploadedFiles) -> None:
        self._files = files

    def upload(self) -> Response:
        """Take in a file."""
        content = request.content
        part = next((part for part in content.files if part.name == "file" and part.data), None)
        if part is None:
            raise NothingSent("No file was sent.", "Send it in the field 'file' of a form.")
        if (purpose := content.text("purpose") or PURPOSE) != PURPOSE:
            raise BadOption(f"purpose is {purpose[:40]!r}: files are taken here to be read, with purpose 'ocr'.")
        name = (part.filename or "document")[-_NAME_LETTERS:].encode("utf-8", "replace").decode()
        key = request.key.identity if request.key is not None else None
        return as_json(self._described(self._files.add(part.data, name, request.caller, key), part.data))

    def list_files(self) -> Response:
        """The caller's own files, the newest first."""
        page, size = _whole("page", 0), _whole("page_size", _PAGE_FILES)
        own = [file for file in self._files.all() if self._is_own(file)]
        if (search := request.args.get("search", "")) and len(search) <= _NAME_LETTERS:
            own = [file for file in own if search in file.name]
        if request.args.get("purpose", PURPOSE) != PURPOSE:
            own = []
        shown = [self._described(file) for file in own[page * size : (page + 1) * size]]
        return as_json({"data": shown, "object": "list", "total": len(own)})

    def retrieve(self, file_id: str) -> Response:
        """What is known of a file."""
        return as_json({**self._described(self._find(file_id)), "deleted": False})

    def sign(self, file_id: str) -> Response:
        """A signed URL of a file."""
        query = query_of(self._files, self._find(file_id), _whole("expiry", _DEFAULT_HOURS))
        return as_json({"url": f"{request.host_url}{PATH[1:]}/{file_id}/content?{query}"})

    def download(self, file_id: str) -> Response:
        """The file itself; with a signature in the address whoever asks."""
        if SIGNATURE in request.args:
            check_signature(self._files, file_id, request.args)
            file = self._files.find(file_id)
        else:
            file = self._find(file_id)
        data = stored_data(file)
        return Response(data, headers=_FILE_HEADERS, content_type="application/octet-stream")

    def delete(self, file_id: str) -> Response:
        """Remove a file."""
        self._files.remove(self._find(file_id))
        return as_json({"id": file_id, "object": "file", "deleted": True})

    def _find(self, file_id: str) -> UploadedFile:
        """Raises NoSuchFile."""
        return find_file(self._files, file_id)

    def _is_own(self, file: UploadedFile) -> bool:
        return file.key == request.key.identity if request.key is not None else file.caller == request.caller

    def _described(self, file: UploadedFile, data: bytes = b"") -> Mapping[str, object]:
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.size_bytes,
            "created_at": int(file.came_at_s),
            "filename": file.name,
            "purpose": PURPOSE,
            "sample_type": "ocr_input",
            "source": "upload",
            "num_lines": None,
            "mimetype": "application/pdf" if is_pdf(data) else None,
            "signature": None,
            "expires_at": int(self._files.expires_at_s(file)),
        }


def find_file(files: UploadedFiles, file_id: str) -> UploadedFile:
    """The file of this id; with keys, none that came with another key. Raises NoSuchFile."""
    file = files.find(file_id)
    if file is None or (request.key is not None and file.key != request.key.identity):
        raise _no_such_file()
    return file


def stored_data(file: UploadedFile | None) -> bytes:
    """Its bytes, in the request's account of memory. Raises NoSuchFile, QueueFull, BodyTooLarge."""
    if file is not None:
        request.share.take(file.size_bytes)
        with suppress(FileNotFoundError):
            return file.data()
    raise _no_such_file()


def _no_such_file() -> NoSuchFile:
    return NoSuchFile("There is no file of this id, or not any more.", "Upload it again.")


def _whole(name: str, default: int) -> int:
    """A whole number in the query. Raises BadOption."""
    text = request.args.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise BadOption(f"{name} is {text[:40]!r}: accepted is a whole number.")
    return int(text)
