"""Divides the text of a page into lines, and these into words (pieces), for its invisible text layer."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ocrsvc.imaging.text_direction import visual_order
from ocrsvc.results import Box, LineSource, Page

_MIN_GAP: Final = 0.25  # least gap written between two words, in line heights; below 0.15 poppler joins words

_MIN_BEND: Final = 0.3
"""A line is bent if its words' centres differ, across the line, by this many heights of the tallest word.

In straight lines they differ less, even if words lack ascenders or descenders."""
_MIN_HEIGHT: Final = 0.5  # words lower than this share of the tallest, such as a dash, may be off centre
_OWN: Final[LineSource] = "text_layer"
_HYPHENATED: Final = re.compile(r"[^\W\d_]-$")

Words = Sequence[tuple[str, Box]]

Piece = tuple[str, float, float]  # text, and its beginning and end along the line as shares of the line's length

TextLine = tuple[Sequence[float], Sequence[Piece]]
"""A line's box (x0, y0, … x3, y3 in pixels, clockwise from where reading starts), and its pieces in visual order."""


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of one page: its number in the document, from 1, its width and height in pixels, and its lines."""

    number: int
    width: int
    height: int
    lines: Sequence[TextLine]


def text_of(page: Page, *, is_over_own: bool = False) -> PageText:
    """Make the text layer of a page; `is_over_own` leaves out lines that the PDF already has as text."""
    lines = [
        part
        for line in page.lines
        if line.text and not (is_over_own and line.source == _OWN)
        for part in _lines_of(line.text, line.box, [(word.text, word.box) for word in line.words or ()])
    ]
    return PageText(page.number, page.width, page.height, lines)


def _lines_of(text: str, box: Box, words: Words) -> list[TextLine]:
    """Divide a line into its words, if known, with the spaces after them; words of a bent line become lines themselves.

    A right-to-left line stays one piece in visual order, because PDF viewers reorder such text themselves.
    """
    if (shown := visual_order(text)) != text:
        return [(_flat(box), [(shown, 0.0, 1.0)])]
    tallest = max((_height(corners) for _, corners in words), default=0.0)
    middles = _middles_of(box, words, tallest)
    is_bent = bool(words) and 0.0 < _MIN_BEND * tallest < max(middles) - min(middles)
    known = _pieces_of(text, box, words, tallest if is_bent else math.dist(box[0], box[3]))
    pieces = _with_firm_hyphen(known or [(text, 0.0, 1.0)])
    if not (known and is_bent):
        return [(_flat(box), pieces)]
    parts = zip(pieces, middles, strict=True)
    return [(_part(box, piece, middle, tallest), [(piece[0], 0.0, 1.0)]) for piece, middle in parts]


def _height(corners: Box) -> float:
    return math.dist(corners[0], corners[3])


def _middles_of(box: Box, words: Words, tallest: float) -> list[float]:
    """Height of each word's centre above the line's lower side; for low words interpolated from their neighbours."""
    places = [sum(_sides_of(corners, box)) / 2 for _, corners in words]
    seen = [
        (place, _height_above(box, corners))
        for place, (_, corners) in zip(places, words, strict=True)
        if _height(corners) >= _MIN_HEIGHT * tallest
    ]
    seen.sort()
    known, middles = [place for place, _ in seen], [middle for _, middle in seen]
    return [float(middle) for middle in np.interp(places, known, middles)] if seen else []


def _height_above(line: Box, word: Box) -> float:
    (end_x, end_y), (start_x, start_y) = line[2], line[3]
    across, down = end_x - start_x, end_y - start_y
    above = sum((x - start_x) * down - (y - start_y) * across for x, y in word) / 4
    return above / (math.hypot(across, down) or 1.0)


def _part(line: Box, piece: Piece, middle: float, height: float) -> list[float]:
    """The box of a piece, `height` pixels high and centred `middle` pixels above the lower edge of its line."""
    (end_x, end_y), (start_x, start_y) = line[2], line[3]
    across, down = end_x - start_x, end_y - start_y
    length = math.hypot(across, down) or 1.0
    _, begin, end = piece
    corners = []
    for share, above in ((begin, 0.5), (end, 0.5), (end, -0.5), (begin, -0.5)):
        up = (middle + above * height) / length
        corners.append((start_x + share * across + up * down, start_y + share * down - up * across))
    return _flat(corners)


def _flat(box: Sequence[tuple[float, float]]) -> list[float]:
    return [float(number) for corner in box for number in corner]


def _with_firm_hyphen(pieces: list[Piece]) -> list[Piece]:
    """Replace a hyphen at the end of a line by U+2010.

    After an ASCII hyphen, poppler joins the next word in the file, which often belongs to another column.
    """
    text, begin, end = pieces[-1]
    return [*pieces[:-1], (f"{text[:-1]}\u2010", begin, end)] if _HYPHENATED.search(text) else pieces


def _pieces_of(text: str, box: Box, words: Words, height: float) -> list[Piece]:
    """Place the words along their line; empty if they are not the words of `text` in order."""
    begins = _begins_of([word for word, _ in words], text)
    sides = [_sides_of(corners, box) for _, corners in words]
    is_ordered = all(one < two for (one, _), (two, _) in pairwise(sides))
    if not begins or not is_ordered or any(end <= begin for begin, end in sides):
        return []
    gap = _MIN_GAP * height / (math.dist(box[3], box[2]) or 1.0)
    nexts = [begin for begin, _ in sides[1:]] + [math.inf]
    pieces = []
    for (word, _), at, stop, side, later in zip(words, begins, [*begins[1:], len(text)], sides, nexts, strict=True):
        end = _end_of(side, later, gap if stop > at + len(word) else 0.0)
        # Spaces after a word get the average width of the word's letters.
        pieces.append((text[at:stop], side[0], side[0] + (end - side[0]) * (stop - at) / len(word)))
    return pieces


def _end_of(side: tuple[float, float], later: float, gap: float) -> float:
    """Where a word ends: at least `gap` before the next word's start `later`, or exactly at `later` for gap 0."""
    begin, end = side
    if gap:
        return max(min(end, later - gap), (begin + end) / 2)
    return end if math.isinf(later) else later


def _begins_of(words: Sequence[str], text: str) -> list[int]:
    """The index in `text` of each word; empty if `text` contains anything but the words and white space."""
    begins, at = [], 0
    for word in words:
        begin = text.find(word, at)
        if begin < 0 or not word or text[at:begin].strip():
            return []
        begins.append(begin)
        at = begin + len(word)
    return begins if not text[at:].strip() else []


def _sides_of(corners: Box, line: Box) -> tuple[float, float]:
    (end_x, end_y), (start_x, start_y) = line[2], line[3]
    across, down = end_x - start_x, end_y - start_y
    length = (across * across + down * down) or 1.0
    end, begin = ((x - start_x) * across + (y - start_y) * down for x, y in corners[2:4])
    return begin / length, end / length
