"""Mistral's OCR API: POST /v1/ocr with the member `document`, and /v1/files."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.mistral.files import FileViews
from ocrsvc.adapters.mistral.ocr_request import OcrRequest, document_data
from ocrsvc.adapters.mistral.pages import page_members
from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.adapters.request_values import parse_values
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead

_UNPROCESSABLE: Final = 422


def make_mistral(context: AdapterContext) -> Blueprint:
    """POST /v1/ocr over a reader; /v1/files where documents are taken in."""
    blueprint = make_blueprint("mistral", _failure)
    files = UploadedFiles(context.jobs.uploads) if context.jobs is not None else None
    if files is not None:
        FileViews(files).add_to(blueprint)

    @blueprint.post("/v1/ocr")
    def ocr() -> Response:
        members = request.content.members
        asked = parse_values(OcrRequest, members)
        data = document_data(members.get("document"), files, context)
        read = _read(context, data, asked)
        pages = [
            page_members(page, markdown, asked, context.settings.pdf_dpi)
            for page, markdown in markdown_by_page(reading.page for reading in read.readings)
        ]
        usage = {"pages_processed": len(pages), "doc_size_bytes": len(data)}
        model = asked.model or read.readings[0].engine.model
        return as_json({"pages": pages, "model": model, "usage_info": usage, "document_annotation": None})

    return blueprint


def _read(context: AdapterContext, data: bytes, asked: OcrRequest) -> FileRead:
    """What was read of the document; the error of a page, for which there is no place, is raised."""
    options = asked.read_options(has_models=context.reader.has_models)
    if asked.pages == ALL:
        read = context.read_pages(data, options)
    else:
        read = context.reader.read_files([data], options, request.left_s, request.context, asked.pages)[0]
    for _, error in read.errors:
        raise error
    return read


def _failure(error: Exception) -> Response:
    """An error as Mistral has it; at 422 with the list that its clients look for there."""
    failure = failure_of(error)
    status, text, code = failure.status, str(failure), failure.code
    detail = {"detail": [{"loc": ["body"], "msg": text, "type": code}]} if status == _UNPROCESSABLE else {}
    about = {"param": None, "code": str(status), "raw_status_code": status}
    return as_json({"object": "error", "message": text, "type": code, **about, **detail}, status)
