"""Mistral's OCR API: POST /v1/ocr and /v1/files."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from flask import Blueprint, Response
from pydantic import Field, PlainValidator

from ocrsvc.adapters.context import AdapterContext, RequestValues, make_blueprint
from ocrsvc.adapters.mistral.uploaded_files import NoSuchFile, UploadedFiles
from ocrsvc.errors import BadOption, NothingSent, OcrsvcError
from ocrsvc.formats.blocks import Kind, blocks_of
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.markup import to_html, to_markdown
from ocrsvc.http.base64text import decode_base64
from ocrsvc.http.field_values import as_text
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, is_url
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.results import Page, ReadOptions

_MAX_RANGES: Final = 1000
_RANGE: Final = re.compile("([0-9]{1,9}) *(?:- *([0-9]{1,9}))?")
_TYPES: Final = ("document_url", "image_url", "file")

_UNPROCESSABLE: Final = 422
_DIGITS: Final = 4
_BLOCK_TYPES: Final[dict[Kind, str]] = {"heading": "title", "paragraph": "text", "item": "list", "table": "table"}
# For each value of `table_format`, the function that writes a table and the suffix of its file.
_TABLE_FORMATS: Final = {"markdown": (to_markdown, "md"), "html": (to_html, "html")}


def _ranges(value: object) -> Ranges:
    """Convert 0-based page numbers, as a list or a text such as "0-2,5", to 1-based ranges."""
    items = value if isinstance(value, list) else as_text(value).split(",", _MAX_RANGES)
    matches = [_RANGE.fullmatch(as_text(item).strip()) for item in items]
    ranges = tuple((int(match[1]) + 1, int(match[2] or match[1]) + 1) for match in matches if match)
    if not 0 < len(matches) <= _MAX_RANGES or len(ranges) < len(matches) or any(last < at for at, last in ranges):
        raise ValueError('accepted are page numbers from 0, as a list, or a text such as "0-2,5"')
    return ranges


class OcrRequest(RequestValues):
    """The options of a request; annotation options must be absent, because this service writes no annotations."""

    model: Annotated[str, Field(max_length=200)] = ""
    pages: Annotated[Ranges, PlainValidator(_ranges)] = ALL
    table_format: Literal["markdown", "html"] | None = None
    include_blocks: bool = False
    confidence_scores_granularity: Literal["word", "page", "block"] | None = None
    bbox_annotation_format: None = None
    document_annotation_format: None = None
    document_annotation_prompt: None = None

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; `model` is ignored without a model repository."""
        model = self.model if has_models and self.model and not self.model.startswith("mistral") else None
        return ReadOptions(tables=True, words=self.confidence_scores_granularity == "word", model=model)


def document_data(document: object, files: UploadedFiles | None, context: AdapterContext) -> bytes:
    """The document's bytes, counted in the request's memory share. Raises CallerError, and as `fetch`."""
    members = document if isinstance(document, Mapping) else {}
    kind = members.get("type") or next((name for name in _TYPES if name in members), None)
    if kind not in _TYPES:
        raise BadOption(
            f"document is not an object of type {', '.join(_TYPES)}.",
            'Send {"type": "document_url", "document_url": "data:…"}.',
        )
    if kind == "file":
        file_id = members.get("file_id")
        if not isinstance(file_id, str) or files is None:
            raise BadOption("file_id names no uploaded file.", "Upload the file first, or send a data URL.")
        return files.find_own(file_id).data()
    value = members.get(kind)
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise NothingSent(f"The document has no {kind}.", "Send a data URL or the signed URL of an uploaded file.")
    if not is_url(url):
        return decode_base64(url, request.share)
    if files is not None and (signed_id := files.signed_id(url)) is not None:
        if (file := files.find(signed_id)) is None:
            raise NoSuchFile
        return file.data()
    return context.fetch(url, "Send a data URL, or upload the document and send its signed URL.").data


