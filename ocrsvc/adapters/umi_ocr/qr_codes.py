"""Umi-OCR's /api/qrcode: codes read from an image, or drawn from a text."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Final

import cv2
import numpy as np
from pydantic import Field

from ocrsvc.adapters.request_values import RequestValues, parse_values
from ocrsvc.adapters.umi_ocr.answers import NO_TEXT, OK, Coded
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import shown
from ocrsvc.imaging.barcodes import draw_barcode
from ocrsvc.records import Barcode, Box, Page, Pixels

NOT_DRAWN, UNREADABLE = 200, 202
_NOTHING_FOUND: Final = "QR code not found in the image."
_LEVELS: Final = {1: "L", 0: "M", 3: "Q", 2: "H"}
_Side = Annotated[float, Field(ge=-1, le=4096)]


class _Drawing(RequestValues):
    """How a code is drawn; its sides in pixels."""

    format: str = "QRCode"
    w: _Side = 0
    h: _Side = 0
    quiet_zone: _Side = -1
    ec_level: _Side = -1


def to_codes(page: Page, spent_s: float) -> dict[str, object]:
    """The codes of a page in Umi-OCR's words, or its code for none."""
    if not page.barcodes:
        return {"code": NO_TEXT, "data": _NOTHING_FOUND}
    data = [_to_code(code) for code in page.barcodes]
    return {"code": OK, "data": data, "time": round(spent_s, 4), "timestamp": time.time()}


def draw_code(text: Any, options: Mapping[str, Any]) -> dict[str, object]:
    """A code with this text, as a JPEG in base64. Raises Coded where it cannot be drawn."""
    if not isinstance(text, str):
        raise Coded(NOT_DRAWN, f"[Error] text is {shown(text)[:40]}: it is to be a text.")
    try:
        asked = parse_values(_Drawing, options)
        level, has_zone = _LEVELS.get(round(asked.ec_level)), round(asked.quiet_zone) != 0
        pixels = draw_barcode(text, asked.format, level=level, quiet_zone=has_zone)
    except BadOption as error:
        raise Coded(NOT_DRAWN, f"[Error] {error.detail}") from error
    _, jpeg = cv2.imencode(".jpg", _enlarge(pixels, round(asked.w), round(asked.h)))
    return {"code": OK, "data": b64encode(jpeg.tobytes()).decode()}


def _enlarge(pixels: Pixels, width: int, height: int) -> Pixels:
    """At least so large, each module as many whole pixels as fit."""
    scale = max(1, min(max(width, 1) // pixels.shape[1], max(height, 1) // pixels.shape[0]))
    return np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1))


def _to_code(code: Barcode) -> dict[str, object]:
    box = [[round(x), round(y)] for x, y in code.box]
    return {"orientation": _orientation(code.box), "box": box, "score": 1, "format": code.type, "text": code.text}


def _orientation(box: Box) -> int:
    """Degrees from -180 to 180 by which the code is turned clockwise."""
    (x0, y0), (x1, y1) = box[:2]
    return round(float(np.degrees(np.arctan2(y1 - y0, x1 - x0))))
