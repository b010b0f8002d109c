"""Where the characters of a line stand in its crop: the steps of its path say about where, the ink says exactly.

Between the middles of two characters that follow each other the crop is cut once: in the middle of the widest gap in
the ink where a space was read, and otherwise at a gap near the midpoint; where the ink has no gap, at its thinnest
column. A character is the ink between two cuts. A line costs a time linear in its pixels.

A column of pixels is one number here, whose bits are its rows; so the rows of any run of columns are their bitwise or.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.records import Pixels

Columns = NDArray[np.uint64]
"""(w,) the ink of each column: the bit 1 << row is set where that row has some."""

INKED: Final = 0.4
"""Of the line's strongest contrast with its ground, from which a pixel is ink: half, less what smoothing takes away."""

STRONG: Final = 0.98
"""The share of pixels with less contrast than the strongest; fewer than the others are specks."""

EDGE: Final = 0.2
"""Share of the crop's height at its top and at its bottom that may hold ink of the lines above and below."""

FAR_FROM_MIDPOINT: Final = 0.5
"""What a column of distance from the midpoint between two characters costs, in columns of distance from ink."""

LATE: Final = 0.2
"""Steps by which the model reports a character behind its middle: on the pages of benchmarks/words.py 0.16 for Chinese
characters, 0.21 for Latin letters and 0.29 for marks, with one in ten more than half a step away from that."""

CLEAR: Final = 4
"""Columns from ink that are as good as any more, where no space was read: a wider gap may be beside a narrow mark."""

HALF_CHARACTER: Final = 0.75
"""Of the crop's height, how far the first and the last character of a line reach out from their middles at most."""


@dataclass(frozen=True, slots=True, eq=False)
class CharacterPlaces:
    """Where the ink of a line's characters stands, as shares of the crop's width and height.

    Attributes:
        places: (N,) which of the path's characters these are: all but the spaces.
        left, right: (N,) where each begins and ends, along the line.
        top, bottom: (N,) where each begins and ends, across it.
        line_top, line_bottom: Where the line's ink begins and ends, across it.
    """

    places: NDArray[np.intp]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    top: NDArray[np.float64]
    bottom: NDArray[np.float64]
    line_top: float
    line_bottom: float


def place_characters(path: Path, ink: Columns, height: int) -> CharacterPlaces | None:
    """The places of all characters that are not spaces; None where there is none.

    Args:
        path: What was read of the crop.
        ink: Of the crop.
        height: Of the crop, in pixels; at most 64.
    """
    places = np.flatnonzero([not character.isspace() for character in path.characters])
    if not len(places):
        return None
    ink, width = _without_neighbours(ink, height), len(ink)
    step_px = width / path.steps
    middles = ((path.first[places] + path.last[places] + 1.0) / 2 - LATE) * step_px
    left, right = _sides(middles, np.diff(places) > 1, ink, HALF_CHARACTER * height, step_px)
    top, bottom = _rows(left, right, ink, height)
    line_top, line_bottom = top.min() / height, bottom.max() / height
    return CharacterPlaces(
        places, left / width, right / width, top / height, bottom / height, float(line_top), float(line_bottom)
    )


