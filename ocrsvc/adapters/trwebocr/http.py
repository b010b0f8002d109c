"""The API of TrWebOCR (alisen39/TrWebOCR, port 8089) over HTTP.

Its success response to the letter; its errors in its own shape but with true statuses, where the original answers 500
or a 200 that is none. chineseocr_lite has the same address with another response: a setting chooses.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flask import Blueprint, Response

from ocrsvc.adapters.context import AdapterContext, make_blueprint
from ocrsvc.adapters.trwebocr.tr_rects import shrink_page, to_numbered, to_raw_out
from ocrsvc.errors import BadOption, NothingSent
from ocrsvc.http.error_responses import failure_of
from ocrsvc.http.request import request
from ocrsvc.http.responses import drawn_page
from ocrsvc.pipeline.read import Reader
from ocrsvc.records import Page, ReadOptions

PATH: Final = "/api/tr-run/"
DEFAULT_COMPRESS_PX: Final = 1600
SHORTEST_SIDE_PX: Final = 64

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

SUCCESS: Final = "成功"
NOTHING_SENT: Final = "没有传入参数"
BAD_COMPRESS: Final = "compress参数类型有误，只能是int类型"


def make_trwebocr(context: AdapterContext) -> Blueprint:
    """POST /api/tr-run/, with and without the last slash, over a reader."""
    blueprint, has_corners = make_blueprint("trwebocr", _failure), context.settings.trwebocr_boxes == "poly"

    @blueprint.post(PATH, strict_slashes=False)
    def tr_run() -> Response:
        began_s = time.monotonic()
        if has_corners:
            _check_short_side()
        data = request.content.first_image(("file",), ("img", "file"))
        # The engine sees a page for chineseocr_lite as it sees fit.
        max_side = None if has_corners else _max_side()
        page = shrink_page(context.read(data, ReadOptions(max_side=max_side)).page, max_side)
        raw_out = json.dumps(to_numbered(page) if has_corners else to_raw_out(page)).encode()
        if not has_corners and request.content.text("is_draw") == "0":
            return _success(began_s, b"", raw_out)
        with _drawn(context.reader, data, page) as picture:
            return _success(began_s, picture, raw_out, is_drawn_first=has_corners)

    @blueprint.get(PATH, strict_slashes=False)
    def use_post() -> Response:
        return Response("404 : Please use POST", 404, content_type="text/html; charset=UTF-8")

    return blueprint


def _check_short_side() -> None:
    """Raises BadOption for a `compress` that chineseocr_lite refuses."""
    sent = request.content.text("compress")
    if sent is not None and not (_WHOLE.fullmatch(sent) and int(sent) >= SHORTEST_SIDE_PX):
        raise BadOption(f"compress is {sent[:20]!r}: accepted is a whole number from {SHORTEST_SIDE_PX}.")


def _max_side() -> int | None:
    """The longest side that the field `compress` allows, in pixels; None for one below 1. Raises BadOption."""
    sent = request.content.text("compress")
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


def _success(began_s: float, picture: bytes, raw_out: bytes, *, is_drawn_first: bool = False) -> Response:
    """The answer, of pieces that are JSON already: a drawn page is copied once only."""
    members = [b'"raw_out": ', raw_out, b', "speed_time": %a' % round(time.monotonic() - began_s, 2)]
    if is_drawn_first:
        members = [b'"img_detected": ', picture, b", ", *members]
    elif picture:
        members += [b', "img_detected": ', picture]
    head = json.dumps({"code": 200, "msg": SUCCESS})[:-1].encode()
    return Response(b"".join([head, b', "data": {', *members, b"}}"]), content_type="application/json")


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    message = NOTHING_SENT if isinstance(error, NothingSent) else str(failure)
    # As the standard library writes it, which is what clients of the original have seen: spaces, ASCII only.
    answer = json.dumps({"code": failure.status, "msg": message})
    return Response(answer, failure.status, content_type="application/json")
