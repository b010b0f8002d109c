"""Divides lines of text where wide gaps in their ink are: detectors take neighbouring cells for one line.

A piece is part of a line, as wide as its ink, for boxes of detectors reach beyond it and touch each other. Pieces of
running text do no harm: they align with nothing, and those that end up in one cell are put together again.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.tables.ruled_grids import Mask
from ocrsvc.imaging.tables.text_grid import Frame, Interval
from ocrsvc.imaging.text_direction import runs_from_right_to_left

LEAST_GAP: Final = 0.6  # in heights of the line, or of an ordinary one; blanks between words are half of that
TALLEST: Final = 4.0  # in line heights; what is taller is one piece
EDGE: Final = 0.2  # of a line's height at its top and bottom, where ink may be another line's
MOST_PIECES: Final = 8000
"""Of a page; where lines come apart into more, they are hatched ground rather than text, and none is divided."""
SNAP: Final = 3  # characters within which a blank is the place to divide a text


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a line: which, from which of its characters on and up to which, and where it stands."""

    line: int
    begin: int
    end: int
    frame: Frame


def divide_lines(texts: Sequence[str], frames: NDArray[np.float32], ink: Mask, line_height: float) -> list[Piece]:
    """The pieces of all lines, in their order, by their (N, 4) frames and the ink of the page without its rules."""
    pieces: list[Piece] = []
    for number, (text, frame) in enumerate(zip(texts, frames.tolist(), strict=True)):
        pieces += _pieces(number, text, frame, _parts(frame, ink, line_height))
        if len(pieces) > MOST_PIECES:
            whole = enumerate(zip(texts, frames.tolist(), strict=True))
            return [Piece(number, 0, len(text), frame) for number, (text, frame) in whole if text]
    return pieces


def join_pieces(pieces: Sequence[Piece], texts: Sequence[str]) -> str:
    """The text of pieces of one row, from left to right; between those of different lines stands a blank."""
    if len(pieces) > 1 and runs_from_right_to_left("".join(texts[one.line][one.begin : one.end] for one in pieces)):
        pieces = pieces[::-1]
    joined, end = "", (-1, 0)
    for piece in pieces:
        blank = "" if not joined or end == (piece.line, piece.begin) else " "
        joined += blank + texts[piece.line][piece.begin : piece.end]
        end = piece.line, piece.end
    return joined.strip()


def _parts(frame: Frame, ink: Mask, line_height: float) -> list[Interval]:
    """Left and right of each stretch of ink of a line; the frame's own, where that cannot be seen."""
    left, top, right, bottom = (max(0, round(place)) for place in frame)
    height = bottom - top
    if not 0 < height <= TALLEST * line_height or height > right - left:
        return [(frame[0], frame[2])]
    edge = round(EDGE * height)
    inked = np.flatnonzero(ink[top + edge : bottom - edge, left:right].any(axis=0))
    if not len(inked):
        return [(frame[0], frame[2])]
    gaps = np.flatnonzero(np.diff(inked) > LEAST_GAP * max(height, line_height))
    begins, ends = inked[np.concatenate([[0], gaps + 1])], inked[np.concatenate([gaps, [-1]])]
    return [(left + begin, left + end + 1.0) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _pieces(line: int, text: str, frame: Frame, parts: Sequence[Interval]) -> Iterator[Piece]:
    _, top, _, bottom = frame
    if len(parts) > 1 and runs_from_right_to_left(text):
        parts = parts[::-1]
    for (left, right), (begin, end) in zip(parts, pairwise([0, *_cuts(text, parts), len(text)]), strict=True):
        if begin < end:
            yield Piece(line, begin, end, (left, top, right, bottom))


def _cuts(text: str, parts: Sequence[Interval]) -> list[int]:
    """Before which character each part but the first begins: at blanks, if there are as many; else by the widths."""
    blanks = [place + 1 for place, character in enumerate(text) if character == " "]
    if len(blanks) == len(parts) - 1:
        return blanks
    weights = [2.0 if unicodedata.east_asian_width(character) in "WF" else 1.0 for character in text]
    reached = [0.0, *accumulate(weights)]
    inked = [0.0, *accumulate(right - left for left, right in parts)]
    cuts: list[int] = []
    for share in (part / inked[-1] for part in inked[1:-1]):
        place = bisect_left(reached, share * reached[-1] - 0.5)
        after = bisect_left(blanks, place)
        near = [blank for blank in blanks[max(0, after - 1) : after + 1] if abs(blank - place) <= SNAP]
        place = min(near, key=lambda blank: abs(blank - place)) if near else place
        cuts.append(max(place, cuts[-1] if cuts else 0))
    return cuts
