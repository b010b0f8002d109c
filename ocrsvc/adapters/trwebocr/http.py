"""The APIs of TrWebOCR (alisen39/TrWebOCR, port 8089) and TrWebOCR.cpp (SamuraiBUPT/TrWebOCR.cpp, port 6006).

Successful responses equal the originals' byte for byte. Errors have the originals' format, but a fitting HTTP status
instead of 500 or 200. OCRSVC_TRWEBOCR_BOXES=poly selects the response of chineseocr_lite, which has the same path.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
from flask import Blueprint, Response
from numpy.typing import NDArray

from ocrsvc.adapters.context import AdapterContext, make_blueprint, original_code_of
from ocrsvc.errors import BadOption, NothingSent, OcrsvcError
from ocrsvc.formats.boxes import Boxes, to_boxes
from ocrsvc.http.request import request
from ocrsvc.http.responses import NO_IMAGE, drawn_page
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Box, Page, ReadOptions

PATH: Final = "/api/tr-run/"
DEFAULT_COMPRESS_PX: Final = 1600
MIN_SIDE_PX: Final = 64

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

TEXT_TYPE: Final = "text/plain; charset=UTF-8"
SUCCESS: Final = "成功"
NOTHING_SENT: Final = "没有传入参数"
BAD_COMPRESS: Final = "compress参数类型有误，只能是int类型"

_DIGITS: Final = 2


def make_trwebocr(context: AdapterContext) -> Blueprint:
    """Make POST /api/tr-run/, with and without the trailing slash."""
    blueprint, has_corners = make_blueprint("trwebocr", _failure), context.settings.trwebocr_boxes == "poly"

    @blueprint.post(PATH, strict_slashes=False)
    def tr_run() -> Response:
        began_s = time.monotonic()
        if has_corners:
            _check_short_side()
        data = request.content.first_image(("file",), ("img", "file"))
        # In chineseocr_lite's API, `compress` is only checked; the engine chooses the image size.
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
    """Check `compress` as chineseocr_lite does. Raises BadOption for values that it refuses."""
    value = request.content.text("compress")
    if value is not None and not (_WHOLE.fullmatch(value) and int(value) >= MIN_SIDE_PX):
        raise BadOption(f"compress is {value[:20]!r}: accepted is a whole number from {MIN_SIDE_PX}.")


def _max_side() -> int | None:
    """The longest side in pixels, from the field `compress`; None if the field is below 1. Raises BadOption."""
    value = request.content.text("compress")
    if value is None:
        return DEFAULT_COMPRESS_PX
    if not _WHOLE.fullmatch(value):
        raise BadOption(BAD_COMPRESS)
    return int(value) if int(value) >= 1 else None


@contextmanager
def _drawn(reader: Reader, data: bytes, page: Page) -> Iterator[bytes]:
    """The image with frames around its lines, as a JPEG; decoded again, since the engine's image may be gray."""
    check = request.make_check()
    with request.share.part() as held:
        with reader.decoded_image(data, limit_s=request.left_s, context=request.context) as image:
            picture = drawn_page(image, page, held, check, prefix=b"data:image/jpeg;base64,")
        yield picture


def _success(began_s: float, picture: bytes, raw_out: bytes, *, is_drawn_first: bool = False) -> Response:
    """The response, made with one copy of the large `picture` (base64); `is_drawn_first` puts it before the text."""
    members = [b'"raw_out": ', raw_out, b', "speed_time": %a' % round(time.monotonic() - began_s, 2)]
    if is_drawn_first:
        members = [b'"img_detected": ', picture, b", ", *members]
    elif picture:
        members += [b', "img_detected": ', picture]
    head = json.dumps({"code": 200, "msg": SUCCESS})[:-1].encode()
    return Response(b"".join([head, b', "data": {', *members, b"}}"]), content_type="application/json")


def _failure(failure: OcrsvcError) -> Response:
    message = NOTHING_SENT if isinstance(failure, NothingSent) else str(failure)
    # As in the original: JSON of the standard library, with spaces and ASCII only.
    answer = json.dumps({"code": failure.status, "msg": message})
    return Response(answer, failure.status, content_type="application/json")


def shrink_page(page: Page, max_side: int | None) -> Page:
    """Shrink a page and its boxes to a longer side of `max_side` pixels (None: no limit), rounded as in TrWebOCR."""
    scale = max(page.width, page.height) / (max_side or max(page.width, page.height))
    if scale <= 1:
        return page
    width, height = (max(1, int(side / scale + 0.5)) for side in (page.width, page.height))
    x_scale, y_scale = width / page.width, height / page.height
    lines = tuple(replace(line, box=_scale(line.box, x_scale, y_scale)) for line in page.lines)
    masked = page.masked and tuple(replace(part, box=_scale(part.box, x_scale, y_scale)) for part in page.masked)
    return replace(page, width=width, height=height, lines=lines, masked=masked)


def _scale(box: Box, x_scale: float, y_scale: float) -> Box:
    a, b, c, d = ((x * x_scale, y * y_scale) for x, y in box)
    return a, b, c, d


def to_raw_out(page: Page) -> list[list[object]]:
    """The lines in Tr's format: [[cx, cy, w, h, angle], text, confidence]."""
    rects = to_rects(to_boxes(page.lines)).tolist()
    return [[rect, line.text, float(line.confidence)] for rect, line in zip(rects, page.lines, strict=True)]


def to_numbered(page: Page) -> list[list[object]]:
    """The lines in chineseocr_lite's format: [corners, numbered text, confidence]."""
    corners = to_boxes(page.lines).round(_DIGITS).tolist()
    numbered = enumerate(zip(corners, page.lines, strict=True), start=1)
    return [[box, f"{number}、 {line.text}", line.confidence] for number, (box, line) in numbered]


def to_rects(boxes: Boxes) -> NDArray[np.float64]:
    """The boxes as rectangles for OpenCV's boxPoints, (N, 5): centre x and y, width along the line, height, angle.

    Lengths are in pixels, angles in clockwise degrees. A box that is not a rectangle keeps its centre and its first
    two sides.
    """
    along, across = boxes[:, 1] - boxes[:, 0], boxes[:, 2] - boxes[:, 1]
    angles = np.degrees(np.arctan2(along[:, 1], along[:, 0]))
    lengths = [np.hypot(side[:, 0], side[:, 1]) for side in (along, across)]
    return np.column_stack([boxes.mean(axis=1), *lengths, angles]).round(_DIGITS)


def make_trwebocr_cpp(context: AdapterContext) -> Blueprint:
    """Make POST /api/trocr and GET /hi."""
    blueprint = make_blueprint("trwebocr_cpp", _cpp_failure)

    @blueprint.post("/api/trocr", strict_slashes=False)
    def trocr() -> Response:
        page = context.read(request.content.first_image(("file",), ("img_base64", "file"))).page
        return Response("".join(f"{line.text}|" for line in page.lines), content_type=TEXT_TYPE)

    @blueprint.get("/hi")
    def hi() -> Response:
        return Response("Hello World!", content_type="text/plain")

    return blueprint


def _cpp_failure(failure: OcrsvcError) -> Response:
    """The response to an error, with TrWebOCR.cpp's text for this error, or our own text if there is none."""
    unreadable = ((kind, "Failed to load image") for kind in NO_IMAGE)
    texts = ((NothingSent, "Missing file or img_base64 parameter"), *unreadable)
    text = original_code_of(texts, failure, "Invalid JSON data") or str(failure)
    return Response(text, failure.status, content_type=TEXT_TYPE)
