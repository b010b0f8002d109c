"""The API of TurboOCR (aiptimizer/TurboOCR, port 8000) over HTTP."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from flask import Blueprint, Response
from werkzeug.datastructures import Headers

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.errors import (
    BadBase64,
    BadOption,
    BrokenImage,
    CallerError,
    EngineFailed,
    ImageTooLarge,
    NothingSent,
    NotReady,
    OcrsvcError,
    Refused,
    UnsupportedImage,
)
from ocrsvc.formats.box_values import to_boxes, to_scores, whole
from ocrsvc.http.body_parser import limited_parsing
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.http.responses import as_json, read_images
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import Page, ReadOptions

HEALTHY: Final = "ok"
MAX_SIDE_PX: Final = 16_384
_WHOLE: Final = re.compile(r"[0-9]{1,9}")

# The original's code for each error; the first that fits.
CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NothingSent, "MISSING_IMAGE"),
    (BadBase64, "BASE64_DECODE_FAILED"),
    (UnsupportedImage, "IMAGE_DECODE_FAILED"),
    (BrokenImage, "IMAGE_DECODE_FAILED"),
    (ImageTooLarge, "DIMENSIONS_TOO_LARGE"),
    (BadOption, "INVALID_PARAMETER"),
    (NotReady, "NOT_READY"),
    (Refused, "SERVER_BUSY"),
    (EngineFailed, "INFERENCE_ERROR"),
)


class _Coded(CallerError):
    """An error for which the original has a code, where ours have one for several."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.original_code = code


class _NoPdf(OcrsvcError):
    """PDF files are not read."""

    status = 501
    code = "no_pdf"
    title = "PDF files are not read"


def make_turboocr(context: AdapterContext) -> Blueprint:
    """POST /ocr, /ocr/raw, /ocr/batch, /ocr/pixels and GET /health over a reader."""
    reader = context.reader
    blueprint = Blueprint("turboocr", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post("/ocr")
    def ocr() -> Response:
        return _read(reader, _content().first_image((), ("image",)))

    @blueprint.post("/ocr/raw")
    def raw() -> Response:
        return _read(reader, _raw_image(_content()))

    @blueprint.post("/ocr/pixels")
    def pixels() -> Response:
        return _read(reader, _pixels())

    @blueprint.post("/ocr/batch")
    def batch() -> Response:
        return _read_batch(reader, _content())

    @blueprint.post("/ocr/pdf")
    def pdf() -> Response:
        raise _NoPdf("PDF files are not read.", "Send each page as an image.")

    _add_health(blueprint, reader)
    return blueprint


def _add_health(blueprint: Blueprint, reader: Reader) -> None:
    @blueprint.get("/health")
    @blueprint.get("/health/live")
    def health() -> Response:
        return Response(HEALTHY, content_type="text/plain; charset=utf-8")

    @blueprint.get("/health/ready")
    def ready() -> Response:
        if not reader.ready:
            raise NotReady("Pipeline not ready.")
        return health()


def _content() -> Content:
    _check_parameters()
    return request.content


def _read(reader: Reader, data: bytes) -> Response:
    reading = reader.read(data, ReadOptions(), request.left_s, request.context)
    response = as_json(to_results(reading.page))
    response.headers["X-Inference-Time-Ms"] = f"{reading.timing.engine_s * 1000:.3f}"
    return response


def _read_batch(reader: Reader, content: Content) -> Response:
    if not content.members.get("images"):
        raise _Coded("EMPTY_BATCH", "Empty images array")
    return _batch(read_images(reader, content.images((), ("images",)), ReadOptions()))


def _raw_image(content: Content) -> bytes:
    data = content.raw if content.raw is not None else content.any_file()
    if not data:
        raise _Coded("EMPTY_BODY", "Empty body")
    return data


def _pixels() -> bytes:
    """The body's bare pixels as an image file. Raises CallerError."""
    _check_parameters()
    header, size = to_pnm_header(request.headers)
    body = request.take_body()
    if len(body) != size:
        raise _Coded("BODY_SIZE_MISMATCH", f"Body size mismatch: expected {size} bytes, got {len(body)}")
    with limited_parsing(request.share, size, request.deadline), request.share.holding(size):
        request.share.take(size)
        return header + (body if header.startswith(b"P5") else swap_colours(body))


def to_results(page: Page) -> dict[str, object]:
    """Text, confidence and corners of each line."""
    columns = zip(page.lines, to_scores(page.lines), whole(to_boxes(page.lines)).tolist(), strict=True)
    return {"results": [{"text": line.text, "confidence": score, "bounding_box": box} for line, score, box in columns]}


def to_pnm_header(headers: Headers) -> tuple[bytes, int]:
    """What makes bare pixels an image file, and how many bytes they must be. Raises CallerError."""
    width, height, channels = (_whole(headers, name) for name in ("X-Width", "X-Height", "X-Channels"))
    if not width or not height or channels not in {1, 3}:
        raise _Coded("INVALID_DIMENSIONS", "Invalid dimensions or channels")
    if max(width, height) > MAX_SIDE_PX:
        raise _Coded("DIMENSIONS_TOO_LARGE", f"Dimensions {width}x{height} exceed maximum of {MAX_SIDE_PX}")
    return b"P%d\n%d %d\n255\n" % (5 if channels == 1 else 6, width, height), width * height * channels


def swap_colours(pixels: bytes) -> bytes:
    """Blue, green, red to red, green, blue, or back."""
    swapped = np.empty((len(pixels) // 3, 3), np.uint8)
    # numpy lets other threads run meanwhile.
    swapped[:] = np.frombuffer(pixels, np.uint8).reshape(-1, 3)[:, ::-1]
    return swapped.tobytes()


def _whole(headers: Headers, name: str) -> int:
    text = headers.get(name, "3" if name == "X-Channels" else "")
    if not text:
        raise _Coded("MISSING_HEADER", "Missing X-Width or X-Height headers")
    if not _WHOLE.fullmatch(text):
        raise _Coded("INVALID_HEADER", f"Invalid {name} header value")
    return int(text)


def _check_parameters() -> None:
    """There is no model for the layout of a page here. Raises BadOption."""
    if request.args.get("layout", "0") not in {"", "0"}:
        raise BadOption("Layout detection is not available.", "Leave the parameter layout out.")


def _batch(outcomes: list[Reading | OcrsvcError]) -> Response:
    """One entry an image; one that failed has no results, and says why. Raises the first error if all failed."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, OcrsvcError)]
    if len(errors) == len(outcomes):
        raise errors[0]
    return as_json({"batch_results": [_entry(outcome) for outcome in outcomes]})


def _entry(outcome: Reading | OcrsvcError) -> dict[str, object]:
    return (
        to_results(outcome.page)
        if isinstance(outcome, Reading)
        else {"results": [], **_error_members(outcome, failure_of(outcome))}
    )


def _error_members(error: Exception, failure: OcrsvcError) -> dict[str, object]:
    code = next((code for kind, code in CODES if isinstance(error, kind)), failure.code.upper())
    if isinstance(error, _Coded):
        code = error.original_code
    elif type(error) is CallerError:
        code = "INVALID_JSON"
    return {"error": {"code": code, "message": str(failure)}}


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    return as_json(_error_members(error, failure), failure.status)
