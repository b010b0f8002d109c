"""Writes lines as Tr does: centre, sides and angle of each line, on a shrunk copy of the image."""

from __future__ import annotations

import math
from dataclasses import replace
from json.encoder import encode_basestring_ascii as _quoted

import numpy as np
from numpy.typing import NDArray

from ocrsvc.formats.box_values import Boxes, to_boxes
from ocrsvc.formats.json_lines import fill_template, python_number_column, python_row_column
from ocrsvc.records import Box, Page

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


def to_raw_out_text(page: Page, max_side: int | None) -> str:
    """The lines as Tr gives them, [[cx, cy, w, h, angle], text, confidence], in JSON as the standard library writes it.

    In the frame of the image shrunk to a longest side of `max_side` pixels; None is the image itself.

    Written here in one go for all rectangles: `to_rect` and `json.dumps` take ten times as long for 200 lines.
    """
    width, height = (page.width, page.height) if max_side is None else shrunk_size(page.width, page.height, max_side)
    boxes = to_boxes(page.lines) * [width / page.width, height / page.height]
    texts = [_quoted(line.text) for line in page.lines]
    confidences = python_number_column([float(line.confidence) for line in page.lines])
    items = fill_template(", [[%], %, %]", python_row_column(_to_rects(boxes)), texts, confidences)
    return f"[{items[2:]}]"


def _to_rects(boxes: Boxes) -> NDArray[np.float64]:
    """`to_rect` for all boxes (N, 4, 2) at once: (N, 5)."""
    along, across = boxes[:, 1] - boxes[:, 0], boxes[:, 2] - boxes[:, 1]
    angles = np.degrees(np.arctan2(along[:, 1], along[:, 0]))
    lengths = [np.hypot(side[:, 0], side[:, 1]) for side in (along, across)]
    return np.column_stack([boxes.mean(axis=1), *lengths, angles]).round(COORDINATE_DIGITS)
