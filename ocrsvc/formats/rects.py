"""How does a page look in Tr's own terms: centre, sides and angle of each line, on a shrunk copy of the image?"""

from __future__ import annotations

import math
from dataclasses import replace

from ocrsvc.records import Box, Line, Page

COORDINATE_DIGITS = 2

Rect = list[float]
"""[cx, cy, w, h, angle]: pixels and clockwise degrees, as OpenCV's boxPoints takes them; w runs along the line."""


def shrunk_size(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Size in pixels of a width x height image after TrWebOCR's shrinking; it never enlarges, nor below one pixel."""
    scale = max(width, height) / max_side
    if scale <= 1:
        return width, height
    return max(1, int(width / scale + 0.5)), max(1, int(height / scale + 0.5))


def shrink_page(page: Page, max_side: int) -> Page:
    """The page in the frame of its image shrunk to a longest side of `max_side` pixels."""
    width, height = shrunk_size(page.width, page.height, max_side)
    if (width, height) == (page.width, page.height):
        return page
    x_scale, y_scale = width / page.width, height / page.height
    lines = tuple(replace(line, box=_scale(line.box, x_scale, y_scale)) for line in page.lines)
    return replace(page, width=width, height=height, lines=lines)


def _scale(box: Box, x_scale: float, y_scale: float) -> Box:
    a, b, c, d = ((x * x_scale, y * y_scale) for x, y in box)
    return a, b, c, d


def to_rect(box: Box) -> Rect:
    """The rectangle that a box stands for; a box that is none keeps its centre and its first two sides."""
    (x0, y0), (x1, y1), (x2, y2), _ = box
    centre_x, centre_y = sum(x for x, _ in box) / 4, sum(y for _, y in box) / 4
    width, height = math.hypot(x1 - x0, y1 - y0), math.hypot(x2 - x1, y2 - y1)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    return [round(value, COORDINATE_DIGITS) for value in (centre_x, centre_y, width, height, angle)]


def to_raw_out(lines: tuple[Line, ...]) -> list[list[object]]:
    """Each line as Tr gives it: [[cx, cy, w, h, angle], text, confidence]."""
    return [[to_rect(line.box), line.text, line.confidence] for line in lines]
