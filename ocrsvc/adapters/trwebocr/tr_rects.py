"""Writes lines as Tr does: centre, sides and angle of each line, on a shrunk copy of the image."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ocrsvc.formats.boxes import Boxes, to_boxes
from ocrsvc.records import Box, Page

COORDINATE_DIGITS = 2


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
    masked = page.masked and tuple(replace(part, box=_scale(part.box, x_scale, y_scale)) for part in page.masked)
    return replace(page, width=width, height=height, lines=lines, masked=masked)


def _scale(box: Box, x_scale: float, y_scale: float) -> Box:
    a, b, c, d = ((x * x_scale, y * y_scale) for x, y in box)
    return a, b, c, d


def to_raw_out_text(page: Page, max_side: int | None) -> str:
    """The lines as Tr gives them, [[cx, cy, w, h, angle], text, confidence], in JSON as the standard library writes it.

    In the frame of the image shrunk to a longest side of `max_side` pixels; None is the image itself.
    """
    width, height = (page.width, page.height) if max_side is None else shrunk_size(page.width, page.height, max_side)
    boxes = to_boxes(page.lines) * [width / page.width, height / page.height]
    rects = to_rects(boxes).tolist()
    return json.dumps([[rect, line.text, float(line.confidence)] for rect, line in zip(rects, page.lines, strict=True)])


def to_rects(boxes: Boxes) -> NDArray[np.float64]:
    """The rectangles that boxes stand for, (N, 5): centre x and y, width, height, angle.

    Pixels and clockwise degrees, as OpenCV's boxPoints takes them; the width runs along the line. A box that is no
    rectangle keeps its centre and its first two sides.
    """
    along, across = boxes[:, 1] - boxes[:, 0], boxes[:, 2] - boxes[:, 1]
    angles = np.degrees(np.arctan2(along[:, 1], along[:, 0]))
    lengths = [np.hypot(side[:, 0], side[:, 1]) for side in (along, across)]
    return np.column_stack([boxes.mean(axis=1), *lengths, angles]).round(COORDINATE_DIGITS)
