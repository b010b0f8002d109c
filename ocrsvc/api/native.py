"""The native API, POST /v1/ocr: parses a request, has its images read, and writes the response."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from flask import Blueprint, Response
from werkzeug.datastructures import MIMEAccept

from ocrsvc.api.document_responses import DocumentResponses, SentFile
from ocrsvc.api.model_list import add_model_list
from ocrsvc.api.page_pictures import add_page_pictures
from ocrsvc.api.sent_files import file_names, option_fields, sent_files
from ocrsvc.api.streaming import respond_by_page
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.formats.document import JSON, JSON_TYPE, ZIP_TYPE, options_for, page_without_words
from ocrsvc.formats.json_values import page_to_dict, stages_to_dict, timing_to_dict
from ocrsvc.http.error_responses import failure_of, problem_dict
from ocrsvc.http.options import STREAM_FORMS, RequestedOptions, read_options
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_pages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading, total_of
from ocrsvc.registry import output_formats
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings

Outcome = Reading | OcrsvcError


def make_api(reader: Reader, url_files: UrlFiles, settings: Settings) -> Blueprint:
    """POST /v1/ocr and GET /v1/ocr/models over a reader."""
    api = Blueprint("api", __name__)
    add_model_list(api, reader)
    add_page_pictures(api, reader)
    responses = DocumentResponses(reader, settings.pdf_dpi)

    @api.post("/v1/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        asked = read_options(option_fields(request.content, url_files))
        asked = replace(asked, formats=asked.formats or (_accepted(),))
        request.wants_stages = asked.stages
        images = sent_files(request.content, url_files)
        if (form := STREAM_FORMS.get(asked.formats[0])) is not None:
            pages = reader.read_files_by_page(images, asked.read, request.left_s, _context(asked), asked.pages)
            return respond_by_page(pages, asked, form, len(images), began_s)
        files = _read(reader, images, asked)
        _raise_if_all_failed(files)
        if asked.formats == (JSON,):
            return as_json(_answer(files, asked, total_s=time.monotonic() - began_s))
        sent = list(map(SentFile, images, file_names(request.content, len(images)), files))
        return responses.respond(sent, asked, lambda: _answer(files, asked, total_s=time.monotonic() - began_s))

    return api


def _read(reader: Reader, images: Sequence[bytes | OcrsvcError], asked: RequestedOptions) -> list[FileRead]:
    """What was read of each file, in order; the error of a lone image is raised."""
    context, options = _context(asked), options_for(asked.formats, asked.read)
    if len(images) == 1 and isinstance(images[0], bytes) and asked.pages == ALL:
        return [read_pages(reader, images[0], options, request.left_s, context, partial=asked.partial)]
    return reader.read_files(images, options, request.left_s, context, asked.pages, partial=asked.partial)


def _context(asked: RequestedOptions) -> RequestContext:
    priority = request.allowed_priority(asked.priority) if asked.priority else request.priority
    return replace(request.context, priority=priority)


def _raise_if_all_failed(files: Sequence[FileRead]) -> None:
    if not any(file.readings for file in files):
        raise files[0].errors[0][1]


def _accepted() -> str:
    """The form that the header Accept asks for by its name, else JSON; so browsers, which take any XML, get JSON.

    Raises BadOption for a client that takes nothing but a zip, which is no form by itself.
    """
    if request.environ.get("HTTP_ACCEPT", "*/*") == "*/*":
        return JSON
    names = {JSON_TYPE: JSON} | {form.media_type: name for name, form in output_formats().items()}
    names |= {form.media_type: name for name, form in STREAM_FORMS.items()}
    # Parameters, as in text/markdown; charset=utf-8, ask for nothing that an answer does not have.
    accepted = MIMEAccept([(kind.partition(";")[0].rstrip(), quality) for kind, quality in request.accept_mimetypes])
    wanted = accepted.best_match(names)
    if wanted is None and accepted.best_match([ZIP_TYPE]):
        raise BadOption(
            "The header Accept asks for a zip, and nothing says of which formats.",
            "Name them, as with format=pdf,md: several come as a zip.",
        )
    return names[wanted or JSON_TYPE]


def _answer(files: Sequence[FileRead], asked: RequestedOptions, *, total_s: float) -> dict[str, object]:
    """What JSON says."""
    readings = [reading for file in files for reading in file.readings]
    answer: dict[str, object] = {
        "id": request.id,
        "engine": readings[0].engine,
        "pages": [_page(outcome, number, asked) | source for number, source, outcome in _numbered_pages(files)],
        "pages_total": sum(file.total for file in files),
        "timing": timing_to_dict(total_of(readings, total_s)),
    }
    if asked.stages:
        answer["timing"] = {**timing_to_dict(total_of(readings, total_s)), **stages_to_dict(request.ledger.seconds())}
    return answer


def _numbered_pages(files: Sequence[FileRead]) -> list[tuple[int, dict[str, object], Outcome]]:
    """Every page with its number, and where it is from if that does not go without saying.

    Of a lone file, the number in it; of several, counted on from file to file.
    """
    if len(files) == 1:
        return [(number, {}, outcome) for number, outcome in files[0].pages]
    has_source = any(file.total > 1 for file in files)
    found = [(at, number, outcome) for at, file in enumerate(files, start=1) for number, outcome in file.pages]
    return [
        (count, {"source": {"file": at, "page": number}} if has_source else {}, outcome)
        for count, (at, number, outcome) in enumerate(found, start=1)
    ]


def _page(outcome: Outcome, number: int, asked: RequestedOptions) -> dict[str, object]:
    if isinstance(outcome, Reading):
        page = outcome.page if asked.read.wants_words else page_without_words(outcome.page)
        return page_to_dict(page, number, asked.read, lines=asked.lines)
    return {"page": number, "error": problem_dict(failure_of(outcome), request.id)}
