"""The native API: POST /v1/ocr, the list of models, and page pictures for the web page."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flask import Blueprint, Response
from werkzeug.datastructures import MIMEAccept

from ocrsvc.api.document_responses import DocumentResponses, RequestFile
from ocrsvc.api.page_pictures import respond_with_picture
from ocrsvc.api.request_files import file_names, option_fields, request_files
from ocrsvc.api.streaming import respond_by_page
from ocrsvc.errors import BadOption, NothingSent, OcrsvcError
from ocrsvc.formats.document import options_for, page_without_words
from ocrsvc.formats.json_values import page_to_dict, stages_to_dict, timing_to_dict
from ocrsvc.formats.output_files import JSON, JSON_TYPE, ZIP_TYPE
from ocrsvc.http.error_responses import failure_of, problem_dict
from ocrsvc.http.options import STREAM_FORMS, RequestedOptions, read_options
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_pages
from ocrsvc.http.url_files import UrlFiles
from ocrsvc.imaging.page_ranges import ALL
from ocrsvc.models.model_control import VersionStatus
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import output_formats
from ocrsvc.results import Reading, total_of
from ocrsvc.serving.work_queue import RequestContext
from ocrsvc.settings.settings import Settings

MODELS_PATH: Final = "/v1/ocr/models"
"""Not /v1/models, which is a path of KServe and TensorFlow Serving."""

Outcome = Reading | OcrsvcError


def make_api(reader: Reader, url_files: UrlFiles, settings: Settings) -> Blueprint:
    """Make POST /v1/ocr and /v1/ocr/picture, and GET /v1/ocr/models."""
    api = Blueprint("api", __name__)
    responses = DocumentResponses(reader, settings.pdf_dpi)

    @api.post("/v1/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        options = read_options(option_fields(request.content, url_files))
        options = replace(options, formats=options.formats or (_accepted(),))
        request.wants_stages = options.stages
        images = request_files(request.content, url_files)
        if (form := STREAM_FORMS.get(options.formats[0])) is not None:
            pages = reader.read_files_by_page(images, options.read, request.left_s, _context(options), options.pages)
            return respond_by_page(pages, options, form, len(images), began_s)
        files = _read(reader, images, options)
        if not any(file.readings for file in files):
            raise files[0].errors[0][1]
        if options.formats == (JSON,):
            return as_json(_answer(files, options, total_s=time.monotonic() - began_s))
        sent = list(map(RequestFile, images, file_names(request.content, len(images)), files))
        return responses.respond(sent, options, lambda: _answer(files, options, total_s=time.monotonic() - began_s))

    @api.post("/v1/ocr/picture")
    def page_picture() -> Response:
        """One page of the body as a JPEG, for the web page: browsers cannot show PDF or TIFF."""
        if request.content.raw is None:
            raise NothingSent("The request has no file.", "Send the file as the body.")
        return respond_with_picture(reader, request.content.raw, request.content.text("page") or "")

    @api.get(MODELS_PATH)
    def models() -> Response:
        listed = reader.models()
        return as_json({"default": listed.default, "models": [_version(one) for one in listed.versions]})

    return api


def _version(status: VersionStatus) -> dict[str, object]:
    """A model version as JSON; the reason why it does not serve is omitted, because it may name paths."""
    about: dict[str, object] = {"engine": None, "title": "", "tier": None, "languages": (), "licence": ""}
    if status.version is not None:
        described = status.version.description
        about = {name: getattr(described, name) for name in about}
    return {"name": status.name, "version": status.number, "state": status.state, "labels": status.labels, **about}


def _read(reader: Reader, images: Sequence[bytes | OcrsvcError], options: RequestedOptions) -> list[FileRead]:
    """Read the files in order; failed pages are in the results. Raises the error of the file if only one was sent."""
    context, read = _context(options), options_for(options.formats, options.read)
    if len(images) == 1 and isinstance(images[0], bytes) and options.pages == ALL:
        return [read_pages(reader, images[0], read, request.left_s, context, partial=options.partial)]
    return reader.read_files(images, read, request.left_s, context, options.pages, partial=options.partial)


def _context(options: RequestedOptions) -> RequestContext:
    priority = request.allowed_priority(options.priority) if options.priority else request.priority
    return replace(request.context, priority=priority)


def _accepted() -> str:
    """The format in the header Accept, else JSON. Raises BadOption for zip, which needs the option `format`."""
    if request.environ.get("HTTP_ACCEPT", "*/*") == "*/*":
        return JSON
    names = {JSON_TYPE: JSON} | {form.media_type: name for name, form in output_formats().items()}
    names |= {form.media_type: name for name, form in STREAM_FORMS.items()}
    # Remove parameters such as charset=utf-8, which do not matter for the choice of a format.
    accepted = MIMEAccept([(kind.partition(";")[0].rstrip(), quality) for kind, quality in request.accept_mimetypes])
    wanted = accepted.best_match(names)
    if wanted is None and accepted.best_match([ZIP_TYPE]):
        raise BadOption(
            "The header Accept asks for a zip, but no formats are named.", "Name them, such as format=pdf,md."
        )
    return names[wanted or JSON_TYPE]


def _answer(files: Sequence[FileRead], options: RequestedOptions, *, total_s: float) -> dict[str, object]:
    """The response in JSON."""
    readings = [reading for file in files for reading in file.readings]
    stages = stages_to_dict(request.ledger.seconds()) if options.stages else {}
    return {
        "id": request.id,
        "engine": readings[0].engine,
        "pages": [_page(outcome, number, options) | source for number, source, outcome in _numbered_pages(files)],
        "pages_total": sum(file.total for file in files),
        "timing": {**timing_to_dict(total_of(readings, total_s)), **stages},
    }


def _numbered_pages(files: Sequence[FileRead]) -> list[tuple[int, dict[str, object], Outcome]]:
    """All pages, numbered across files; if a file has several pages, each page names its file and number."""
    if len(files) == 1:
        return [(number, {}, outcome) for number, outcome in files[0].pages]
    has_source = any(file.total > 1 for file in files)
    pages = [(at, number, outcome) for at, file in enumerate(files, start=1) for number, outcome in file.pages]
    return [
        (count, {"source": {"file": at, "page": number}} if has_source else {}, outcome)
        for count, (at, number, outcome) in enumerate(pages, start=1)
    ]


def _page(outcome: Outcome, number: int, options: RequestedOptions) -> dict[str, object]:
    if isinstance(outcome, Reading):
        page = outcome.page if options.read.wants_words else page_without_words(outcome.page)
        return page_to_dict(page, number, options.read, lines=options.lines)
    return {"page": number, "error": problem_dict(failure_of(outcome), request.id)}
