"""Puts the lines of a page into reading order: rows from top to bottom, columns of running text one after the other.

Rows come from vertical overlap relative to the boxes' own heights (a fixed number of pixels swaps words on small pages
and merges rows on large ones). Columns are found as in a recursive XY-cut (G. Nagy, S. Seth, 1984), but cut only where
both sides are running text, several long lines that fill their column: tables and receipts have gutters too, and are
read row by row. Lines that cross the gutter (titles) divide the columns into bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SAME_ROW = 0.5  # overlap, as a share of the smaller height
COLUMN_ROWS = 3
COLUMN_ASPECT = 6.0  # median length of a column's rows, in line heights
COLUMN_FILL = 0.6  # median length of a column's rows, as a share of the column's width
MOST_CROSSING = 0.35  # of the text, by length, may cross a gutter
GUTTER_HEIGHTS = 0.25  # how far right of a line's end, in line heights, a gutter may begin
DEEPEST = 4
MOST_GUTTERS = 200  # places tried for a gutter; a page of thousands of words must not hold the interpreter for seconds

Frames = NDArray[np.float32]
"""(N, 4) left, top, right, bottom of N lines, in pixels."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The lines on both sides of a gutter, and across it."""

    left: list[int]
    right: list[int]
    across: list[int]


def reading_order(quads: NDArray[np.float32]) -> list[int]:
    """Indices of N lines in reading order; see `reading_blocks`."""
    return [line for block in reading_blocks(quads) for line in block]


def reading_blocks(quads: NDArray[np.float32]) -> list[list[int]]:
    """Groups of lines that are read without leaving them (a column, a table, a heading), in reading order.

    Args:
        quads: (N, 4, 2) corners of level lines, in pixels, origin top left; clockwise from where reading starts.

    Returns:
        Indices of lines: blocks in reading order, and the lines of each in reading order. Every line is in one block.
    """
    if not len(quads):
        return []
    frames = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
    return [block for block in _order(frames, list(range(len(frames))), DEEPEST) if block]


def _order(frames: Frames, lines: list[int], deeper: int) -> list[list[int]]:
    cut = _best_cut(frames, lines) if deeper and len(lines) >= 2 * COLUMN_ROWS else None
    if cut is None or not _are_columns(frames, cut.left, cut.right):
        return [_row_by_row(frames, lines)]
    return _band_by_band(frames, cut, deeper)


def _band_by_band(frames: Frames, cut: _Cut, deeper: int) -> list[list[int]]:
    """Read the bands between the lines across: in each the left column, then the right one."""
    rows_across = _rows(frames, cut.across)
    limits = [-np.inf, *(float(_middle(frames, row)) for row in rows_across), np.inf]
    ordered: list[list[int]] = []
    for number, (above, below) in enumerate(pairwise(limits)):
        left, right = (_between(frames, side, above, below) for side in (cut.left, cut.right))
        if _are_columns(frames, left, right):
            ordered += _order(frames, left, deeper - 1) + _order(frames, right, deeper - 1)
        else:
            ordered.append(_row_by_row(frames, left + right))
        ordered += rows_across[number : number + 1]
    return ordered


def _best_cut(frames: Frames, lines: list[int]) -> _Cut | None:
    """The gutter that the least text crosses; of equals the widest. Tried just behind the ends of lines.

    None if each leaves too little on a side or too much across.
    """
    here = np.asarray(lines)
    lefts, rights = frames[here, 0], frames[here, 2]
    behind = GUTTER_HEIGHTS * float(np.median(frames[here, 3] - frames[here, 1]))
    ends = np.unique(np.round(rights))
    gutters = (ends[:: 1 + len(ends) // MOST_GUTTERS, None] + behind).astype(np.float32)
    left, beyond = rights <= gutters, lefts >= gutters
    across = ~(left | beyond)
    widths = (rights - lefts).astype(np.float64)
    shares = across @ widths / max(1.0, float(widths.sum()))
    gaps = np.where(beyond, lefts, np.inf).min(axis=1) - np.where(left, rights, -np.inf).max(axis=1)
    fewest = np.minimum(left.sum(axis=1), beyond.sum(axis=1))
    possible = np.flatnonzero((fewest >= COLUMN_ROWS) & (shares <= MOST_CROSSING)).tolist()
    if not possible:
        return None
    best = min(possible, key=lambda gutter: (round(float(shares[gutter]), 3), -float(gaps[gutter])))
    return _Cut(*(here[side[best]].tolist() for side in (left, beyond, across)))


def _are_columns(frames: Frames, left: list[int], right: list[int]) -> bool:
    return _is_column(frames, left) and _is_column(frames, right)


def _is_column(frames: Frames, lines: list[int]) -> bool:
    """Several rows, mostly long, that fill their column."""
    rows = _rows(frames, lines)
    if len(rows) < COLUMN_ROWS:
        return False
    length = float(np.median([_lengths(frames, row).sum() for row in rows]))
    height = float(np.median(frames[lines, 3] - frames[lines, 1]))
    width = float(frames[lines, 2].max() - frames[lines, 0].min())
    return length >= COLUMN_ASPECT * height and length >= COLUMN_FILL * width


def _row_by_row(frames: Frames, lines: list[int]) -> list[int]:
    return [line for row in _rows(frames, lines) for line in row]


def _rows(frames: Frames, lines: Sequence[int]) -> list[list[int]]:
    """Rows from top to bottom, each from left to right."""
    # Plain numbers: taken out of an array one by one, they would cost more than all that is done with them.
    frame_of = dict(zip(lines, frames[list(lines)].tolist(), strict=True))
    rows: list[list[int]] = []
    for line in sorted(lines, key=lambda line: frame_of[line][1] + frame_of[line][3]):
        if rows and _same_row(frame_of[rows[-1][-1]], frame_of[line]):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: frame_of[line][0]) for row in rows]


def _same_row(one: Sequence[float], other: Sequence[float]) -> bool:
    overlap = min(one[3], other[3]) - max(one[1], other[1])
    return overlap >= SAME_ROW * min(one[3] - one[1], other[3] - other[1])


def _between(frames: Frames, lines: list[int], above: float, below: float) -> list[int]:
    return [line for line in lines if above <= _middle(frames, [line]) < below]


def _middle(frames: Frames, row: Sequence[int]) -> float:
    return float(frames[row, 1].min() + frames[row, 3].max()) / 2


def _lengths(frames: Frames, lines: Sequence[int]) -> Frames:
    return frames[list(lines), 2] - frames[list(lines), 0]
