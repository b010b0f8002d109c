"""Umi-OCR's /api/qrcode: codes read from an image, or drawn from a text."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import cv2
import numpy as np

from ocrsvc.adapters.umi_ocr.image_requests import EMPTY, NO_BASE64, NO_DICT, NO_TEXT, OK, Coded
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import shown
from ocrsvc.imaging.barcodes import draw_barcode
from ocrsvc.records import Barcode, Box, Page, Pixels

NOT_DRAWN, UNREADABLE = 200, 202
_NOTHING_FOUND: Final = "QR code not found in the image."
_LEVELS: Final = {1: "L", 0: "M", 3: "Q", 2: "H"}
_MOST_SIDE_PX: Final = 4096


def check_members(members: Mapping[str, Any], *, empty: bool) -> Mapping[str, Any]:
    """The options of a request for codes. Raises Coded, with the original's words where it has any."""
    if empty or not members:
        raise Coded(EMPTY, "请求为空。")
    if "base64" not in members and "text" not in members:
        raise Coded(NO_BASE64, '指令中不存在 "base64" 或 "text"')
    options = members.get("options")
    if options is not None and not isinstance(options, dict):
        raise Coded(NO_DICT, "请求中 options 字段必须为字典。")
    return options or {}


def to_codes(page: Page, spent_s: float) -> dict[str, object]:
    """The codes of a page in Umi-OCR's words, or its code for none."""
    if not page.barcodes:
        return {"code": NO_TEXT, "data": _NOTHING_FOUND}
    data = [_to_code(code) for code in page.barcodes]
    return {"code": OK, "data": data, "time": round(spent_s, 4), "timestamp": time.time()}


def draw_code(members: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, object]:
    """A code with the text of a request, as a JPEG in base64. Raises Coded where it cannot be drawn."""
    text, kind = members["text"], options.get("format", "QRCode")
    if not isinstance(text, str) or not isinstance(kind, str):
        raise Coded(NOT_DRAWN, f"[Error] text is {shown(text)[:40]} and format {shown(kind)[:40]}: both are texts.")
    width, height = _whole(options, "w", 0), _whole(options, "h", 0)
    quiet_zone, level = _whole(options, "quiet_zone", -1), _whole(options, "ec_level", -1)
    try:
        pixels = draw_barcode(text, kind, level=_LEVELS.get(level), quiet_zone=quiet_zone != 0)
    except BadOption as error:
        raise Coded(NOT_DRAWN, f"[Error] {error.detail}") from error
    _, jpeg = cv2.imencode(".jpg", _enlarge(pixels, width, height))
    return {"code": OK, "data": b64encode(jpeg.tobytes()).decode()}


def _whole(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if type(value) not in {int, float} or not -1 <= value <= _MOST_SIDE_PX:
        raise Coded(NOT_DRAWN, f"[Error] {name} is {shown(value)[:40]}: accepted is a number up to {_MOST_SIDE_PX}.")
    return round(float(value))


def _enlarge(pixels: Pixels, width: int, height: int) -> Pixels:
    """At least so large, each module as many whole pixels as fit."""
    scale = max(1, min(max(width, 1) // pixels.shape[1], max(height, 1) // pixels.shape[0]))
    return np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1))


def _to_code(code: Barcode) -> dict[str, object]:
    return {
        "orientation": _orientation(code.box),
        "box": [[round(x), round(y)] for x, y in code.box],
        "score": 1,
        "format": code.type,
        "text": code.text,
    }


def _orientation(box: Box) -> int:
    """Degrees from -180 to 180 by which the code is turned clockwise."""
    (x0, y0), (x1, y1) = box[:2]
    return round(float(np.degrees(np.arctan2(y1 - y0, x1 - x0))))
