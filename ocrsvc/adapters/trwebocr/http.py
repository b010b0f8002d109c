"""The API of TrWebOCR (alisen39/TrWebOCR, port 8089) over HTTP.

Its success response to the letter; its errors in its own shape but with true statuses, where the original answers 500
or a 200 that is none. chineseocr_lite has the same address with another response: a setting chooses.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext
from ocrsvc.adapters.trwebocr.tr_rects import shrink_page, to_raw_out_text
from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.formats.boxes import to_boxes
from ocrsvc.http.annotated_pages import drawn_page
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.parsed_body import Content
from ocrsvc.http.request import request
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page, ReadOptions

PATH: Final = "/api/tr-run/"
DEFAULT_COMPRESS_PX: Final = 1600
SHORTEST_SIDE_PX: Final = 64
FILE_FIELDS: Final = ("file",)
TEXT_FIELDS: Final = ("img", "file")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

SUCCESS: Final = "成功"
NOTHING_SENT: Final = "没有传入参数"
BAD_COMPRESS: Final = "compress参数类型有误，只能是int类型"
USE_POST: Final = "404 : Please use POST"


def make_trwebocr(context: AdapterContext) -> Blueprint:
    """POST /api/tr-run/, with and without the last slash, over a reader."""
    settings, reader = context.settings, context.reader
    blueprint = Blueprint("trwebocr", __name__)
    blueprint.register_error_handler(Exception, _failure)

    @blueprint.post(PATH, strict_slashes=False)
    def tr_run() -> Response:
        began_s = time.monotonic()
        if settings.trwebocr_boxes == "poly":
            return _tr_run_poly(reader, began_s)
        data = request.content.first_image(FILE_FIELDS, TEXT_FIELDS)
        max_side = _max_side(request.content)
        page = reader.read(data, ReadOptions(max_side=max_side), request.left_s, request.context).page
        answer = {"raw_out": to_raw_out_text(page, max_side).encode()}
        if request.content.text("is_draw") == "0":
            return _success(answer | {"speed_time": _spent_s(began_s)})
        shrunk = page if max_side is None else shrink_page(page, max_side)
        with _drawn(reader, data, shrunk) as picture:
            return _success(answer | {"speed_time": _spent_s(began_s), "img_detected": picture})

    @blueprint.get(PATH, strict_slashes=False)
    def use_post() -> Response:
        return Response(USE_POST, 404, content_type="text/html; charset=UTF-8")

    return blueprint


def _tr_run_poly(reader: Reader, began_s: float) -> Response:
    """The answer of chineseocr_lite: corners, numbered texts, and always a drawn page."""
    _check_short_side(request.content)
    data = request.content.first_image(FILE_FIELDS, TEXT_FIELDS)
    page = reader.read(data, ReadOptions(), request.left_s, request.context).page
    with _drawn(reader, data, page) as picture:
        raw_out = json.dumps(to_numbered(page)).encode()
        return _success({"img_detected": picture, "raw_out": raw_out, "speed_time": _spent_s(began_s)})


def to_numbered(page: Page) -> list[list[object]]:
    """Each line as chineseocr_lite gives it: corners in pixels of the image sent, numbered text, confidence."""
    corners = to_boxes(page.lines).round(2).tolist()
    numbered = enumerate(zip(corners, page.lines, strict=True), start=1)
    return [[box, f"{number}、 {line.text}", line.confidence] for number, (box, line) in numbered]


def _check_short_side(content: Content) -> None:
    """Raises BadOption for a `compress` that chineseocr_lite refuses; the engine sees the page as it sees fit."""
    sent = content.text("compress")
    if sent is not None and not (_WHOLE.fullmatch(sent) and int(sent) >= SHORTEST_SIDE_PX):
        raise BadOption(f"compress is {sent[:20]!r}: accepted is a whole number from {SHORTEST_SIDE_PX}.")


def _spent_s(began_s: float) -> bytes:
    return str(round(time.monotonic() - began_s, 2)).encode()


def _max_side(content: Content) -> int | None:
    """The longest side that the field `compress` allows, in pixels; None for one below 1. Raises BadOption."""
    sent = content.text("compress")
    if sent is None:
        return DEFAULT_COMPRESS_PX
    if not _WHOLE.fullmatch(sent):
        raise BadOption(BAD_COMPRESS)
    return int(sent) if int(sent) >= 1 else None


@contextmanager
def _drawn(reader: Reader, data: bytes, page: Page) -> Iterator[bytes]:
    """The image with its lines framed, while its answer is made. Decoded again, because engines may see it in gray."""
    check = request.make_check()
    with request.share.part() as held:
        with reader.decoded_image(data, limit_s=request.left_s, context=request.context) as image:
            picture = drawn_page(image, page, held, check, prefix=b"data:image/jpeg;base64,")
        yield picture


def _success(data: Mapping[str, bytes]) -> Response:
    """The members of `data` are JSON already, as the standard library writes it; a drawn page is copied once only."""
    pieces = [json.dumps({"code": 200, "msg": SUCCESS})[:-1].encode(), b', "data": {']
    for number, (name, value) in enumerate(data.items()):
        pieces += [b", " if number else b"", json.dumps(name).encode(), b": ", value]
    return Response(b"".join([*pieces, b"}}"]), 200, content_type="application/json")


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    message = NOTHING_SENT if isinstance(error, NothingSent) else str(failure)
    # As the standard library writes it, which is what clients of the original have seen: spaces, ASCII only.
    answer = json.dumps({"code": failure.status, "msg": message})
    return Response(answer, failure.status, content_type="application/json")
