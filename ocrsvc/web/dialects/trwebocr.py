"""How does TrWebOCR (alisen39/TrWebOCR, port 8089) speak?

Its success answer to the letter; its errors in its own shape but with true statuses, where the original answers 500 or
a 200 that is none.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Final

import pybase64
from flask import Blueprint, Response, request

from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.formats.drawing import draw_page
from ocrsvc.formats.rects import shrink_page, to_raw_out
from ocrsvc.reader import Reader
from ocrsvc.records import Image, Page, ReadOptions
from ocrsvc.settings import Settings
from ocrsvc.web.failures import failure_of
from ocrsvc.web.incoming import Incoming, deadline_of, first_image, last_field, left_s, receive, wish_of

PATH: Final = "/api/tr-run/"
DEFAULT_COMPRESS_PX: Final = 1600
FILE_FIELDS: Final = ("file",)
TEXT_FIELDS: Final = ("img", "file")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

SUCCESS: Final = "成功"
NOTHING_SENT: Final = "没有传入参数"
BAD_COMPRESS: Final = "compress参数类型有误，只能是int类型"
USE_POST: Final = "404 : Please use POST"


def make_trwebocr(settings: Settings, reader: Reader) -> Blueprint:
    """POST /api/tr-run/, with and without the last slash, over a reader."""
    dialect = Blueprint("trwebocr", __name__)
    dialect.register_error_handler(Exception, _failure)

    @dialect.post(PATH, strict_slashes=False)
    def tr_run() -> Response:
        began_s = time.monotonic()
        deadline = deadline_of(request.environ, settings.deadline_s)
        incoming = receive(request.environ, settings.max_body_bytes, deadline)
        data = first_image(incoming, FILE_FIELDS, TEXT_FIELDS)
        max_side = _max_side(incoming)
        reading = reader.read(data, ReadOptions(max_side=max_side), left_s(deadline), wish_of(request.environ))
        page = reading.page if max_side is None else shrink_page(reading.page, max_side)
        picture = None if last_field(incoming, "is_draw") == "0" else _drawn(reader.look(data), page)
        return _success(page, picture, time.monotonic() - began_s)

    @dialect.get(PATH, strict_slashes=False)
    def use_post() -> Response:
        return Response(USE_POST, 404, content_type="text/html; charset=UTF-8")

    return dialect


def _max_side(incoming: Incoming) -> int | None:
    """The longest side that the field `compress` allows, in pixels; None for one below 1. Raises BadOption."""
    sent = last_field(incoming, "compress")
    if sent is None:
        return DEFAULT_COMPRESS_PX
    if not _WHOLE.fullmatch(sent):
        raise BadOption(BAD_COMPRESS)
    return int(sent) if int(sent) >= 1 else None


def _drawn(image: Image, page: Page) -> str:
    """The image with its lines framed, as a data URI. Looked at a second time, because engines may see it in gray."""
    picture = draw_page(image.pixels, page)
    return "data:image/jpeg;base64," + pybase64.b64encode(picture).decode()


def _success(page: Page, picture: str | None, spent_s: float) -> Response:
    data: dict[str, object] = {"raw_out": to_raw_out(page.lines), "speed_time": round(spent_s, 2)}
    if picture is not None:
        data["img_detected"] = picture
    return _json({"code": 200, "msg": SUCCESS, "data": data}, 200)


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    if isinstance(error, NothingSent):
        failure = replace(failure, detail=NOTHING_SENT, remedy="")
    response = _json({"code": failure.status, "msg": str(failure)}, failure.status)
    response.headers.extend(failure.headers)
    return response


def _json(answer: object, status: int) -> Response:
    """JSON as the standard library writes it, which is what clients of the original have seen: spaces, ASCII only."""
    return Response(json.dumps(answer), status, content_type="application/json")
