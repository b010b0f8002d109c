"""Where the characters of a line stand in its crop: the steps of its path say about where, the ink says exactly.

Between the middles of two characters that follow each other the crop is cut once: in the middle of the widest gap in
the ink where a space was read, and otherwise at a gap near the midpoint; where the ink has no gap, at its thinnest
column. A character is the ink between two cuts. A line costs a time linear in its pixels.

A column of pixels is one number here, whose bits are its rows; so the rows of any run of columns are their bitwise or.
Lines are laid side by side, with a column full of ink after each, and worked on together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.records import Pixels

Columns = NDArray[np.uint64]  # (w,) the ink of each column: the bit 1 << row is set where that row has some
INKED: Final = 0.4
"""Of the line's strongest contrast with its ground, from which a pixel is ink: half, less what smoothing takes away."""

STRONG: Final = 0.98  # the share of pixels with less contrast than the strongest; fewer than the others are specks
EDGE: Final = 0.2
"""Share of the crop's height at its top and at its bottom that may hold ink of the lines above and below."""

FAR_FROM_MIDPOINT: Final = 0.5
"""What a column of distance from the midpoint between two characters costs, in columns of distance from ink."""

LATE: Final = 0.2
"""Steps by which the model reports a character behind its middle: on the pages of benchmarks/words.py 0.16 for Chinese
characters, 0.21 for Latin letters and 0.29 for marks, with one in ten more than half a step away from that."""

CLEAR: Final = 4
"""Columns from ink that are as good as any more, where no space was read: a wider gap may be beside a narrow mark."""

EDGE_INK: Final = np.array([(1 << 64) - 1], np.uint64)  # the column after each line
HALF_CHARACTER: Final = 0.75
"""Of the crop's height, how far the first and the last character of a line reach out from their middles at most."""


@dataclass(frozen=True, slots=True, eq=False)
class CharacterPlaces:
    """Where the ink of a line's characters stands, as shares of the crop's width and height."""

    places: NDArray[np.intp]  # (N,) which of the path's characters these are: all but the spaces
    left: NDArray[np.float64]  # (N,) where each begins and ends, along the line
    right: NDArray[np.float64]
    top: NDArray[np.float64]  # (N,) where each begins and ends, across it
    bottom: NDArray[np.float64]
    line_top: float  # where the line's ink begins and ends, across it
    line_bottom: float


def place_characters(lines: Sequence[tuple[Path, Columns]], height: int) -> list[CharacterPlaces | None]:
    """The places of all characters that are not spaces; None for a line without any. Crops are at most 63 px high.

    `lines` is what was read of each crop, and its ink; some dozens at a time, which bounds the memory.
    """
    kept = [np.flatnonzero([not character.isspace() for character in path.characters]) for path, _ in lines]
    full = [(path, ink, places) for (path, ink), places in zip(lines, kept, strict=True) if len(places)]
    found = _place(full, height) if full else iter(())
    return [next(found) if len(places) else None for places in kept]


def ink_columns(crop: Pixels) -> Columns:
    """The pixels of a line's crop, (h <= 64, w[, 3]) uint8, that differ from its ground, the shade of most of it."""
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


def _place(lines: Sequence[tuple[Path, Columns, NDArray[np.intp]]], height: int) -> Iterator[CharacterPlaces]:
    """The places in lines that have characters, whose numbers are given."""
    widths, counts = np.array([(len(ink), len(places)) for _, ink, places in lines]).T
    starts, first = (np.cumsum(sizes) - sizes for sizes in (widths + 1, counts))
    ink = np.concatenate([part for _, columns, _ in lines for part in (columns, EDGE_INK)])
    ink = _without_neighbours(ink, starts, widths, height)
    step_px = np.repeat(widths / np.array([path.steps for path, _, _ in lines]), counts)
    steps = np.concatenate([(path.first[places] + path.last[places] + 1.0) / 2 for path, _, places in lines])
    middles = np.repeat(starts, counts) + (steps - LATE) * step_px
    spaced = np.diff(np.concatenate([places for _, _, places in lines])) > 1
    reach, last = HALF_CHARACTER * height, first + counts - 1
    begins = np.maximum(starts, (middles[first] - reach).astype(np.intp))
    ends = np.minimum(starts + widths, (middles[last] + reach).astype(np.intp) + 1)
    left, right = _sides(middles, spaced, ink, (first, begins, last, ends), step_px)
    rows = np.bitwise_or.reduceat(ink, np.stack([left, right], axis=1).ravel())[::2]
    whole = np.bitwise_or.reduceat(rows, first)
    whole[whole == 0] = (1 << height) - 1
    rows = np.where(rows == 0, np.repeat(whole, counts), rows)
    sides = np.stack([left, right], axis=1) - np.repeat(starts, counts)[:, None]
    across, line_across = _first_and_last(rows, height) / height, _first_and_last(whole, height) / height
    shares = np.concatenate([sides / np.repeat(widths, counts)[:, None], across], axis=1)
    for (_, _, places), part, (top, bottom) in zip(lines, np.split(shares, first[1:]), line_across, strict=True):
        left, right, upper, lower = part.T
        yield CharacterPlaces(places, left, right, upper, lower, float(top), float(bottom))


