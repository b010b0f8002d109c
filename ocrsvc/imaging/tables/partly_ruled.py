"""Tables that are ruled in part: columns that no rule divides, several rows between two rules, rules above each other.

What rules leave open is decided by the alignment of the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.tables.text_grid import (
    LEAST_ROWS,
    MOST_COLUMNS,
    Grid,
    Interval,
    Rows,
    Span,
    TextBlock,
    borders_between,
    columns_of,
    in_columns,
    is_running_text,
    join_continued,
    page_gutters,
    rows_of,
    spans_of_rows,
)
from ocrsvc.records import Check

SAME_EXTENT: Final = 1.0  # how far apart the ends of rules of one table are, in line heights
LEAST_RULE: Final = 6.0  # length of a rule across a table, in line heights
MOST_RULES: Final = 1000  # on a page, the longest first
MOST_LOOKS: Final = 16
"""Times the lines of a page that all stacks together are looked at: those of one extent seldom lie in many others."""
FEW_BANDS: Final = 3  # heading, body and footer; between more rules is one row, unless it shows three
SEVERAL: Final = 0.5  # of the rows between two rules of a table have several pieces
FULL_COLUMNS: Final = 0.6  # of the columns in use are filled in a full row
FULL_ROWS: Final = 0.6  # of the rows between two rules are full, if they are rows of the table


def find_stacked_grids(block: TextBlock, segments: NDArray[np.int32], check: Check) -> Iterator[Grid]:
    """Grids, without cells, of horizontal rules of one extent above each other, with rows of a table between all.

    `segments` are (N, 4) left, top, width, height of rules.
    """
    frames = np.array([block.frames[line] for line in block.lines]).reshape(-1, 4)
    middles, left_looks = (frames[:, :2] + frames[:, 2:]) / 2, MOST_LOOKS * len(frames)
    for left, right, places in _stacks(segments, block.line_height):
        check()
        inside = ((middles >= (left, places[0])) & (middles <= (right, places[-1]))).all(axis=1)
        lines = np.asarray(block.lines)[inside].tolist()
        left_looks -= len(lines)
        if left_looks < 0:
            return
        bands = _bands(block.part(lines), left, right, places)
        full = [sum(len(row) > 1 for row in band) >= max(1.0, SEVERAL * len(band)) for band in bands]
        begin = 0
        for end in range(len(bands) + 1):
            is_heading = 0 < end < len(bands) - 1 and len(bands[end]) <= 1 and full[end - 1] and full[end + 1]
            if end < len(bands) and (full[end] or is_heading):
                continue
            if end > begin:
                yield Grid(tuple(places[begin : end + 1]), (left, right), ())
            begin = end + 1


def complete(block: TextBlock, grid: Grid) -> Grid | None:
    """A grid of rules with the rows and columns that the text in it shows besides; None if these are too few."""
    bands = _bands(block, grid.columns[0], grid.columns[-1], grid.rows)
    if len(grid.columns) > 2:
        parts = [_divided_rows(block, band, list(pairwise(grid.columns)), LEAST_ROWS) for band in bands]
        return Grid(_row_borders(block, grid.rows, parts), grid.columns, _expanded(grid.cells, parts))
    rows = [row for band in bands for row in band]
    columns = columns_of(block, rows)
    if not 2 <= len(columns) <= MOST_COLUMNS or page_gutters(block, rows, columns, rules_cross=True):
        return None
    least = 2 if len(bands) <= FEW_BANDS else LEAST_ROWS
    parts = [_divided_rows(block, band, columns, least) for band in bands]
    cells = spans_of_rows(block, [row for band in parts for row in band], columns)
    borders = borders_between(columns, grid.columns[0], grid.columns[-1])
    return Grid(_row_borders(block, grid.rows, parts), tuple(borders), cells)


def _stacks(segments: NDArray[np.int32], line_height: float) -> Iterator[tuple[float, float, list[float]]]:
    """Left, right and the places, from the top, of rules that begin and end at the same places."""
    long = segments[segments[:, 2] >= LEAST_RULE * line_height]
    long = long[np.argsort(-long[:, 2], kind="stable")[:MOST_RULES]].astype(np.float64)
    near = SAME_EXTENT * line_height
    stacks: list[tuple[float, float, list[float]]] = []
    for left, top, width, height in long.tolist():
        for one in stacks:
            if abs(one[0] - left) <= near and abs(one[1] - left - width) <= near:
                one[2].append(top + height / 2)
                break
        else:
            stacks.append((left, left + width, [top + height / 2]))
    for left, right, places in stacks:
        apart = [place for before, place in pairwise([-np.inf, *sorted(places)]) if place - before > line_height / 2]
        if len(apart) > 1:
            yield left, right, apart


def _bands(block: TextBlock, left: float, right: float, places: Sequence[float]) -> list[Rows]:
    """The rows of text between each two of the places, from left to right."""
    found: list[list[int]] = [[] for _ in range(len(places) - 1)]
    for line in block.lines:
        frame = block.frames[line]
        band = bisect_left(places, (frame[1] + frame[3]) / 2) - 1
        if 0 <= band < len(found) and left <= (frame[0] + frame[2]) / 2 <= right:
            found[band].append(line)
    return [rows_of(block.frames, lines) for lines in found]


def _divided_rows(block: TextBlock, rows: Rows, columns: Sequence[Interval], least: int) -> Rows:
    """The rows of the table between two rules: those of the text if enough of them fill most columns, else one."""
    whole = [[line for row in rows for line in row]]
    by_column = in_columns(block, rows, columns)
    if len(rows) < least or any(map(partial(is_running_text, block), by_column, columns)):
        return whole
    used = sum(map(bool, by_column))
    full = sum(sum(map(bool, in_columns(block, [row], columns))) >= FULL_COLUMNS * used for row in rows)
    return join_continued(block, rows, columns) if used > 1 and full >= FULL_ROWS * len(rows) else whole


def _row_borders(block: TextBlock, rules: Sequence[float], parts: Sequence[Rows]) -> tuple[float, ...]:
    """The rules, and the borders between the rows that lie between two of them."""
    borders = [rules[0]]
    for (top, bottom), rows in zip(pairwise(rules), parts, strict=True):
        borders += borders_between(block.heights([row for row in rows if row]), top, bottom)[1:]
    return tuple(borders)


def _expanded(cells: Sequence[Span], parts: Sequence[Rows]) -> tuple[Span, ...]:
    """The cells, those that lie between two rules once for each of the rows there."""
    firsts = [0, *accumulate(map(len, parts))]
    expanded = []
    for cell in cells:
        first, last = firsts[cell.row], firsts[cell.row + cell.rows]
        if cell.rows == 1:
            expanded += [Span(row, cell.column, 1, cell.columns) for row in range(first, last)]
        else:
            expanded.append(Span(first, cell.column, last - first, cell.columns))
    return tuple(sorted(expanded, key=lambda cell: (cell.row, cell.column)))
