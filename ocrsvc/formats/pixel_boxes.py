"""Places each line of a page in whole pixels, as TSV, hOCR and ALTO write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ocrsvc.formats.box_values import to_boxes, to_frames, to_scores
from ocrsvc.records import Page

# As many as the JSON has, so that `ocrsvc read --url` writes the same from it.
BOX_DIGITS: Final = 1
CONFIDENCE_DIGITS: Final = 4


class PlacedLine(NamedTuple):
    """One line on its page, in whole pixels of the image as displayed.

    Attributes:
        text: As it was read.
        confidence: From 0 to 1.
        left, top, right, bottom: The upright frame around it, inside the page.
        corners: x, y of the four corners, clockwise from where reading starts.
        is_upright: Whether the corners are those of the frame.
        angle: Whole degrees, anticlockwise, by which the line is turned against the page; from 0 to 359.
    """

    text: str
    confidence: float
    left: int
    top: int
    right: int
    bottom: int
    corners: tuple[int, ...]
    is_upright: bool
    angle: int


def place_lines(page: Page) -> Iterator[PlacedLine]:
    """The lines of a page, in reading order."""
    boxes = to_boxes(page.lines).round(BOX_DIGITS)
    # Halves go up, as in every browser.
    frames = np.floor(to_frames(boxes) + 0.5).clip(0, [page.width, page.height] * 2).astype(np.int64).tolist()
    corners = np.floor(boxes + 0.5).astype(np.int64).reshape(-1, 8).tolist()
    along = boxes[:, 1] - boxes[:, 0]
    angles = (np.floor(np.degrees(np.arctan2(-along[:, 1], along[:, 0])) + 0.5) % 360).astype(np.int64).tolist()
    scores = to_scores(page.lines, CONFIDENCE_DIGITS)
    for line, score, frame, points, angle in zip(page.lines, scores, frames, corners, angles, strict=True):
        left, top, right, bottom = frame
        is_upright = points == [left, top, right, top, right, bottom, left, bottom]
        yield PlacedLine(line.text, score, left, top, right, bottom, tuple(points), is_upright, angle)
