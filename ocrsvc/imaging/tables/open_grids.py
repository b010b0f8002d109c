"""Grids of text without rules: runs of rows that leave the same gutters free, as columns, rows and spanning cells.

As in T. Kieninger, "Table structure recognition based on robust block segmentation" (1998), from the boxes of lines.
Where a gutter of a run of rows divides the page rather than a table, for beside it is running text or another table,
its sides are looked at apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Final

from ocrsvc.imaging.tables.text_grid import (
    LEAST_GUTTER,
    LEAST_ROWS,
    MOST_COLUMNS,
    Grid,
    Interval,
    Rows,
    TextBlock,
    borders_between,
    columns_of,
    in_columns,
    join_continued,
    page_gutters,
    rows_of,
    spans_of_rows,
)
from ocrsvc.records import Check

DEEPEST: Final = 6
ROW_GAP: Final = 2.5  # widest gap between two rows of a table, in line heights
MOST_SINGLES: Final = 2  # rows of one piece that follow each other within a table
ALIGNED: Final = 0.6  # of a column's pieces have their left, right or middle in one place
ALIGNED_HEIGHTS: Final = 0.6  # how far from it, in line heights
FILLED: Final = 0.4  # of a table's places have text


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of text, and where it leaves the paper blank, from minus to plus infinity."""

    lines: Sequence[int]
    blanks: Sequence[Interval]
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of a run, from top to bottom, and the row right above it, if there is one that is near."""

    rows: list[Sequence[int]]
    above: Sequence[int]


def find_open_grids(block: TextBlock, check: Check, deeper: int = DEEPEST) -> Iterator[Grid]:
    """The grids among lines of text without rules."""
    check()
    for run in _find_runs(block):
        columns = columns_of(block, run.rows)
        check()
        if len(columns) > MOST_COLUMNS:
            continue
        parts = _divided(block, run.rows, columns)
        if len(parts) > 1:
            for part in parts if deeper else ():
                yield from find_open_grids(block.part(part), check, deeper - 1)
        elif _is_table(block, run.rows, columns):
            yield _grid_of_rows(block, _with_heading(block, run, columns), columns)


def _find_runs(block: TextBlock) -> Iterator[_Run]:
    """The runs of a block, from top to bottom; each has LEAST_ROWS rows of several pieces at least."""
    rows = [_row(block, lines) for lines in rows_of(block.frames, block.lines)]
    begin = 0
    while begin < len(rows):
        end = _end_of_run(block, rows, begin)
        run = rows[begin:end]
        if sum(len(row.lines) > 1 for row in run) >= LEAST_ROWS:
            is_near = begin > 0 and _are_near(block, rows[begin - 1], rows[begin])
            yield _Run([row.lines for row in run], rows[begin - 1].lines if is_near else ())
            begin = end
        else:
            begin += 1


def _row(block: TextBlock, lines: Sequence[int]) -> _Row:
    rights = [-math.inf, *accumulate((block.frames[line][2] for line in lines), max)]
    lefts = [*(block.frames[line][0] for line in lines), math.inf]
    least = LEAST_GUTTER * block.line_height
    blanks = [(right, left) for right, left in zip(rights, lefts, strict=True) if left - right >= least]
    return _Row(lines, blanks, *block.frame(lines)[1::2])


def _are_near(block: TextBlock, one: _Row, other: _Row) -> bool:
    return other.top - one.bottom <= ROW_GAP * block.line_height


def _end_of_run(block: TextBlock, rows: Sequence[_Row], begin: int) -> int:
    """Behind the last row of the run that begins with this one; `begin` itself, if none does."""
    if len(rows[begin].lines) < 2:
        return begin
    blanks, end, singles = rows[begin].blanks, begin + 1, 0
    for number in range(begin + 1, len(rows)):
        row = rows[number]
        is_single = len(row.lines) == 1
        singles = singles + 1 if is_single else 0
        common = _common(block, blanks, row.blanks)
        if singles > MOST_SINGLES or not _are_near(block, rows[number - 1], row):
            break
        if len(common) >= len(blanks):
            blanks = common
        elif not is_single:
            break
        if not is_single:
            if number == begin + 1 and _begins_better(block, rows[number : number + 2], common):
                break
            end = number + 1
    return end


def _begins_better(block: TextBlock, rows: Sequence[_Row], common: Sequence[Interval]) -> bool:
    """Whether the first row has more gutters in common with the second than with those before it."""
    return len(rows) > 1 and len(_common(block, rows[0].blanks, rows[1].blanks)) > len(common)


def _common(block: TextBlock, some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Where both leave the paper blank."""
    found: list[Interval] = []
    at = 0
    for left, right in some:
        while at < len(others) and others[at][1] <= left:
            at += 1
        for other in others[at:]:
            if other[0] >= right:
                break
            both = max(left, other[0]), min(right, other[1])
            if both[1] - both[0] >= LEAST_GUTTER * block.line_height:
                found.append(both)
    return found


def _divided(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """The lines of a run of rows, divided where a gutter is one of the page."""
    cuts = page_gutters(block, rows, columns)
    parts: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for line in (line for row in rows for line in row):
        left, _, right, _ = block.frames[line]
        parts[sum(cut < (left + right) / 2 for cut in cuts)].append(line)
    return parts


def _is_table(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> bool:
    """Whether a run of rows is a table: several columns, mostly filled, each aligned in itself."""
    if len(columns) < 2 or sum(map(len, rows)) < FILLED * len(rows) * len(columns):
        return False
    return all(_is_aligned(block, lines) for lines in in_columns(block, rows, columns) if len(lines) >= LEAST_ROWS)


def _is_aligned(block: TextBlock, lines: Sequence[int]) -> bool:
    lefts, _, rights, _ = zip(*(block.frames[line] for line in lines), strict=True)
    middles = [(left + right) / 2 for left, right in zip(lefts, rights, strict=True)]
    for places in (lefts, rights, middles):
        usual = median(places)
        near = sum(abs(place - usual) <= ALIGNED_HEIGHTS * block.line_height for place in places)
        if near >= ALIGNED * len(lines):
            return True
    return False


def _with_heading(block: TextBlock, run: _Run, columns: Sequence[Interval]) -> Rows:
    """The rows of a run, and the row above it if its pieces are headings: several, each over columns of its own."""
    reached = [column for line in run.above for column in block.reached(columns, line)]
    is_heading = len(run.above) > 1 and len(reached) == len(set(reached)) > len(run.above)
    if not is_heading:
        return run.rows
    left, _, right, _ = block.frame(run.above)
    is_within = left > columns[0][0] - block.line_height and right < columns[-1][1] + block.line_height
    return [run.above, *run.rows] if is_within else run.rows


def _grid_of_rows(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> Grid:
    """The grid of some rows of text."""
    joined = join_continued(block, rows, columns)
    left, _, right, _ = block.frame([line for row in joined for line in row])
    heights = block.heights(joined)
    row_borders = borders_between(heights, heights[0][0], heights[-1][1])
    columns_borders = borders_between(columns, left, right)
    return Grid(tuple(row_borders), tuple(columns_borders), spans_of_rows(block, joined, columns))