def ink_columns(crop: Pixels) -> Columns:
    """The pixels of a crop that differ from its ground, which is the shade of most of it.

    Args:
        crop: (h, w[, 3]) uint8, the straightened line; h is at most 64.
    """
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY) if crop.ndim == 3 else crop
    # Every third row tells the shades.
    counts = cv2.calcHist([gray[::3]], [0], None, [256], [0, 256]).ravel()
    ground = int(np.searchsorted(counts.cumsum(), counts.sum() / 2))
    contrast = np.abs(np.arange(256) - ground)
    strongest = np.searchsorted(np.bincount(contrast, counts).cumsum(), counts.sum() * STRONG)
    inked = np.asarray(cv2.LUT(gray, (contrast > INKED * strongest).astype(np.uint8)), np.uint8)
    packed = np.zeros((crop.shape[1], 8), np.uint8)
    packed[:, : -(-len(gray) // 8)] = np.packbits(inked, axis=0, bitorder="little").T
    return packed.view("<u8").ravel()


def _without_neighbours(ink: Columns, height: int) -> Columns:
    """The ink without what touches the crop's upper or lower edge and ends near it: that is of the next line."""
    rows = int(np.bitwise_or.reduce(ink))
    inked = np.array([rows >> row & 1 for row in range(height)], bool)
    near = round(height * EDGE)
    top, bottom = _neighbour_rows(inked[:near]), _neighbour_rows(inked[::-1][:near])
    own = (1 << (height - bottom)) - (1 << top)
    return ink & np.uint64(own)


def _neighbour_rows(inked: NDArray[np.bool_]) -> int:
    """How many rows from the edge are a neighbour's: those up to the last blank one, if the first has ink."""
    blank = np.flatnonzero(~inked)
    return int(blank[-1]) if len(blank) and inked[0] else 0


def _sides(
    middles: NDArray[np.floating], spaced: NDArray[np.bool_], ink: Columns, reach: float, step_px: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(N,) the first column of each character's ink, and the one after its last."""
    cuts, inked = _cuts(middles, spaced, ink), ink != 0
    first, last = max(0, int(middles[0] - reach)), min(len(ink), int(middles[-1] + reach) + 1)
    left, right = _trimmed(first, cuts, last, inked)
    empty = left == right
    if empty.any():
        # A narrow mark lay on its neighbour's side of the cut: let them share at the midpoint.
        moved = empty[1:] | empty[:-1]
        cuts = np.where(moved, ((middles[1:] + middles[:-1]) / 2).astype(np.intp), cuts)
        left, right = _trimmed(first, cuts, last, inked)
        empty = left == right
    begins, ends = (np.clip(np.rint(middles + side * step_px / 2), 0, len(ink)).astype(np.intp) for side in (-1, 1))
    return np.where(empty, begins, left), np.where(empty, np.maximum(ends, begins + 1), right)


def _cuts(middles: NDArray[np.floating], spaced: NDArray[np.bool_], ink: Columns) -> NDArray[np.intp]:
    """(N - 1,) the best column between each two middles.

    Args:
        middles: (N,) in columns, ascending.
        spaced: (N - 1,) whether a space was read between them.
        ink: Of the line.
    """
    starts = np.minimum(middles.astype(np.intp), len(ink) - 1)
    if len(starts) < 2:
        return starts[:0]
    sizes = np.diff(starts)
    columns = np.arange(starts[0], starts[-1])
    midpoints = np.repeat((middles[1:] + middles[:-1]) / 2, sizes)
    spaced = np.repeat(spaced, sizes)
    clearance = _clearance(ink)[columns]
    near = np.minimum(clearance, CLEAR) - FAR_FROM_MIDPOINT * np.abs(columns + 0.5 - midpoints)
    value = np.where(spaced, clearance, near)
    best = np.maximum.reduceat(value, starts[:-1] - starts[0])
    hits = np.flatnonzero(value == np.repeat(best, sizes))
    return cast("NDArray[np.intp]", columns[hits[np.searchsorted(hits, starts[:-1] - starts[0])]])


def _clearance(ink: Columns) -> NDArray[np.float64]:
    """(w,) columns to the nearest ink; on ink less than 0, by half a column for each inked row."""
    columns, width = np.arange(len(ink)), len(ink)
    inked = ink != 0
    before = np.maximum.accumulate(np.where(inked, columns, -width))
    after = np.minimum.accumulate(np.where(inked, columns, 2 * width)[::-1])[::-1]
    return np.where(inked, np.bitwise_count(ink) * -0.5, np.minimum(columns - before, after - columns))


def _trimmed(
    begin: int, cuts: NDArray[np.intp], end: int, inked: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first column with ink of each share between cuts, and the one after its last; the same where it has none."""
    filled = np.append(np.flatnonzero(inked), len(inked))
    first = np.searchsorted(filled, np.concatenate([[begin], cuts]))
    after = np.searchsorted(filled, np.concatenate([cuts, [end]]))
    return filled[first], np.where(first < after, filled[after - 1] + 1, filled[first])


def _rows(
    left: NDArray[np.intp], right: NDArray[np.intp], ink: Columns, height: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first row with ink of each, and the one after its last; those of all together where one has none."""
    ends = np.stack([left, right], axis=1).ravel()
    rows = np.bitwise_or.reduceat(np.append(ink, np.uint64(0)), ends)[::2]
    rows[rows == 0] = np.bitwise_or.reduce(rows) or np.uint64((1 << height) - 1)
    inked = (rows[:, None] >> np.arange(height, dtype=np.uint64) & np.uint64(1)).astype(bool)
    return inked.argmax(axis=1), height - inked[:, ::-1].argmax(axis=1)
