"""The API of Umi-OCR (hiroi-sora/Umi-OCR 2.1, port 1224); the caller's errors are reported in an HTTP 200, as there."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Final

import cv2
import numpy as np
import orjson
from flask import Blueprint, Response
from pydantic import Field

from ocrsvc.adapters.context import AdapterContext, Coded, RequestValues, add_routes, code_in, make_blueprint
from ocrsvc.adapters.umi_ocr import answers
from ocrsvc.adapters.umi_ocr.answers import ImageOptions
from ocrsvc.adapters.umi_ocr.documents import PATH, add_documents, code_of
from ocrsvc.errors import BadOption, OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.field_values import shown
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, is_reported_in_a_200, is_wrong_path
from ocrsvc.imaging.barcodes import draw_barcode
from ocrsvc.results import Box, Page, ReadOptions

QR_CODES: Final = "/api/qrcode"
# The original labels its JSON so, and pages in a browser rely on the rest.
HTML: Final = "text/html; charset=UTF-8"
SAFE: Final = {"Content-Security-Policy": "default-src 'none'; sandbox"}
_ENGINE_FAILURES: Final = frozenset({"engine_failed", "image_crashes_engine", "request_stops_worker"})

NOT_DRAWN, UNREADABLE = 200, 202
_LEVELS: Final = {1: "L", 0: "M", 3: "Q", 2: "H"}
_Side = Annotated[float, Field(ge=-1, le=4096)]


class _NotServed(OcrsvcError, status=501, code="not_served", title="Not served"):
    """This part of the original is not served."""


def make_umi_ocr(context: AdapterContext) -> Blueprint:
    """POST /api/ocr and /api/qrcode, GET /api/ocr/get_options, /umiocr and /; /api/doc/… where there are jobs."""
    reader, blueprint = context.reader, make_blueprint("umi_ocr", _failure)

    @blueprint.post("/api/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        _, sent = answers.checked_members("base64", missing="请求中缺少 base64 字段。", may_be_empty=True)
        options = ImageOptions.from_sent(sent)
        data = request.content.first_image((), ("base64",))
        page = context.read(data, options.read_options(has_models=reader.has_models)).page
        return _as_html(answers.to_answer(page, options, time.monotonic() - began_s))

    @blueprint.get("/api/ocr/get_options")
    def get_options() -> Response:
        return _as_html(answers.options_for(reader.models()) if reader.has_models else answers.OPTIONS)

    @blueprint.get("/")
    @blueprint.get("/umiocr")
    def banner() -> Response:
        return Response("Umi-OCR v2.1.5", content_type=HTML)

    @blueprint.post(QR_CODES)
    def qr_codes() -> Response:
        began_s = time.monotonic()
        members, options = answers.checked_members("base64", "text", missing='指令中不存在 "base64" 或 "text"')
        if "base64" not in members:
            return _as_html(draw_code(members["text"], options))
        # The codes are found in every direction.
        asked = ReadOptions(rotate="0", barcodes="only")
        page = context.read(request.content.first_image((), ("base64",)), asked).page
        return _as_html(to_codes(page, time.monotonic() - began_s))

    if context.jobs is not None:
        add_documents(blueprint, context)
    else:
        add_routes(blueprint, [(method, f"{PATH}<path:_rest>", _no_documents) for method in ("GET", "POST")])
    return blueprint


def _no_documents(_rest: str) -> Response:
    raise _NotServed("Documents are not taken in here: the operator has switched them off.")


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    if is_wrong_path(failure):
        return Response(f"<h1>Error: {failure.status} {failure.title}</h1>\n", failure.status, content_type=HTML)
    # The original reports a broken engine in a 200, too; a refusal keeps its status for clients that retry.
    in_a_200 = is_reported_in_a_200(error) or (isinstance(error, OcrsvcError) and failure.code == "engine_failed")
    of_documents = request.path.startswith(PATH)
    code = (code_of(error) if of_documents else None) or code_in(answers.CODES, error, answers.NOT_JSON)
    code = code or (answers.ENGINE_FAILED if failure.code in _ENGINE_FAILURES else answers.REFUSED)
    if request.path == QR_CODES and code in answers.UNREADABLE_IMAGES:
        code = UNREADABLE
    answer = _as_html({"code": code, "data": str(failure)}, 200 if in_a_200 else failure.status)
    if of_documents:
        answer.content_type = JSON_TYPE
    return answer


def _as_html(answer: object, status: int = 200) -> Response:
    """JSON labelled as HTML, as in the original; a client wrote some of it, so it has escapes for all markup."""
    body = orjson.dumps(answer)
    for character in (b"<", b">", b"&"):
        body = body.replace(character, b"\\u%04x" % character[0])
    return Response(body, status, SAFE, content_type=HTML)


class _Drawing(RequestValues):
    """The options of a drawn code; sides in pixels."""

    format: str = "QRCode"
    w: _Side = 0
    h: _Side = 0
    quiet_zone: _Side = -1
    ec_level: _Side = -1


def to_codes(page: Page, spent_s: float) -> dict[str, object]:
    """The codes of a page as Umi-OCR has them, or its code for none."""
    if not page.barcodes:
        return {"code": answers.NO_TEXT, "data": "QR code not found in the image."}
    data = [
        {
            "orientation": _orientation(code.box),
            "box": [[round(x), round(y)] for x, y in code.box],
            "score": 1,
            "format": code.type,
            "text": code.text,
        }
        for code in page.barcodes
    ]
    return {"code": answers.OK, "data": data, "time": round(spent_s, 4), "timestamp": time.time()}


def draw_code(text: Any, options: Mapping[str, Any]) -> dict[str, object]:
    """A code with this text, as a JPEG in base64. Raises Coded where it cannot be drawn."""
    if not isinstance(text, str):
        raise Coded(NOT_DRAWN, f"[Error] text is {shown(text)[:40]}: it is to be a text.")
    try:
        asked = _Drawing.from_sent(options)
        level, has_zone = _LEVELS.get(round(asked.ec_level)), round(asked.quiet_zone) != 0
        pixels = draw_barcode(text, asked.format, level=level, quiet_zone=has_zone)
    except BadOption as error:
        raise Coded(NOT_DRAWN, f"[Error] {error.detail}") from error
    # Each module is as many whole pixels as fit.
    width, height = max(round(asked.w), 1), max(round(asked.h), 1)
    scale = max(1, min(width // pixels.shape[1], height // pixels.shape[0]))
    _, jpeg = cv2.imencode(".jpg", np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1)))
    return {"code": answers.OK, "data": b64encode(jpeg.tobytes()).decode()}


def _orientation(box: Box) -> int:
    """Degrees from -180 to 180 by which the code is turned clockwise."""
    (x0, y0), (x1, y1) = box[:2]
    return round(float(np.degrees(np.arctan2(y1 - y0, x1 - x0))))
