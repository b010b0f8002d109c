"""The native API, POST /v1/ocr: parses a request, has its images read, and writes the response."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from flask import Blueprint, Response

from ocrsvc.api.model_list import add_model_list
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.formats.json_values import page_to_dict, stages_to_dict, timing_to_dict
from ocrsvc.formats.output_formats import OUTPUT_FORMATS, OutputFormat
from ocrsvc.http.error_responses import failure_of, problem_dict
from ocrsvc.http.options import RequestedOptions, read_options
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, as_json, read_pages
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading, total_of
from ocrsvc.serving.work_queue import Priority

IMAGE_FIELDS: Final = ("file", "files", "image", "images", "img")

Outcome = Reading | OcrsvcError


def make_api(reader: Reader) -> Blueprint:
    """POST /v1/ocr and GET /v1/ocr/models over a reader."""
    api = Blueprint("api", __name__)
    add_model_list(api, reader)

    @api.post("/v1/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        asked = read_options(_option_fields(request.content))
        request.wants_stages = asked.stages
        files = _read(reader, request.content.images(IMAGE_FIELDS, IMAGE_FIELDS), asked)
        _raise_if_all_failed(files)
        form = OUTPUT_FORMATS.get(asked.format or _accepted())
        if form is not None:
            return _as_text(files, form)
        return _as_json(files, asked, total_s=time.monotonic() - began_s)

    return api


def _option_fields(content: Content) -> list[tuple[str, object]]:
    """What is neither an image nor a file; raises BadOption for a file in a field that is not read."""
    for part in content.files:
        if part.name not in IMAGE_FIELDS:
            raise BadOption(
                f"A file came in the field {part.name[:40]!r}, which is not read.",
                f"Send files in the field {IMAGE_FIELDS[0]!r}.",
            )
    return [(name, value) for name, value in content.fields if name not in IMAGE_FIELDS]


def _read(reader: Reader, images: Sequence[bytes | OcrsvcError], asked: RequestedOptions) -> list[FileRead]:
    """What was read of each file, in order; the error of a lone image is raised."""
    context = replace(request.context, priority=_priority(asked))
    if len(images) == 1 and isinstance(images[0], bytes) and asked.pages == ALL:
        return [read_pages(reader, images[0], asked.read, request.left_s, context)]
    return reader.read_files(images, asked.read, request.left_s, context, asked.pages)


def _priority(asked: RequestedOptions) -> Priority:
    return request.allowed_priority(asked.priority) if asked.priority else request.priority


def _raise_if_all_failed(files: Sequence[FileRead]) -> None:
    if not any(file.readings for file in files):
        raise files[0].errors[0][1]


def _accepted() -> str:
    """The form that the header Accept asks for by its name, else JSON; so browsers, which take any XML, get JSON."""
    if request.environ.get("HTTP_ACCEPT", "*/*") == "*/*":
        return "json"
    names = {JSON_TYPE: "json"} | {form.media_type: name for name, form in OUTPUT_FORMATS.items()}
    return names[request.accept_mimetypes.best_match(names, JSON_TYPE)]


def _as_text(files: Sequence[FileRead], form: OutputFormat) -> Response:
    """No form but JSON has a place to say that a page failed, so one failure fails the whole."""
    for file in files:
        for _, error in file.errors:
            raise error
    numbered = [(number, cast(Reading, outcome)) for number, _, outcome in _numbered_pages(files)]
    pages = [replace(reading.page, number=number) for number, reading in numbered]
    response = Response(form.write(pages, numbered[0][1].engine), content_type=f"{form.media_type}; charset=utf-8")
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _as_json(files: Sequence[FileRead], asked: RequestedOptions, *, total_s: float) -> Response:
    readings = [reading for file in files for reading in file.readings]
    answer = {
        "id": request.id,
        "engine": readings[0].engine,
        "pages": [_page(outcome, number, asked) | source for number, source, outcome in _numbered_pages(files)],
        "pages_total": sum(file.total for file in files),
        "timing": timing_to_dict(total_of(readings, total_s)),
    }
    if asked.stages:
        answer["timing"] = {**timing_to_dict(total_of(readings, total_s)), **stages_to_dict(request.ledger.seconds())}
    return as_json(answer)


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
        return page_to_dict(outcome.page, number, asked.read, lines=asked.lines)
    return {"page": number, "error": problem_dict(failure_of(outcome), request.id)}
