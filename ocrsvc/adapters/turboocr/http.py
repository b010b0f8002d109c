"""The API of TurboOCR (aiptimizer/TurboOCR, port 8000) over HTTP: that of its versions 2 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.turboocr.batch_answers import batch_answer, check_some_read
from ocrsvc.adapters.turboocr.capabilities import capabilities_of
from ocrsvc.adapters.turboocr.document_files import (
    MARKDOWN_OPTIONS,
    degraded_by,
    markdown_pages,
    to_markdown,
    to_pdf,
    whole_markdown,
)
from ocrsvc.adapters.turboocr.documents import DocumentCall, read_pdf, to_pages
from ocrsvc.adapters.turboocr.failures import Coded, answer_failure
from ocrsvc.adapters.turboocr.page_values import to_results
from ocrsvc.adapters.turboocr.parameters import (
    PLAIN_DOCUMENT,
    DocumentParameters,
    PageParameters,
    check_markdown_parameters,
    document_parameters,
    first_values,
    output_parameters,
    page_parameters,
)
from ocrsvc.adapters.turboocr.pixels import check_size, read_size, to_image_file
from ocrsvc.adapters.turboocr.streaming import respond_by_page
from ocrsvc.errors import NothingSent, NotReady
from ocrsvc.http.parsed_body import Content, limited_parsing
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_images
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.settings.settings import Settings

HEALTHY: Final = "ok"
_PDF_FIELDS: Final = ("file", "pdf")


def make_turboocr(context: AdapterContext) -> Blueprint:
    """POST /ocr, /ocr/raw, /ocr/batch, /ocr/pixels, /ocr/pdf, /ocr/markdown and /ocr/stream over a reader.

    And GET /health, /health/live, /health/ready and /capabilities.
    """
    reader = context.reader
    blueprint = Blueprint("turboocr", __name__)
    blueprint.register_error_handler(Exception, answer_failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        asked = page_parameters(first_values(request.content.fields))
        return _read(reader, request.content.first_image((), ("image",)), asked)

    @blueprint.post("/ocr/raw")
    def raw() -> Response:
        asked = page_parameters(first_values(request.content.fields))
        return _read(reader, _raw_image(request.content), asked)

    @blueprint.post("/ocr/pixels")
    def pixels() -> Response:
        sent = first_values(request.args.items(multi=True))
        return _read(reader, _pixels(sent), page_parameters(sent))

    @blueprint.post("/ocr/batch")
    def batch() -> Response:
        return _read_batch(reader, request.content)

    @blueprint.post("/ocr/pdf")
    def pdf() -> Response:
        return _read_pdf(reader, request.content)

    @blueprint.post("/ocr/markdown")
    def markdown() -> Response:
        return _read_markdown(reader, request.content)

    @blueprint.post("/ocr/stream")
    def stream() -> Response:
        return _stream(reader, request.content)

    _add_health(blueprint, reader, context.settings)
    return blueprint


def _add_health(blueprint: Blueprint, reader: Reader, settings: Settings) -> None:
    @blueprint.get("/health")
    @blueprint.get("/health/live")
    def health() -> Response:
        return Response(HEALTHY, content_type="text/plain; charset=utf-8")

    @blueprint.get("/health/ready")
    def ready() -> Response:
        if not reader.ready:
            raise NotReady("Pipeline not ready.")
        return health()

    @blueprint.get("/capabilities")
    def capabilities() -> Response:
        return as_json(capabilities_of(settings))


def _read(reader: Reader, data: bytes, asked: PageParameters) -> Response:
    reading = reader.read(data, asked.read_options(), request.left_s, request.context)
    return _timed(as_json(to_results(reading.page, asked)), [reading])


def _timed(response: Response, readings: Sequence[Reading]) -> Response:
    """With the engine's time."""
    engine_s = sum(reading.timing.engine_s for reading in readings)
    response.headers["X-Inference-Time-Ms"] = f"{engine_s * 1000:.3f}"
    return response


def _raw_image(content: Content) -> bytes:
    data = content.raw if content.raw is not None else content.any_file()
    if not data:
        raise Coded("EMPTY_BODY", "Empty body")
    return data


def _pixels(sent: dict[str, object]) -> bytes:
    """The body's bare pixels as an image file. Raises CallerError."""
    size = read_size(sent, request.headers)
    # A body that cannot be what it should is not kept.
    size_bytes = check_size(*size)
    body = request.take_body()
    with limited_parsing(request.share, size_bytes, request.deadline):
        return to_image_file(body, size, request.share)


def _read_batch(reader: Reader, content: Content) -> Response:
    """One entry an image; one that failed has no results, and says why. Raises the first error if all failed."""
    asked = page_parameters(first_values(content.fields))
    if not content.members.get("images"):
        raise Coded("EMPTY_BATCH", "Empty images array")
    outcomes = read_images(reader, content.images((), ("images",)), asked.read_options())
    check_some_read(outcomes)
    entries, errors = batch_answer(outcomes, asked)
    readings = [outcome for outcome in outcomes if isinstance(outcome, Reading)]
    return _timed(as_json({"batch_results": entries, "errors": errors}), readings)


def _call(reader: Reader, file: bytes, asked: DocumentParameters) -> DocumentCall:
    return DocumentCall(reader, file, asked, request.deadline, request.context)


def _read_pdf(reader: Reader, content: Content) -> Response:
    sent = first_values(content.fields)
    asked, output = document_parameters(sent), output_parameters(sent)
    call = _call(reader, _pdf_of(content), asked)
    read = read_pdf(call, output.form)
    if output.form == "json":
        return _timed(as_json({"pages": to_pages(call, read)}), read.readings)
    if output.form == "pdf":
        response = Response(to_pdf(call, read, output.min_confidence), content_type="application/pdf")
        response.headers["Content-Disposition"] = 'attachment; filename="searchable.pdf"'
    elif output.as_pages:
        response = as_json({"pages": markdown_pages(call, read)})
    else:
        response = _markdown(whole_markdown(call, read))
    if read.errors:
        response.headers["X-OCR-Degraded"] = degraded_by(read)
    return _timed(response, read.readings)


def _read_markdown(reader: Reader, content: Content) -> Response:
    check_markdown_parameters(first_values(content.fields))
    call = _call(reader, _raw_image(content), PLAIN_DOCUMENT)
    reading = reader.read(call.file, MARKDOWN_OPTIONS, call.left_s, call.context)
    return _timed(_markdown(to_markdown(call, [reading.page], reading.engine)), [reading])


def _markdown(text: str) -> Response:
    return Response(text, content_type="text/markdown; charset=utf-8")


def _stream(reader: Reader, content: Content) -> Response:
    asked = document_parameters(first_values(content.fields))
    return respond_by_page(_call(reader, _raw_image(content), asked))


def _pdf_of(content: Content) -> bytes:
    """The PDF, which is the body, a file of a form, or base64 in JSON. Raises CallerError."""
    if content.raw is not None:
        return content.raw
    if found := next((part.data for part in content.files if part.name in _PDF_FIELDS and part.data), None):
        return found
    if request.mimetype == "multipart/form-data":
        raise Coded("MISSING_FILE", "The form has no file in a field 'file' or 'pdf'")
    if not request.content_length:
        raise Coded("EMPTY_BODY", "Empty body")
    try:
        return content.first_image((), ("pdf",))
    except NothingSent as error:
        raise Coded("MISSING_PDF", 'The JSON has no member "pdf" with base64 in it') from error
