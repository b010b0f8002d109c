"""Mistral's OCR API: POST /v1/ocr with the member `document`, and /v1/files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from flask import Blueprint, Response
from pydantic import Field, PlainValidator

from ocrsvc.adapters.context import AdapterContext, RequestValues, add_job_routes, make_blueprint
from ocrsvc.adapters.mistral.uploaded_files import FileViews, NoSuchFile, UploadedFiles
from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.formats.blocks import Block, Kind, blocks_of
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import as_text
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_url
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.results import Page, ReadOptions

_MOST_RANGES: Final = 1000
_RANGE: Final = re.compile("([0-9]{1,9}) *(?:- *([0-9]{1,9}))?")
_TYPES: Final = ("document_url", "image_url", "file")

_UNPROCESSABLE: Final = 422
_DIGITS: Final = 4
_BLOCK_TYPES: Final[dict[Kind, str]] = {"heading": "title", "paragraph": "text", "item": "list", "table": "table"}
# How a table is written, and the suffix of its file.
_TABLE_FORMATS: Final = {"markdown": (to_markdown, "md"), "html": (to_html, "html")}


def _ranges(sent: object) -> Ranges:
    """Pages from 0, in a list or a text, as ranges from 1."""
    items = sent if isinstance(sent, list) else as_text(sent).split(",", _MOST_RANGES)
    matches = [_RANGE.fullmatch(as_text(item).strip()) for item in items]
    ranges = tuple((int(match[1]) + 1, int(match[2] or match[1]) + 1) for match in matches if match)
    if not 0 < len(matches) <= _MOST_RANGES or len(ranges) < len(matches) or any(last < at for at, last in ranges):
        raise ValueError('accepted are page numbers from 0, as a list, or a text such as "0-2,5"')
    return ranges


class OcrRequest(RequestValues):
    """The options of a request; the last three ask for a description of the page, which no model here gives."""

    model: Annotated[str, Field(max_length=200)] = ""
    pages: Annotated[Ranges, PlainValidator(_ranges)] = ALL
    table_format: Literal["markdown", "html"] | None = None
    include_blocks: bool = False
    confidence_scores_granularity: Literal["word", "page", "block"] | None = None
    bbox_annotation_format: None = None
    document_annotation_format: None = None
    document_annotation_prompt: None = None

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; without a model repository the one model reads, whatever the name."""
        wanted = self.model if has_models and self.model and not self.model.startswith("mistral") else None
        return ReadOptions(tables=True, words=self.confidence_scores_granularity == "word", model=wanted)


def document_data(sent: object, files: UploadedFiles | None, context: AdapterContext) -> bytes:
    """The bytes of the member `document`, counted in the share. Raises CallerError; for other URLs as `fetch`."""
    members = sent if isinstance(sent, Mapping) else {}
    kind = members.get("type") or next((name for name in _TYPES if name in members), None)
    if kind not in _TYPES:
        raise BadOption(
            f"document is no object of one of the types {', '.join(_TYPES)}.",
            'Send {"type": "document_url", "document_url": "data:…"}.',
        )
    if kind == "file":
        file_id = members.get("file_id")
        if not isinstance(file_id, str) or files is None:
            raise BadOption("file_id names no file that is kept here.", "Upload the file first, or send a data URL.")
        return files.find_own(file_id).data()
    value = members.get(kind)
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise NothingSent(f"The document has no {kind}.", "Send a data URL, or the signed URL of an uploaded file.")
    if not is_url(url):
        return decode_base64(url, request.share)
    if files is not None and (signed_id := files.signed_id(url)) is not None:
        if (file := files.find(signed_id)) is None:
            raise NoSuchFile
        return file.data()
    return context.fetch(url, "Send the document as a data URL, or upload it and send its signed URL.").data


def make_mistral(context: AdapterContext) -> Blueprint:
    """POST /v1/ocr over a reader; /v1/files where documents are taken in."""
    blueprint = make_blueprint("mistral", _failure)
    files = UploadedFiles(context.jobs.uploads) if context.jobs is not None else None
    if files is not None:
        add_job_routes(blueprint, *FileViews(files).routes())

    @blueprint.post("/v1/ocr")
    def ocr() -> Response:
        members = request.content.members
        asked = OcrRequest.from_sent(members)
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
    """The document's pages; raises the error of a page, because an answer has no place for it."""
    options = asked.read_options(has_models=context.reader.has_models)
    if asked.pages == ALL:
        read = context.read_pages(data, options)
    else:
        read = context.reader.read_files([data], options, request.left_s, request.context, asked.pages)[0]
    for _, error in read.errors:
        raise error
    return read


def _failure(error: Exception) -> Response:
    """An error as Mistral has it; at 422 with the list that its clients read."""
    failure = failure_of(error)
    status, text, code = failure.status, str(failure), failure.code
    detail = {"detail": [{"loc": ["body"], "msg": text, "type": code}]} if status == _UNPROCESSABLE else {}
    about = {"param": None, "code": str(status), "raw_status_code": status}
    return as_json({"object": "error", "message": text, "type": code, **about, **detail}, status)


def page_members(page: Page, markdown: str, asked: OcrRequest, dpi: int) -> dict[str, object]:
    """One page and its Markdown; pages of PDFs are drawn at `dpi`."""
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
        write, suffix = _TABLE_FORMATS[asked.table_format]
        members["tables"] = [
            {"id": f"tbl-{number}.{suffix}", "content": write(table), "format": asked.table_format}
            for number, table in enumerate(page.tables)
        ]
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


def _confidences(page: Page, markdown: str, *, by_word: bool) -> dict[str, object]:
    """The mean and the least confidence of the lines, or of the words, which are listed then."""
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
        # Markdown escapes some characters; a word with such a one is put where the search stands.
        at = max(at, markdown.find(word.text, at))
        found.append({"text": word.text, "confidence": round(word.confidence, _DIGITS), "start_index": at})
        at += len(word.text) if markdown.startswith(word.text, at) else 0
    return found
