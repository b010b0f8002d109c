"""The API of Umi-OCR (hiroi-sora/Umi-OCR 2.1, port 1224) over HTTP.

Its success response to the letter. What the caller got wrong is reported in an HTTP 200 with a code of its own, as
there; what the service refuses keeps its true status beside it.
"""

from __future__ import annotations

import time
from typing import Final

import orjson
from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, add_routes, make_blueprint
from ocrsvc.adapters.umi_ocr.answers import (
    CODES,
    ENGINE_FAILED,
    NOT_JSON,
    OPTIONS,
    REFUSED,
    UNREADABLE_IMAGES,
    checked_members,
    code_in,
    options_for,
    parse_image_options,
    to_answer,
)
from ocrsvc.adapters.umi_ocr.documents import PATH, add_documents, code_of
from ocrsvc.adapters.umi_ocr.qr_codes import UNREADABLE, draw_code, to_codes
from ocrsvc.errors import OcrsvcError
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import JSON_TYPE, is_reported_in_a_200, is_wrong_path
from ocrsvc.records import ReadOptions

QR_CODES: Final = "/api/qrcode"
# The original labels its JSON so, and pages in a browser rely on the rest.
HTML: Final = "text/html; charset=UTF-8"
SAFE: Final = {"Content-Security-Policy": "default-src 'none'; sandbox"}
_ENGINE_FAILURES: Final = frozenset({"engine_failed", "image_crashes_engine", "request_stops_worker"})


class _NotServed(OcrsvcError, status=501, code="not_served", title="Not served"):
    """A part of the original that is not here."""


def make_umi_ocr(context: AdapterContext) -> Blueprint:
    """POST /api/ocr, GET /api/ocr/get_options, /umiocr and / over a reader; /api/doc/… where documents may wait."""
    reader, blueprint = context.reader, make_blueprint("umi_ocr", _failure)

    @blueprint.post("/api/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        _, sent = checked_members("base64", missing="请求中缺少 base64 字段。", may_be_empty=True)
        options = parse_image_options(sent)
        data = request.content.first_image((), ("base64",))
        page = context.read(data, options.read_options(has_models=reader.has_models)).page
        return _as_html(to_answer(page, options, time.monotonic() - began_s))

    @blueprint.get("/api/ocr/get_options")
    def get_options() -> Response:
        return _as_html(options_for(reader.models()) if reader.has_models else OPTIONS)

    @blueprint.get("/")
    @blueprint.get("/umiocr")
    def banner() -> Response:
        return Response("Umi-OCR v2.1.5", content_type=HTML)

    @blueprint.post(QR_CODES)
    def qr_codes() -> Response:
        began_s = time.monotonic()
        members, options = checked_members("base64", "text", missing='指令中不存在 "base64" 或 "text"')
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
    # The original reports in a 200, too, that its engine broke; a refusal keeps its status for those who retry.
    in_a_200 = is_reported_in_a_200(error) or (isinstance(error, OcrsvcError) and failure.code == "engine_failed")
    of_documents = request.path.startswith(PATH)
    code = (code_of(error) if of_documents else None) or code_in(CODES, error, NOT_JSON)
    code = code or (ENGINE_FAILED if failure.code in _ENGINE_FAILURES else REFUSED)
    if request.path == QR_CODES and code in UNREADABLE_IMAGES:
        code = UNREADABLE
    answer = _as_html({"code": code, "data": str(failure)}, 200 if in_a_200 else failure.status)
    if of_documents:
        answer.content_type = JSON_TYPE
    return answer


def _as_html(answer: object, status: int = 200) -> Response:
    """JSON that a browser takes for a page, as the original labels it: with nothing in it that could become markup.

    What a client sent, or wrote on an image, comes back in it; the escapes are the same JSON once it is parsed.
    """
    body = orjson.dumps(answer)
    for sign in (b"<", b">", b"&"):
        body = body.replace(sign, b"\\u%04x" % sign[0])
    return Response(body, status, SAFE, content_type=HTML)
