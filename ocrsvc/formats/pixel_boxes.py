"""Places each line and word of a page in whole pixels, as TSV, hOCR and ALTO write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from ocrsvc.formats.box_values import Boxed, to_boxes, to_frames, to_scores
from ocrsvc.records import Line, Page

# As many as the JSON has, so that `ocrsvc read --url` writes the same from it.
BOX_DIGITS: Final = 1
CONFIDENCE_DIGITS: Final = 4


class PlacedText(NamedTuple):
    """One line or word on its page, in whole pixels of the image as displayed.

    Attributes:
        text: As it was read.
        confidence: From 0 to 1.
        left, top, right, bottom: The upright frame around it, inside the page.
        corners: x, y of the four corners, clockwise from where reading starts.
        is_upright: Whether the corners are those of the frame.
        angle: Whole degrees, anticlockwise, by which it is turned against the page; from 0 to 359.
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


class PlacedWord(NamedTuple):
    """One word of a line, and whether the line has a blank before it."""

    placed: PlacedText
    after_blank: bool


class PlacedLine(NamedTuple):
    """One line, and its words; none where they were not asked for."""

    placed: PlacedText
    words: tuple[PlacedWord, ...]


def place_lines(page: Page) -> Iterator[PlacedLine]:
    """The lines of a page with their words, in reading order."""
    words = iter(list(_place([word for line in page.lines for word in line.words or ()], page)))
    for line, placed in zip(page.lines, _place(page.lines, page), strict=True):
        own = list(islice(words, len(line.words or ())))
        yield PlacedLine(placed, tuple(map(PlacedWord, own, _blanks_before(line))))


def _blanks_before(line: Line) -> Iterator[bool]:
    """Of each word, whether the line's text has a blank before it."""
    end = 0
    for word in line.words or ():
        begin = line.text.find(word.text, end)
        yield begin < 0 or any(map(str.isspace, line.text[end:begin]))
        end = max(end, begin + len(word.text))


def _place(texts: Sequence[Boxed], page: Page) -> Iterator[PlacedText]:
    boxes = to_boxes(texts).round(BOX_DIGITS)
    # Halves go up, as in every browser.
    frames = np.floor(to_frames(boxes) + 0.5).clip(0, [page.width, page.height] * 2).astype(np.int64).tolist()
    corners = np.floor(boxes + 0.5).astype(np.int64).reshape(-1, 8).tolist()
    along = boxes[:, 1] - boxes[:, 0]
    angles = (np.floor(np.degrees(np.arctan2(-along[:, 1], along[:, 0])) + 0.5) % 360).astype(np.int64).tolist()
    scores = to_scores(texts, CONFIDENCE_DIGITS)
    for text, score, frame, points, angle in zip(texts, scores, frames, corners, angles, strict=True):
        left, top, right, bottom = frame
        is_upright = points == [left, top, right, top, right, bottom, left, bottom]
        yield PlacedText(text.text, score, left, top, right, bottom, tuple(points), is_upright, angle)