def make_mistral(context: AdapterContext) -> Blueprint:
    """Make POST /v1/ocr; with a job store also /v1/files."""
    files = UploadedFiles(context.jobs.uploads) if context.jobs is not None else None

    def ocr() -> Response:
        members = request.content.members
        options = OcrRequest.from_values(members)
        data = document_data(members.get("document"), files, context)
        read_options = options.read_options(has_models=context.reader.has_models)
        if options.pages == ALL:
            read = context.read_pages(data, read_options)
        else:
            read = context.reader.read_files([data], read_options, request.left_s, request.context, options.pages)[0]
        for _, error in read.errors:
            # The response has no field for a page's error, so one failed page fails the request.
            raise error
        pages = [
            page_members(page, markdown, options, context.settings.pdf_dpi)
            for page, markdown in markdown_by_page(reading.page for reading in read.readings)
        ]
        usage = {"pages_processed": len(pages), "doc_size_bytes": len(data)}
        model = options.model or read.readings[0].engine.model
        return as_json({"pages": pages, "model": model, "usage_info": usage, "document_annotation": None})

    return make_blueprint("mistral", _failure, [("POST", "/v1/ocr", ocr)], files.routes() if files else ())


def _failure(failure: OcrsvcError) -> Response:
    """The response to an error, in Mistral's format; a 422 has the list `detail` that Mistral's clients expect."""
    status, text, code = failure.status, str(failure), failure.code
    detail = {"detail": [{"loc": ["body"], "msg": text, "type": code}]} if status == _UNPROCESSABLE else {}
    about = {"param": None, "code": str(status), "raw_status_code": status}
    return as_json({"object": "error", "message": text, "type": code, **about, **detail}, status)


def page_members(page: Page, markdown: str, options: OcrRequest, dpi: int) -> dict[str, object]:
    """One page of the response, with its Markdown; `dpi` is the resolution at which a PDF page was rendered."""
    dimensions = {"dpi": dpi, "height": page.height, "width": page.width}
    members: dict[str, object] = {"index": page.number - 1, "markdown": markdown, "images": []}
    members |= {"dimensions": dimensions, "hyperlinks": [], "header": None, "footer": None}
    if options.include_blocks:
        blocks = members["blocks"] = list[dict[str, object]]()
        for block in blocks_of(page):
            (left, top), _, (right, bottom), _ = block.frame(page)
            place = {"top_left_x": round(left), "top_left_y": round(top)}
            place |= {"bottom_right_x": round(right), "bottom_right_y": round(bottom)}
            blocks.append({"type": _BLOCK_TYPES[block.kind], "content": block.text, **place})
    if options.table_format:
        write, suffix = _TABLE_FORMATS[options.table_format]
        members["tables"] = [
            {"id": f"tbl-{number}.{suffix}", "content": write(table), "format": options.table_format}
            for number, table in enumerate(page.tables)
        ]
    if options.confidence_scores_granularity and page.lines:
        by_word = options.confidence_scores_granularity == "word"
        words = _words(page, markdown) if by_word else []
        scores = [word["confidence"] for word in words] or [line.confidence for line in page.lines]
        members["confidence_scores"] = {
            "average_page_confidence_score": round(sum(scores) / len(scores), _DIGITS),
            "minimum_page_confidence_score": round(min(scores), _DIGITS),
            **({"word_confidence_scores": words} if by_word else {}),
        }
    return members


def _words(page: Page, markdown: str) -> list[dict[str, Any]]:
    """The words in reading order, with their positions in the Markdown; each search starts after the previous word."""
    words: list[dict[str, Any]] = []
    at = 0
    for word in (word for line in page.lines for word in line.words or ()):
        # A word whose characters Markdown escapes is not found; its position is then the end of the previous word.
        at = max(at, markdown.find(word.text, at))
        words.append({"text": word.text, "confidence": round(word.confidence, _DIGITS), "start_index": at})
        at += len(word.text) if markdown.startswith(word.text, at) else 0
    return words
