"""The HTTP API of TurboOCR (aiptimizer/TurboOCR, port 8000), versions 2 to 4."""

from collections.abc import Sequence
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, CodedError, Route, make_blueprint
from ocrsvc.adapters.turboocr import parameters
from ocrsvc.adapters.turboocr.answers import error_members, status_of, to_results
from ocrsvc.adapters.turboocr.documents import DocumentCall, answer_markdown, answer_pdf, batch_answer, respond_by_page
from ocrsvc.adapters.turboocr.parameters import DocumentParameters, PageParameters, first_values, page_parameters
from ocrsvc.errors import NothingSent, NotReady
from ocrsvc.http.parsed_body import MAX_IMAGES, limited_parsing
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_images
from ocrsvc.results import Reading
from ocrsvc.settings.settings import Settings

RESPONSE_MODE: Final = "json_bytes"
"""gRPC responses carry the JSON of the HTTP response."""

ENDPOINTS: Final = (
    *("/health", "/health/live", "/health/ready", "/capabilities"),
    *("/ocr", "/ocr/raw", "/ocr/batch", "/ocr/pixels", "/ocr/pdf", "/ocr/markdown", "/ocr/stream"),
)
_PDF_FIELDS: Final = ("file", "pdf")


def make_turboocr(context: AdapterContext) -> Blueprint:
    """Make POST /ocr, /ocr/raw, /ocr/batch, …, GET /health, … and /capabilities."""
    views = _Views(context)
    posts = (views.raw, views.pixels, views.batch, views.pdf, views.markdown, views.stream)
    routes: list[Route] = [("POST", "/ocr", views.ocr), *(("POST", f"/ocr/{view.__name__}", view) for view in posts)]
    routes += [("GET", path, views.health) for path in ("/health", "/health/live")]
    routes += [("GET", "/health/ready", views.ready), ("GET", "/capabilities", views.capabilities)]
    return make_blueprint("turboocr", lambda failure: as_json(error_members(failure), status_of(failure)), routes)


class _Views:
    """The views; those for POST, except `ocr`, have the path /ocr/{name of the view}."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context

    def ocr(self) -> Response:
        options = page_parameters(first_values(request.content.fields))
        return self._read(request.content.first_image((), ("image",)), options)

    def raw(self) -> Response:
        return self._read(_raw_image(), page_parameters(first_values(request.content.fields)))

    def pixels(self) -> Response:
        query = first_values(request.args.items(multi=True))
        size = parameters.parse_size(query, request.headers)
        # Refuse wrong dimensions before taking the body.
        size_bytes = parameters.check_size(*size)
        body = request.take_body()
        with limited_parsing(request.share, size_bytes, request.deadline):
            data = parameters.to_image_file(body, size, request.share)
        return self._read(data, page_parameters(query))

    def batch(self) -> Response:
        content = request.content
        options = page_parameters(first_values(content.fields))
        if not content.members.get("images"):
            raise CodedError("EMPTY_BATCH", "Empty images array")
        outcomes = read_images(self._context.reader, content.images((), ("images",)), options.read_options())
        entries, errors = zip(*batch_answer(outcomes, options), strict=True)
        readings = [outcome for outcome in outcomes if isinstance(outcome, Reading)]
        return _timed(as_json({"batch_results": entries, "errors": errors}), readings)

    def pdf(self) -> Response:
        options = parameters.document_parameters(first_values(request.content.fields))
        answer = answer_pdf(self._call(_pdf(), options))
        if answer.pages:
            response = as_json({"pages": answer.pages})
        elif options.form == "pdf":
            response = Response(answer.file, content_type="application/pdf")
            response.headers["Content-Disposition"] = 'attachment; filename="searchable.pdf"'
        else:
            response = _markdown(answer.file)
        if answer.degraded:
            response.headers["X-OCR-Degraded"] = answer.degraded
        return _timed(response, answer.readings)

    def markdown(self) -> Response:
        page_parameters(first_values(request.content.fields))
        answer = answer_markdown(self._call(_raw_image(), DocumentParameters()))
        return _timed(_markdown(answer.file), answer.readings)

    def stream(self) -> Response:
        options = parameters.document_parameters(first_values(request.content.fields))
        return respond_by_page(self._call(_raw_image(), options))

    def capabilities(self) -> Response:
        return as_json(capabilities_of(self._context.settings))

    def health(self) -> Response:
        return Response("ok", content_type="text/plain; charset=utf-8")

    def ready(self) -> Response:
        if not self._context.reader.ready:
            raise NotReady("Pipeline not ready.")
        return self.health()

    def _read(self, data: bytes, options: PageParameters) -> Response:
        reading = self._context.read(data, options.read_options())
        return _timed(as_json(to_results(reading.page, options)), [reading])

    def _call(self, file: bytes, options: DocumentParameters) -> DocumentCall:
        return DocumentCall(self._context.reader, file, options, request.deadline, request.context)


def capabilities_of(settings: Settings) -> dict[str, object]:
    """The server's capabilities, also part of the gRPC health response."""
    features = {"layout": True, "tables": True, "formulas": False, "autorotate": True, "profile_endpoint": False}
    modes = list(parameters.MODES) if settings.pdf_dpi else []
    return {
        "build": "cpu",
        "features": {**features, "grpc_response_mode": RESPONSE_MODE},
        "pdf": {"modes": modes, "default_dpi": parameters.DEFAULT_DPI, "max_pages": settings.max_pages},
        "limits": {
            "max_body_mb": max(1, settings.max_body_bytes >> 20),
            "max_image_dim": parameters.MAX_SIDE_PX,
            "max_batch_images": MAX_IMAGES,
        },
        "endpoints": list(ENDPOINTS),
    }


def _timed(response: Response, readings: Sequence[Reading]) -> Response:
    engine_s = sum(reading.timing.engine_s for reading in readings)
    response.headers["X-Inference-Time-Ms"] = f"{engine_s * 1000:.3f}"
    return response


def _markdown(text: bytes) -> Response:
    return Response(text, content_type="text/markdown; charset=utf-8")


def _raw_image() -> bytes:
    data = request.content.raw if request.content.raw is not None else request.content.any_file()
    if not data:
        raise CodedError("EMPTY_BODY", "Empty body")
    return data


def _pdf() -> bytes:
    """The PDF: the body, a form's file, or base64 in JSON. Raises CallerError."""
    content = request.content
    if content.raw is not None:
        return content.raw
    if file := next((part.data for part in content.files if part.name in _PDF_FIELDS and part.data), None):
        return file
    if request.mimetype == "multipart/form-data":
        raise CodedError("MISSING_FILE", "The form has no file in the field 'file' or 'pdf'")
    if not request.content_length:
        raise CodedError("EMPTY_BODY", "Empty body")
    try:
        return content.first_image((), ("pdf",))
    except NothingSent as error:
        raise CodedError("MISSING_PDF", 'The JSON has no base64 member "pdf"') from error
