"""Puts together what a page says itself and what the engine reads on the rest of it, no line twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.own_lines import order_of
from ocrsvc.records import Image, Line, OwnText, Page, Pixels

_MOST_COVERED: Final = 0.4  # of a line that the engine has read, what may lie in boxes of own text
_GRID_PX: Final = 4
_BORDER_PX: Final = 2


def without_text(image: Image, own: OwnText) -> Image:
    """A copy of the page's image without its own text: each box filled with the colour around it."""
    pixels = image.pixels.copy()
    for box in _quads(own.lines):
        corners = np.round(box).astype(np.int32)
        colour = _colour_around(image.pixels, corners)
        cv2.fillConvexPoly(pixels, corners, colour)
        # What of the outermost strokes is blurred lies outside.
        cv2.polylines(pixels, [corners], isClosed=True, color=colour, thickness=2 * _BORDER_PX - 1)
    return Image(pixels, image.format)


def own_page(image: Image, own: OwnText) -> Page:
    """The page of an image on which nothing else is to be read."""
    return Page(image.width, image.height, own.angle, own.lines)


def merge_text(page: Page, own: OwnText) -> Page:
    """The page that the engine has read without its own text, with it: in reading order."""
    if not own.lines:
        return page
    read = _besides(page, own)
    lines = [*own.lines, *read]
    order = order_of([line.text for line in lines], _quads(lines), page.angle)
    return replace(page, lines=tuple(lines[one] for one in order))


def with_sources(page: Page) -> Page:
    """The page, each line of which says where it comes from: the engine, if nothing else is known."""
    if all(line.source for line in page.lines):
        return page
    return replace(page, lines=tuple(replace(line, source=line.source or "ocr") for line in page.lines))


def _besides(page: Page, own: OwnText) -> list[Line]:
    """The engine's lines that do not lie in those of the page's own text."""
    if not page.lines:
        return []
    shape = (page.height // _GRID_PX + 1, page.width // _GRID_PX + 1)
    covered = np.zeros(shape, np.uint8)
    for quad in _quads(own.lines):
        cv2.fillConvexPoly(covered, np.round(quad / _GRID_PX).astype(np.int32), 1)
    return [
        replace(line, source="ocr")
        for line, quad in zip(page.lines, _quads(page.lines), strict=True)
        if _share_in(covered, quad) <= _MOST_COVERED
    ]


def _share_in(covered: NDArray[np.uint8], quad: NDArray[np.float32]) -> float:
    """Which share of a line's frame is covered."""
    left, top, right, bottom = _frame(quad / _GRID_PX, covered.shape)
    return float(covered[top : bottom + 1, left : right + 1].mean())


def _frame(points: NDArray[Any], shape: Sequence[int], margin: int = 0) -> list[int]:
    """Left, top, right and bottom of pixels around some points, within an image of this shape."""
    ends = np.array([points.min(axis=0) - margin, points.max(axis=0) + margin])
    return [int(side) for side in np.clip(ends, 0, (shape[1] - 1, shape[0] - 1)).reshape(-1)]


def _colour_around(pixels: Pixels, corners: NDArray[np.int32]) -> Sequence[float]:
    """The median of what lies just outside of a box."""
    left, top, right, bottom = _frame(corners, pixels.shape, _BORDER_PX)
    border = [pixels[top, left : right + 1], pixels[bottom, left : right + 1]]
    border += [pixels[top : bottom + 1, left], pixels[top : bottom + 1, right]]
    return [float(value) for value in np.atleast_1d(np.median(np.concatenate(border), axis=0))]


def _quads(lines: Sequence[Line]) -> NDArray[np.float32]:
    return np.array([line.box for line in lines], np.float32).reshape(-1, 4, 2)
