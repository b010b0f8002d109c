"""Packs a page into plain JSON values, and checks and unpacks them again."""

from __future__ import annotations

import math
from typing import Any, Final

from ocrsvc.records import Line, Page

_ANGLES: Final = (0, 90, 180, 270)
_NUMBERS: Final = 8  # of a box: four corners


class InvalidData(ValueError):
    """What came back is not what `pack_page` or a working child packs."""


def pack_page(page: Page) -> list[object]:
    """A page as a list that orjson writes; numbers that are not finite become null, which `unpack_page` refuses."""
    lines = [
        [line.text, float(line.confidence), *(float(number) for corner in line.box for number in corner)]
        for line in page.lines
    ]
    return [int(page.width), int(page.height), int(page.angle), int(page.number), lines]


def unpack_page(row: Any) -> Page:
    """The page that was packed, checked completely. Raises InvalidData."""
    match row:
        case [int(width), int(height), int(angle), int(number), list(lines)] if width > 0 < height and angle in _ANGLES:
            return Page(width, height, angle, tuple(_unpack_line(line) for line in lines), number)
    raise InvalidData("a page that is none")


def _unpack_line(row: Any) -> Line:
    match row:
        case [str(text), float(confidence), *numbers] if 0.0 <= confidence <= 1.0 and len(numbers) == _NUMBERS:
            if all(type(number) is float and math.isfinite(number) for number in numbers):
                x0, y0, x1, y1, x2, y2, x3, y3 = numbers
                return Line(text, confidence, ((x0, y0), (x1, y1), (x2, y2), (x3, y3)))
    raise InvalidData("a line without a confidence from 0 to 1 and four corners")
