"""Grids of text that no rules divide, on bare paper or between two rules: its columns, rows and spanning cells.

Where a gutter of a run of rows divides the page rather than a table, for beside it is running text or another table,
its sides are looked at apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import Final

from ocrsvc.imaging.tables.row_runs import LEAST_ROWS, Run, TextBlock, find_runs
from ocrsvc.imaging.tables.ruled_grids import Grid, Span
from ocrsvc.imaging.tables.text_grid import Frame, Interval, borders_between, columns_of, reached_columns
from ocrsvc.records import Check

DEEPEST: Final = 6
MOST_COLUMNS: Final = 128
"""Of a table that is aligned alone; what has more is a pattern, and each line is compared with each gutter."""
LONG: Final = 8.0  # median length of lines of running text, in line heights
FULL: Final = 0.8  # of a column's width is the median length of its lines, if it is running text
PAGE_GUTTER: Final = 3.0  # least width of a gutter between two tables, in line heights
WIDER: Final = 1.3  # times as wide as any other gutter, if rows beside it do not pair
MUCH_WIDER: Final = 2.5  # and if they do
PAIRED: Final = 0.7  # of the rows go on at the other side of a gutter within a table
LEVEL: Final = 0.25  # how far apart their middles are then, in line heights
ALIGNED: Final = 0.6  # of a column's pieces have their left, right or middle in one place
ALIGNED_HEIGHTS: Final = 0.6  # how far from it, in line heights
FILLED: Final = 0.4  # of a table's places have text
WRAPPED: Final = 0.6  # of the usual gap between rows is above a row that goes on with the one before


def find_open_grids(block: TextBlock, check: Check, deeper: int = DEEPEST) -> Iterator[Grid]:
    """The grids among lines of text without rules."""
    check()
    for run in find_runs(block):
        columns = columns_of(block.frames, run.rows, block.line_height)
        check()
        if len(columns) > MOST_COLUMNS:
            continue
        parts = _divided(block, run, columns)
        if len(parts) > 1:
            for part in parts if deeper else ():
                yield from find_open_grids(block.part(part), check, deeper - 1)
        elif _is_table(block, run.rows, columns):
            yield grid_of_rows(block, _with_heading(block, run, columns), columns)


def grid_of_rows(block: TextBlock, rows: Sequence[Sequence[int]], columns: Sequence[Interval]) -> Grid:
    """The grid of some rows of text; a piece that reaches over several columns is one cell."""
    joined = join_continued(block, rows, columns)
    heights = [
        (min(block.frames[line][1] for line in row), max(block.frames[line][3] for line in row)) for row in joined
    ]
    cells = tuple(
        cell
        for number, row in enumerate(joined)
        for cell in spans_of_row(number, [block.frames[line] for line in row], columns)
    )
    row_borders = borders_between(heights, heights[0][0], heights[-1][1])
    frames = [block.frames[line] for row in joined for line in row]
    left, right = min(frame[0] for frame in frames), max(frame[2] for frame in frames)
    return Grid(tuple(row_borders), tuple(borders_between(columns, left, right)), cells)


def spans_of_row(row: int, pieces: Sequence[Frame], columns: Sequence[Interval]) -> Iterator[Span]:
    """The cells of one row: one for each column, and one for columns that a piece reaches over."""
    owners = list(range(len(columns)))
    # From left to right, so that what joins pieces that join columns joins them all.
    for left, _, right, _ in sorted(tuple(piece) for piece in pieces):
        reached = reached_columns(columns, left, right)
        for number in reached[1:]:
            owners[number] = owners[reached[0]]
    for first, same in groupby(owners):
        yield Span(row, first, 1, len(list(same)))


def is_running_text(block: TextBlock, lines: Sequence[int], column: Interval) -> bool:
    """Whether the lines are those of a paragraph: long, and mostly as long as their column is wide."""
    extents: dict[tuple[float, float], Interval] = {}
    for left, top, right, bottom in (block.frames[line] for line in lines):
        # Pieces of one line have its height.
        before = extents.get((top, bottom), (left, right))
        extents[top, bottom] = min(left, before[0]), max(right, before[1])
    if len(extents) < LEAST_ROWS:
        return False
    length = median(right - left for left, right in extents.values())
    return length >= LONG * block.line_height and length >= FULL * (column[1] - column[0])


def in_columns(block: TextBlock, rows: Sequence[Sequence[int]], columns: Sequence[Interval]) -> list[list[int]]:
    """The pieces of each column; those that reach over several are in none."""
    found: list[list[int]] = [[] for _ in columns]
    for line in (line for row in rows for line in row):
        left, _, right, _ = block.frames[line]
        reached = reached_columns(columns, left, right)
        if len(reached) == 1:
            found[reached[0]].append(line)
    return found


def page_gutters(
    block: TextBlock, rows: Sequence[Sequence[int]], columns: Sequence[Interval], *, rules_cross: bool = False
) -> list[float]:
    """Where gutters divide the page rather than a table: beside running text and, if no rules cross, between tables."""
    gutters = [(one[1], other[0]) for one, other in pairwise(columns)]
    pairs = zip(in_columns(block, rows, columns), columns, strict=True)
    running = [is_running_text(block, lines, column) for lines, column in pairs]
    found = []
    for number, (left, right) in enumerate(gutters):
        beside = running[number : number + 2]
        is_paired = _are_paired(block, rows, right)
        is_wide = not rules_cross and _is_wide(block, gutters, number, is_paired=is_paired)
        if all(beside) or (any(beside) and not is_paired) or is_wide:
            found.append((left + right) / 2)
    return found


def _divided(block: TextBlock, run: Run, columns: Sequence[Interval]) -> list[list[int]]:
    """The lines of a run, divided where a gutter is one of the page."""
    cuts = page_gutters(block, run.rows, columns)
    parts: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for line in (line for row in run.rows for line in row):
        left, _, right, _ = block.frames[line]
        parts[sum(cut < (left + right) / 2 for cut in cuts)].append(line)
    return parts


def _are_paired(block: TextBlock, rows: Sequence[Sequence[int]], right: float) -> bool:
    """Whether most rows go on behind the gutter that ends at `right`, level with what is before it."""
    paired = 0
    for row in rows:
        middles = [(block.frames[line][0] >= right, sum(block.frames[line][1::2]) / 2) for line in row]
        before, behind = ([middle for is_behind, middle in middles if is_behind == side] for side in (False, True))
        if before and behind:
            paired += abs(median(before) - median(behind)) <= LEVEL * block.line_height
    return paired >= PAIRED * len(rows)


def _is_wide(block: TextBlock, gutters: Sequence[Interval], number: int, *, is_paired: bool) -> bool:
    """Whether a gutter is much wider than all others, and has some of them at each side."""
    if not 0 < number < len(gutters) - 1:
        return False
    widths = [right - left for left, right in gutters]
    widest = max(widths[:number] + widths[number + 1 :])
    return widths[number] >= max(PAGE_GUTTER * block.line_height, (MUCH_WIDER if is_paired else WIDER) * widest)


def _is_table(block: TextBlock, rows: Sequence[Sequence[int]], columns: Sequence[Interval]) -> bool:
    """Whether a run of rows is a table: several columns, mostly filled, each aligned in itself."""
    if len(columns) < 2 or sum(map(len, rows)) < FILLED * len(rows) * len(columns):
        return False
    return all(_is_aligned(block, lines) for lines in in_columns(block, rows, columns) if len(lines) >= LEAST_ROWS)


def _is_aligned(block: TextBlock, lines: Sequence[int]) -> bool:
    frames = [block.frames[line] for line in lines]
    for places in (
        [frame[0] for frame in frames],
        [frame[2] for frame in frames],
        [(frame[0] + frame[2]) / 2 for frame in frames],
    ):
        usual = median(places)
        near = sum(abs(place - usual) <= ALIGNED_HEIGHTS * block.line_height for place in places)
        if near >= ALIGNED * len(lines):
            return True
    return False


def _with_heading(block: TextBlock, run: Run, columns: Sequence[Interval]) -> list[Sequence[int]]:
    """The rows of a run, and the row above it if its pieces are headings: several, each over columns of its own."""
    reached = [
        number
        for line in run.above
        for number in reached_columns(columns, block.frames[line][0], block.frames[line][2])
    ]
    is_heading = len(run.above) > 1 and len(reached) == len(set(reached)) > len(run.above)
    for line in run.above:
        left, _, right, _ = block.frames[line]
        is_heading &= left > columns[0][0] - block.line_height and right < columns[-1][1] + block.line_height
    return [run.above, *run.rows] if is_heading else run.rows


def join_continued(block: TextBlock, rows: Sequence[Sequence[int]], columns: Sequence[Interval]) -> list[list[int]]:
    """The rows, those that only go on with text of the row before joined to it.

    Such a row has nothing in the first column, and is nearer to the one before than rows usually are.
    """
    tops = [min(block.frames[line][1] for line in row) for row in rows]
    bottoms = [max(block.frames[line][3] for line in row) for row in rows]
    gaps = [top - bottom for bottom, top in zip(bottoms, tops[1:], strict=False)]
    begins = [block.frames[row[0]][0] < columns[0][1] for row in rows]
    whole = [gap for gap, begin in zip(gaps, begins[1:], strict=True) if begin]
    nearest = WRAPPED * median(whole) if whole else 0.0
    joined: list[list[int]] = []
    for row, begin, gap in zip(rows, begins, [0.0, *gaps], strict=True):
        if joined and not begin and gap < nearest:
            joined[-1] += row
        else:
            joined.append(list(row))
    return joined
