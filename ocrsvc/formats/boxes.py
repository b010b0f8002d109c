"""Converts boxes and confidences of lines and words to arrays, and boxes to whole pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Character, Line, Page, Word

Boxed = Line | Word | Character

Boxes = NDArray[np.float64]
"""(N, 4, 2): four corners x, y, clockwise from where reading starts, in pixels of the image as displayed."""

# Decimals of box coordinates in JSON; other formats round alike, because `ocrsvc read --url` makes them from JSON.
BOX_DIGITS: Final = 1
CONFIDENCE_DIGITS: Final = 4


def to_boxes(texts: Sequence[Boxed]) -> Boxes:
    """The corners of lines, words or characters as an array (N, 4, 2)."""
    return np.array([text.box for text in texts], np.float64).reshape(-1, 4, 2)


def whole(boxes: Boxes) -> NDArray[np.int64]:
    """Round to the nearest whole numbers."""
    return np.rint(boxes).astype(np.int64)


def to_frames(boxes: Boxes) -> Boxes:
    """The bounding rectangle of each box, (N, 4): left, top, right, bottom."""
    return np.hstack([boxes.min(axis=1), boxes.max(axis=1)])


def to_scores(texts: Sequence[Boxed], digits: int = 5) -> list[float]:
    """The confidence of each line, word or character, in [0, 1]."""
    return cast(list[float], np.array([text.confidence for text in texts]).round(digits).tolist())


class PlacedText(NamedTuple):
    """A line or word in whole pixels of the image as displayed, with its bounding rectangle (frame).

    `corners` are x, y of the four corners, clockwise from where reading starts; `is_upright`: they equal the frame's
    corners. `angle` is anticlockwise relative to the page, in whole degrees from 0 to 359.
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
    """A word of a line, and whether a space precedes it in the line's text."""

    placed: PlacedText
    after_blank: bool


class PlacedLine(NamedTuple):
    """A line and its words; no words if they were not requested."""

    placed: PlacedText
    words: tuple[PlacedWord, ...]


def place_lines(page: Page) -> Iterator[PlacedLine]:
    """The lines of a page with their words, in reading order."""
    words = iter(list(_place([word for line in page.lines for word in line.words or ()], page)))
    for line, placed in zip(page.lines, _place(page.lines, page), strict=True):
        line_words = list(islice(words, len(line.words or ())))
        yield PlacedLine(placed, tuple(map(PlacedWord, line_words, _spaces_before(line))))


def page_with_words(page: Page) -> Page:
    """The page, with words for lines that have none: the parts of their text between spaces, with the line's box."""
    return replace(page, lines=tuple(line if line.words else _line_with_words(line) for line in page.lines))


def _line_with_words(line: Line) -> Line:
    return replace(line, words=tuple(Word(text, line.confidence, line.box) for text in line.text.split()))


def _spaces_before(line: Line) -> Iterator[bool]:
    """For each word, whether a space precedes it in the line's text."""
    end = 0
    for word in line.words or ():
        begin = line.text.find(word.text, end)
        yield begin < 0 or any(map(str.isspace, line.text[end:begin]))
        end = max(end, begin + len(word.text))


def _place(texts: Sequence[Boxed], page: Page) -> Iterator[PlacedText]:
    boxes = to_boxes(texts).round(BOX_DIGITS)
    # Round halves up, as browsers do.
    frames = np.floor(to_frames(boxes) + 0.5).clip(0, [page.width, page.height] * 2).astype(np.int64).tolist()
    corners = np.floor(boxes + 0.5).astype(np.int64).reshape(-1, 8).tolist()
    along = boxes[:, 1] - boxes[:, 0]
    angles = (np.floor(np.degrees(np.arctan2(-along[:, 1], along[:, 0])) + 0.5) % 360).astype(np.int64).tolist()
    scores = to_scores(texts, CONFIDENCE_DIGITS)
    for text, score, frame, points, angle in zip(texts, scores, frames, corners, angles, strict=True):
        left, top, right, bottom = frame
        is_upright = points == [left, top, right, top, right, bottom, left, bottom]
        yield PlacedText(text.text, score, left, top, right, bottom, tuple(points), is_upright, angle)
