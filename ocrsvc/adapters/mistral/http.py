"""Mistral's OCR API: POST /v1/ocr with the member `document`, and /v1/files."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.mistral.files import FileViews
from ocrsvc.adapters.mistral.ocr_request import OcrRequest, document_data
from ocrsvc.adapters.mistral.uploaded_files import UploadedFiles
from ocrsvc.adapters.request_values import parse_values
from ocrsvc.formats.blocks import Block, Kind, blocks_of
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.records import Page, Table

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


_DIGITS: Final = 4
_BLOCK_TYPES: Final[dict[Kind, str]] = {"heading": "title", "paragraph": "text", "item": "list", "table": "table"}
# How a table is written, and what the name of its file ends with.
_TABLE_FORMATS: Final = {"markdown": (to_markdown, "md"), "html": (to_html, "html")}


def page_members(page: Page, markdown: str, asked: OcrRequest, dpi: int) -> dict[str, object]:
    """One page, which is also given as Markdown; pages of PDFs are drawn at `dpi`."""
    members: dict[str, object] = {
        "index": page.number - 1,
        "markdown": markdown,
        "images": [],
        "dimensions": {"dpi": dpi, "height": page.height, "width": page.width},
        "hyperlinks": [],
        "header": None,
        "footer": None,
    }
    if asked.include_blocks:
        members["blocks"] = [_block(block, page) for block in blocks_of(page)]
    if asked.table_format:
        members["tables"] = [_table(number, table, asked.table_format) for number, table in enumerate(page.tables)]
    if asked.confidence_scores_granularity and page.lines:
        by_word = asked.confidence_scores_granularity == "word"
        members["confidence_scores"] = _confidences(page, markdown, by_word=by_word)
    return members


def _block(block: Block, page: Page) -> dict[str, object]:
    (left, top), _, (right, bottom), _ = block.frame(page)
    return {
        "type": _BLOCK_TYPES[block.kind],
        "content": block.text,
        "top_left_x": round(left),
        "top_left_y": round(top),
        "bottom_right_x": round(right),
        "bottom_right_y": round(bottom),
    }


def _table(number: int, table: Table, table_format: str) -> dict[str, object]:
    write, suffix = _TABLE_FORMATS[table_format]
    return {"id": f"tbl-{number}.{suffix}", "content": write(table), "format": table_format}


def _confidences(page: Page, markdown: str, *, by_word: bool) -> dict[str, object]:
    """The mean and the least of the lines' confidences, or of the words' with a list of them."""
    words = _words(page, markdown) if by_word else []
    scores = [word["confidence"] for word in words] or [line.confidence for line in page.lines]
    return {
        "average_page_confidence_score": round(sum(scores) / len(scores), _DIGITS),
        "minimum_page_confidence_score": round(min(scores), _DIGITS),
        **({"word_confidence_scores": words} if by_word else {}),
    }


def _words(page: Page, markdown: str) -> list[dict[str, Any]]:
    """The words in the order of the text, each looked for in the Markdown behind the one before it."""
    found: list[dict[str, Any]] = []
    at = 0
    for word in (word for line in page.lines for word in line.words or ()):
        # In Markdown some signs are escaped; such a word is put where the search stands.
        at = max(at, markdown.find(word.text, at))
        found.append({"text": word.text, "confidence": round(word.confidence, _DIGITS), "start_index": at})
        at += len(word.text) if markdown.startswith(word.text, at) else 0
    return found
