"""Puts together what a page says itself and what the engine reads on the rest of it, no line twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.own_lines import order_of
from ocrsvc.records import Image, Line, OwnText, Page, Pixels

_MOST_COVERED: Final = 0.4
"""Of a line that the engine has read, what may lie in boxes of own text."""
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
    """The page that the engine has read without its own text, with it: in reading order.

    Args:
        page: What the engine has read.
        own: The page's own text, in the same frame.
    """
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
    height, width = covered.shape
    left, top = np.clip(quad.min(axis=0) / _GRID_PX, 0, (width - 1, height - 1)).astype(int).tolist()
    right, bottom = np.clip(quad.max(axis=0) / _GRID_PX, 0, (width - 1, height - 1)).astype(int).tolist()
    return float(covered[top : bottom + 1, left : right + 1].mean())


def _colour_around(pixels: Pixels, corners: NDArray[np.int32]) -> Sequence[float]:
    """The median of what lies just outside of a box."""
    height, width = pixels.shape[:2]
    left, top = np.clip(corners.min(axis=0) - _BORDER_PX, 0, (width - 1, height - 1)).tolist()
    right, bottom = np.clip(corners.max(axis=0) + _BORDER_PX, 0, (width - 1, height - 1)).tolist()
    border = [pixels[top, left : right + 1], pixels[bottom, left : right + 1]]
    border += [pixels[top : bottom + 1, left], pixels[top : bottom + 1, right]]
    colour = np.median(np.concatenate(border), axis=0)
    return [float(value) for value in np.atleast_1d(colour)]


def _quads(lines: Sequence[Line]) -> NDArray[np.float32]:
    return np.array([line.box for line in lines], np.float32).reshape(-1, 4, 2)
