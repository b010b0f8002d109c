"""Draws sheets with a known reading order as pictures, slanted or in perspective."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from order_pages import KINDS
from order_sheet import HEIGHT, WIDTH, Matrix, SetLine, Sheet, View
from PIL import Image, ImageDraw, ImageFont

from ocrsvc.results import Pixels

FONTS = Path("/usr/share/fonts")
LATIN = FONTS / "truetype" / "liberation" / "LiberationSans-Regular.ttf"
CHINESE = FONTS / "opentype" / "noto" / "NotoSansCJK-Regular.ttc"
SCALE = 1.5  # picture pixels per sheet pixel: the smallest type is 21 px
MARGIN = 60


def drawn_sheet(kind: str, seed: int) -> Sheet:
    """A sheet laid out with the fonts' real widths; every third one is Chinese."""
    sheet = Sheet(random.Random(f"{kind}/{seed}"), measure=measured_width, chinese=seed % 3 == 2)
    KINDS[kind](sheet)
    return sheet


def measured_width(text: str, size: float) -> float:
    """Width of a text in pixels of the sheet."""
    return float(_font(size, latin=text.isascii()).getlength(text)) / SCALE


@cache
def _font(size: float, *, latin: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(LATIN if latin else CHINESE), round(size * SCALE))


def picture_of(sheet: Sheet, view: View) -> tuple[Pixels, Matrix]:
    """Draw a sheet: (H, W) uint8 gray pixels, dark on light, and the (3, 3) matrix from sheet to picture."""
    size = round(WIDTH * SCALE), round(HEIGHT * SCALE)
    page = Image.new("L", size, 245)
    pen = ImageDraw.Draw(page)
    for rule in sheet.rules:
        pen.line([place * SCALE for place in rule], fill=90, width=2)
    for line in sheet.lines:
        _draw(pen, line)
    moved = view.matrix(*size)
    corners = np.array([[[0, 0]], [[size[0], 0]], [[size[0], size[1]]], [[0, size[1]]]], np.float64)
    seen = cv2.perspectiveTransform(corners, moved)[:, 0]
    moved = np.array([[1, 0, MARGIN], [0, 1, MARGIN], [0, 0, 1]]) @ _shift(*-seen.min(axis=0)) @ moved
    width, height = (int(extent) + 2 * MARGIN for extent in np.ptp(seen, axis=0))
    pixels = cv2.warpPerspective(
        np.asarray(page), moved, (width, height), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_CONSTANT, borderValue=245
    )
    return cast(Pixels, pixels), moved @ np.diag([SCALE, SCALE, 1.0])


def _shift(x: float, y: float) -> Matrix:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def _draw(pen: ImageDraw.ImageDraw, line: SetLine) -> None:
    font = _font(line.size, latin=line.text.isascii())
    if not line.vertical:
        pen.text((line.left * SCALE, line.top * SCALE), line.text, 20, font)
        return
    for number, character in enumerate(line.text):
        pen.text((line.left * SCALE, (line.top + number * line.size) * SCALE), character, 20, font)
