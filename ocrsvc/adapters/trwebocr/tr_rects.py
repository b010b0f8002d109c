"""Lines as Tr writes them: centre, sides and angle of each line, on a shrunk copy of the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.formats.boxes import Boxes, to_boxes
from ocrsvc.records import Box, Page

_DIGITS: Final = 2


def shrunk_size(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Size in pixels of a width x height image after TrWebOCR's shrinking; it never enlarges, nor below one pixel."""
    scale = max(width, height) / max_side
    if scale <= 1:
        return width, height
    return max(1, int(width / scale + 0.5)), max(1, int(height / scale + 0.5))


def shrink_page(page: Page, max_side: int | None) -> Page:
    """The page in the frame of its image shrunk to a longest side of `max_side` pixels; None leaves it as it is."""
    width, height = shrunk_size(page.width, page.height, max_side or max(page.width, page.height))
    if (width, height) == (page.width, page.height):
        return page
    x_scale, y_scale = width / page.width, height / page.height
    lines = tuple(replace(line, box=_scale(line.box, x_scale, y_scale)) for line in page.lines)
    masked = page.masked and tuple(replace(part, box=_scale(part.box, x_scale, y_scale)) for part in page.masked)
    return replace(page, width=width, height=height, lines=lines, masked=masked)


def _scale(box: Box, x_scale: float, y_scale: float) -> Box:
    a, b, c, d = ((x * x_scale, y * y_scale) for x, y in box)
    return a, b, c, d


def to_raw_out(page: Page) -> list[list[object]]:
    """The lines as Tr gives them: [[cx, cy, w, h, angle], text, confidence]."""
    rects = to_rects(to_boxes(page.lines)).tolist()
    return [[rect, line.text, float(line.confidence)] for rect, line in zip(rects, page.lines, strict=True)]


def to_numbered(page: Page) -> list[list[object]]:
    """The lines as chineseocr_lite gives them: [corners, numbered text, confidence]."""
    corners = to_boxes(page.lines).round(_DIGITS).tolist()
    numbered = enumerate(zip(corners, page.lines, strict=True), start=1)
    return [[box, f"{number}、 {line.text}", line.confidence] for number, (box, line) in numbered]


def to_rects(boxes: Boxes) -> NDArray[np.float64]:
    """The rectangles that boxes stand for, (N, 5): centre x and y, width, height, angle.

    Pixels and clockwise degrees, as OpenCV's boxPoints takes them; the width runs along the line. A box that is no
    rectangle keeps its centre and its first two sides.
    """
    along, across = boxes[:, 1] - boxes[:, 0], boxes[:, 2] - boxes[:, 1]
    angles = np.degrees(np.arctan2(along[:, 1], along[:, 0]))
    lengths = [np.hypot(side[:, 0], side[:, 1]) for side in (along, across)]
    return np.column_stack([boxes.mean(axis=1), *lengths, angles]).round(_DIGITS)