def _without_neighbours(ink: Columns, starts: NDArray[np.intp], widths: NDArray[np.intp], height: int) -> Columns:
    """The ink without what touches a crop's upper or lower edge and ends near it: that is of the next line."""
    rows = np.bitwise_or.reduceat(ink, np.stack([starts, starts + widths], axis=1).ravel())[::2]
    inked, near = _bits(rows, height), round(height * EDGE)
    top, bottom = _neighbour_rows(inked[:, :near]), _neighbour_rows(inked[:, : -near - 1 : -1])
    one = np.uint64(1)
    own = (one << (height - bottom).astype(np.uint64)) - (one << top.astype(np.uint64))
    ink &= np.repeat(own, widths + 1)
    ink[starts + widths] = EDGE_INK
    return ink


def _neighbour_rows(inked: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(L,) how many rows from the edge are a neighbour's: those up to the last blank one, if the first has ink."""
    blank = ~inked
    last = blank.shape[1] - 1 - blank[:, ::-1].argmax(axis=1)
    return np.where(inked[:, 0] & blank.any(axis=1), last, 0)


Bounds = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]
"""The first characters of lines, the columns where they may begin, the last ones, and where these may end."""


def _sides(
    middles: NDArray[np.floating],
    spaced: NDArray[np.bool_],
    ink: Columns,
    bounds: Bounds,
    step_px: NDArray[np.floating],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(N,) the first column of each character's ink, and the one after its last.

    `middles` (N,) ascend, in columns; `spaced` (N - 1,) says whether a space was read between them; a step has
    `step_px` (N,) columns.
    """
    filled = np.flatnonzero(ink)
    cuts = _cuts(middles, spaced, ink)
    left, right = _trimmed(cuts, bounds, filled)
    empty = left == right
    if empty.any():
        # A narrow mark lay on its neighbour's side of the cut: let them share at the midpoint.
        moved = empty[1:] | empty[:-1]
        cuts = np.where(moved, ((middles[1:] + middles[:-1]) / 2).astype(np.intp), cuts)
        left, right = _trimmed(cuts, bounds, filled)
        empty = left == right
    begins = np.maximum(np.rint(middles - step_px / 2), 0).astype(np.intp)
    ends = np.minimum(np.rint(middles + step_px / 2).astype(np.intp), len(ink) - 1)
    return np.where(empty, begins, left), np.where(empty, np.maximum(ends, begins + 1), right)


def _cuts(middles: NDArray[np.floating], spaced: NDArray[np.bool_], ink: Columns) -> NDArray[np.intp]:
    """(N - 1,) the best column between each two middles."""
    starts = middles.astype(np.intp)
    if len(starts) < 2:
        return starts[:0]
    sizes = np.diff(starts)
    columns = np.arange(starts[0], starts[-1])
    midpoints = np.repeat((middles[1:] + middles[:-1]) / 2, sizes)
    clearance = _clearance(ink)[columns]
    near = np.minimum(clearance, CLEAR) - FAR_FROM_MIDPOINT * np.abs(columns + 0.5 - midpoints)
    value = np.where(np.repeat(spaced, sizes), clearance, near)
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
    cuts: NDArray[np.intp], bounds: Bounds, filled: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first column with ink of each share between cuts, and the one after its last; the same where it has none."""
    first, line_begins, last, line_ends = bounds
    begins, ends = np.append(0, cuts), np.append(cuts, 0)
    begins[first], ends[last] = line_begins, line_ends
    at, after = np.searchsorted(filled, begins), np.searchsorted(filled, ends)
    left = filled[at]
    return left, np.where(at < after, filled[after - 1] + 1, left)


def _first_and_last(rows: Columns, height: int) -> NDArray[np.intp]:
    """(N, 2) the lowest bit of each, and the one after its highest."""
    inked = _bits(rows, height)
    return np.stack([inked.argmax(axis=1), height - inked[:, ::-1].argmax(axis=1)], axis=1)


def _bits(rows: Columns, height: int) -> NDArray[np.bool_]:
    """(N, height) whether each bit is set."""
    return (rows[:, None] >> np.arange(height, dtype=np.uint64) & np.uint64(1)).astype(bool)
