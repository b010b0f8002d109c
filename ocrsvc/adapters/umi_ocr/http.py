"""The API of Umi-OCR (hiroi-sora/Umi-OCR 2.1, port 1224), which answers client errors with HTTP 200."""

import math
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Final

import cv2
import numpy as np
import orjson
from flask import Blueprint, Response
from pydantic import Field

from ocrsvc.adapters.context import AdapterContext, CodedError, RequestValues, Route, make_blueprint, original_code_of
from ocrsvc.adapters.model_protocols.tensors import NotOffered
from ocrsvc.adapters.umi_ocr import answers, documents
from ocrsvc.adapters.umi_ocr.answers import ImageOptions
from ocrsvc.adapters.umi_ocr.documents import PATH, document_routes
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.field_values import shown
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, is_reported_in_a_200, is_wrong_path
from ocrsvc.imaging.barcodes import draw_barcode
from ocrsvc.results import Page, ReadOptions

QR_CODES: Final = "/api/qrcode"
# Umi-OCR labels its JSON as HTML; the Content-Security-Policy in SAFE keeps browsers from running scripts in it.
HTML: Final = "text/html; charset=UTF-8"
SAFE: Final = {"Content-Security-Policy": "default-src 'none'; sandbox"}
_ENGINE_FAILURES: Final = frozenset({"engine_failed", "image_crashes_engine", "request_stops_worker"})

NOT_DRAWN, UNREADABLE = 200, 202
_LEVELS: Final = {1: "L", 0: "M", 3: "Q", 2: "H"}
_Side = Annotated[float, Field(ge=-1, le=4096)]


def make_umi_ocr(context: AdapterContext) -> Blueprint:
    """Make /api/ocr, /api/qrcode, /api/ocr/get_options, /umiocr and /; with a job store also /api/doc/…."""
    reader = context.reader

    def ocr() -> Response:
        began_s = time.monotonic()
        _, values = answers.checked_members("base64", missing="请求中缺少 base64 字段。", may_be_empty=True)
        options = ImageOptions.from_values(values)
        data = request.content.first_image((), ("base64",))
        page = context.read(data, options.read_options(has_models=reader.has_models)).page
        return _as_html(answers.to_answer(page, options, time.monotonic() - began_s))

    def get_options() -> Response:
        return _as_html(answers.options_for(reader.models()) if reader.has_models else answers.OPTIONS)

    def banner() -> Response:
        return Response("Umi-OCR v2.1.5", content_type=HTML)

    def qr_codes() -> Response:
        began_s = time.monotonic()
        members, options = answers.checked_members("base64", "text", missing='指令中不存在 "base64" 或 "text"')
        if "base64" not in members:
            return _as_html(draw_code(members["text"], options))
        # Barcodes are found in every orientation, so the page is not rotated.
        read_options = ReadOptions(rotate="0", barcodes="only")
        page = context.read(request.content.first_image((), ("base64",)), read_options).page
        return _as_html(to_codes(page, time.monotonic() - began_s))

    routes: list[Route] = [("GET", path, banner) for path in ("/", "/umiocr")]
    routes += [("POST", "/api/ocr", ocr), ("GET", "/api/ocr/get_options", get_options), ("POST", QR_CODES, qr_codes)]

    def no_documents(_rest: str) -> Response:
        raise NotOffered("The operator has switched documents off.")

    if context.jobs is not None:
        return make_blueprint("umi_ocr", _failure, routes, document_routes(context))
    routes += [(method, f"{PATH}<path:_rest>", no_documents) for method in ("GET", "POST")]
    return make_blueprint("umi_ocr", _failure, routes)


def _failure(failure: OcrsvcError) -> Response:
    if is_wrong_path(failure):
        return Response(f"<h1>Error: {failure.status} {failure.title}</h1>\n", failure.status, content_type=HTML)
    # Umi-OCR also reports an engine failure with status 200. Overload errors keep their status, so that clients retry.
    in_a_200 = is_reported_in_a_200(failure) or failure.code == "engine_failed"
    is_document = request.path.startswith(PATH)
    code = original_code_of(documents.CODES, failure, documents.NOT_JSON) if is_document else None
    code = code or original_code_of(answers.CODES, failure, answers.NOT_JSON)
    code = code or (answers.ENGINE_FAILED if failure.code in _ENGINE_FAILURES else answers.REFUSED)
    if request.path == QR_CODES and code in answers.UNREADABLE_IMAGES:
        code = UNREADABLE
    answer = _as_html({"code": code, "data": str(failure)}, 200 if in_a_200 else failure.status)
    if is_document:
        answer.content_type = JSON_TYPE
    return answer


def _as_html(answer: object, status: int = 200) -> Response:
    """A JSON response with Umi-OCR's content type, HTML; markup in clients' text is escaped."""
    body = orjson.dumps(answer)
    for character in (b"<", b">", b"&"):
        body = body.replace(character, b"\\u%04x" % character[0])
    return Response(body, status, SAFE, content_type=HTML)


class _Drawing(RequestValues):
    """The options for drawing a code; sides in pixels."""

    format: str = "QRCode"
    w: _Side = 0
    h: _Side = 0
    quiet_zone: _Side = -1
    ec_level: _Side = -1


def to_codes(page: Page, spent_s: float) -> dict[str, object]:
    """The barcodes of a page in Umi-OCR's format; for a page without any, Umi-OCR's error code."""
    if not page.barcodes:
        return {"code": answers.NO_TEXT, "data": "QR code not found in the image."}
    data = []
    for code in page.barcodes:
        (x0, y0), (x1, y1) = code.box[:2]
        # The code's orientation in degrees clockwise, -180 to 180.
        angle, box = round(math.degrees(math.atan2(y1 - y0, x1 - x0))), [[round(x), round(y)] for x, y in code.box]
        data.append({"orientation": angle, "box": box, "score": 1, "format": code.type, "text": code.text})
    return {"code": answers.OK, "data": data, "time": round(spent_s, 4), "timestamp": time.time()}


def draw_code(text: Any, options: Mapping[str, Any]) -> dict[str, object]:
    """Draw a barcode with this text as a base64 JPEG. Raises CodedError if that is not possible."""
    if not isinstance(text, str):
        raise CodedError(NOT_DRAWN, f"[Error] text is {shown(text)[:40]}: it must be a string.")
    try:
        drawing = _Drawing.from_values(options)
        level, has_zone = _LEVELS.get(round(drawing.ec_level)), round(drawing.quiet_zone) != 0
        pixels = draw_barcode(text, drawing.format, level=level, quiet_zone=has_zone)
    except BadOption as error:
        raise CodedError(NOT_DRAWN, f"[Error] {error.detail}") from error
    # The side of a module (a square of the code) is the largest whole number of pixels that fits.
    width, height = max(round(drawing.w), 1), max(round(drawing.h), 1)
    scale = max(1, min(width // pixels.shape[1], height // pixels.shape[0]))
    _, jpeg = cv2.imencode(".jpg", np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1)))
    return {"code": answers.OK, "data": b64encode(jpeg.tobytes()).decode()}
