"""Merges the text layer of a page with the lines that the engine recognized on the rest of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import Quads, turn_points
from ocrsvc.imaging.reading_order.blocks import reading_order
from ocrsvc.imaging.text_direction import runs_from_right_to_left
from ocrsvc.results import Image, Line, OwnText, Page

_MAX_COVERED: Final = 0.4  # a recognized line is kept if at most this share lies in boxes of the text layer
_GRID_PX: Final = 4
_BORDER_PX: Final = 2


def without_text(image: Image, own: OwnText) -> Image:
    """A copy of the page's image with each box of the text layer filled with the colour around it."""
    pixels = image.pixels.copy()
    for box in _quads(own.lines):
        corners = np.round(box).astype(np.int32)
        left, top, right, bottom = _frame(corners, pixels.shape, _BORDER_PX)
        around = image.pixels[top : bottom + 1, left : right + 1]
        border = np.concatenate([around[0], around[-1], around[:, 0], around[:, -1]])
        colour = [float(value) for value in np.atleast_1d(np.median(border, axis=0))]
        cv2.fillConvexPoly(pixels, corners, colour)
        # Paint beyond the box, too: blurred edges of letters reach outside it.
        cv2.polylines(pixels, [corners], isClosed=True, color=colour, thickness=2 * _BORDER_PX - 1)
    return Image(pixels, image.format)


def merge_text(page: Page, own: OwnText) -> Page:
    """Add the text layer to the page that the engine read from an image without that text; sort in reading order."""
    if not own.lines:
        return page
    lines = [*own.lines, *_uncovered(page, own)]
    order = order_of([line.text for line in lines], _quads(lines), page.angle)
    return replace(page, lines=tuple(lines[index] for index in order), markdown=None)


def with_sources(page: Page) -> Page:
    """Set the source of lines without one to "ocr"."""
    if all(line.source for line in page.lines):
        return page
    return replace(page, lines=tuple(replace(line, source=line.source or "ocr") for line in page.lines))


def order_of(texts: Sequence[str], quads: Quads, angle: int) -> list[int]:
    """Indices of lines in reading order, on a page that must be turned clockwise by `angle` to be upright."""
    leftwards = sum(len(text) * (1 if runs_from_right_to_left(text) else -1) for text in texts)
    return reading_order(turn_points(quads, angle, 0, 0), texts, from_right=leftwards > 0)


def _uncovered(page: Page, own: OwnText) -> list[Line]:
    """The recognized lines that lie mostly outside the boxes of the text layer."""
    covered = np.zeros((page.height // _GRID_PX + 1, page.width // _GRID_PX + 1), np.uint8)
    for quad in _quads(own.lines):
        cv2.fillConvexPoly(covered, np.round(quad / _GRID_PX).astype(np.int32), 1)
    rest = list[Line]()
    for line, quad in zip(page.lines, _quads(page.lines), strict=True):
        left, top, right, bottom = _frame(quad / _GRID_PX, covered.shape)
        if covered[top : bottom + 1, left : right + 1].mean() <= _MAX_COVERED:
            rest.append(replace(line, source="ocr"))
    return rest


def _frame(points: NDArray[np.generic], shape: Sequence[int], margin: int = 0) -> list[int]:
    ends = np.array([points.min(axis=0) - margin, points.max(axis=0) + margin])
    return [int(side) for side in np.clip(ends, 0, (shape[1] - 1, shape[0] - 1)).reshape(-1)]


def _quads(lines: Sequence[Line]) -> Quads:
    return np.array([line.box for line in lines], np.float32).reshape(-1, 4, 2)
