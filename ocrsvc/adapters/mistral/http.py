"""Mistral's OCR API: POST /v1/ocr with the member `document`, and /v1/files."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.mistral.document import document_data
from ocrsvc.adapters.mistral.files import add_files
from ocrsvc.adapters.mistral.options import Asked, parse_options
from ocrsvc.adapters.mistral.pages import page_members
from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_pages
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader

_UNPROCESSABLE: Final = 422


def make_mistral(context: AdapterContext) -> Blueprint:
    """POST /v1/ocr over a reader; /v1/files where documents are taken in."""
    blueprint = Blueprint("mistral", __name__)
    blueprint.register_error_handler(Exception, _failure)
    files = UploadedFiles(context.jobs.uploads) if context.jobs is not None else None
    if files is not None:
        add_files(blueprint, files)

    @blueprint.post("/v1/ocr")
    def ocr() -> Response:
        members = request.content.members
        asked = parse_options(members, has_models=context.reader.has_models)
        data = document_data(members.get("document"), files, context.url_files)
        return as_json(_answer(_read(context.reader, data, asked), asked, len(data), context.settings.pdf_dpi))

    return blueprint


def _read(reader: Reader, data: bytes, asked: Asked) -> FileRead:
    """What was read of the document; the error of a page, for which there is no place, is raised."""
    if asked.ranges == ALL:
        read = read_pages(reader, data, asked.read, request.left_s, request.context)
    else:
        read = reader.read_files([data], asked.read, request.left_s, request.context, asked.ranges)[0]
    for _, error in read.errors:
        raise error
    return read


def _answer(read: FileRead, asked: Asked, size_bytes: int, dpi: int) -> dict[str, object]:
    engine = read.readings[0].engine
    written = markdown_by_page(reading.page for reading in read.readings)
    pages = [page_members(page, markdown, asked, dpi) for page, markdown in written]
    return {
        "pages": pages,
        "model": asked.model or engine.model,
        "usage_info": {"pages_processed": len(pages), "doc_size_bytes": size_bytes},
        "document_annotation": None,
    }


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    return as_json(error_members(failure), failure.status)


def error_members(failure: OcrsvcError) -> dict[str, object]:
    """An error as Mistral has it; at 422 with the list that its clients look for there."""
    members: dict[str, object] = {
        "object": "error",
        "message": str(failure),
        "type": failure.code,
        "param": None,
        "code": str(failure.status),
        "raw_status_code": failure.status,
    }
    if failure.status == _UNPROCESSABLE:
        members["detail"] = [{"loc": ["body"], "msg": str(failure), "type": failure.code}]
    return members
