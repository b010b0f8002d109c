"""Finds table grids by the alignment of text, without ruled lines or where they are incomplete.

Without rules, a table is a run of rows with common gutters, as in T. Kieninger, "Table structure recognition based on
robust block segmentation" (1998). At a gutter beside running text or another table, both sides are searched separately.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.tables.text_grid import (
    MIN_GUTTER,
    MIN_ROWS,
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
from ocrsvc.results import Check

MAX_COLUMNS: Final = 128  # more columns without rules are a pattern, and slow: lines are compared with all gutters
DEEPEST: Final = 6
ROW_GAP: Final = 2.5  # widest gap between two rows of a table, in line heights
MAX_SINGLES: Final = 2  # most consecutive rows with a single piece within a table
ALIGNED: Final = 0.6  # least share of a column's pieces with a common left side, right side or centre
ALIGNED_HEIGHTS: Final = 0.6  # largest distance, in line heights, of a side or centre that counts as common
FILLED: Final = 0.4  # least share of a table's cells that have text
SAME_EXTENT: Final = 1.0  # largest distance, in line heights, of the ends of a table's rules from each other
MIN_RULE: Final = 6.0  # least length of a rule across a table, in line heights
MAX_RULES: Final = 1000  # most rules examined per page; the longest are kept
MAX_LOOKS: Final = 16  # to limit the time: most stacks of rules examined per line of text, on average
FEW_BANDS: Final = 3  # if rules form more bands than head, body and foot, each band of under MIN_ROWS lines is one row
SEVERAL: Final = 0.5  # between two rules of a table, at least this share of the text rows has several pieces
FULL_COLUMNS: Final = 0.6  # a row of text is full if it has text in at least this share of the used columns
FULL_ROWS: Final = 0.6  # text rows between two rules are table rows if this share is full (FULL_COLUMNS)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of text, and the blank x intervals before, between and after its lines; the outer ones are infinite."""

    lines: Sequence[int]
    blanks: Sequence[Interval]
    top: float
    bottom: float


def find_open_grids(block: TextBlock, check: Check, deeper: int = DEEPEST) -> Iterator[Grid]:
    """Find tables without ruled lines in a block of text; `deeper` limits the recursion into parts of the block."""
    check()
    rows = [_row(block, lines) for lines in rows_of(block.frames, block.lines)]
    for begin, end in _find_runs(block, rows):
        run = [row.lines for row in rows[begin:end]]
        columns = columns_of(block, run)
        check()
        if len(columns) > MAX_COLUMNS:
            continue
        parts = _divided(block, run, columns)
        if len(parts) > 1:
            for part in parts if deeper else ():
                yield from find_open_grids(block.part(part), check, deeper - 1)
        elif _is_table(block, run, columns):
            if begin and _are_near(block, *rows[begin - 1 : begin + 1]):
                run = _with_heading(block, rows[begin - 1].lines, run, columns)
            joined = join_continued(block, run, columns)
            left, _, right, _ = block.frame([line for row in joined for line in row])
            rules = block.frame(joined[0])[1], block.frame(joined[-1])[3]
            yield _grid_of_rows(block, [joined], rules, columns, (left, right))


def _find_runs(block: TextBlock, rows: Sequence[_Row]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of rows with common gutters, in which at least MIN_ROWS rows have several pieces."""
    begin = 0
    while begin < len(rows):
        end = _end_of_run(block, rows, begin)
        if is_run := sum(len(row.lines) > 1 for row in rows[begin:end]) >= MIN_ROWS:
            yield begin, end
        begin = end if is_run else begin + 1


def _row(block: TextBlock, lines: Sequence[int]) -> _Row:
    rights = [-math.inf, *accumulate((block.frames[line][2] for line in lines), max)]
    lefts = [*(block.frames[line][0] for line in lines), math.inf]
    least = MIN_GUTTER * block.line_height
    blanks = [(right, left) for right, left in zip(rights, lefts, strict=True) if left - right >= least]
    return _Row(lines, blanks, *block.frame(lines)[1::2])


def _are_near(block: TextBlock, one: _Row, other: _Row) -> bool:
    return other.top - one.bottom <= ROW_GAP * block.line_height


def _end_of_run(block: TextBlock, rows: Sequence[_Row], begin: int) -> int:
    """Index after the last row of the run that begins with row `begin`; `begin` itself if there is no run."""
    if len(rows[begin].lines) < 2:
        return begin
    blanks, end, singles = rows[begin].blanks, begin + 1, 0
    for number in range(begin + 1, len(rows)):
        row = rows[number]
        is_single = len(row.lines) == 1
        singles = singles + 1 if is_single else 0
        common = _common(block, blanks, row.blanks)
        if singles > MAX_SINGLES or not _are_near(block, rows[number - 1], row):
            break
        if len(common) >= len(blanks):
            blanks = common
        elif not is_single:
            break
        if not is_single:
            # A first row that shares fewer gutters with the second than the third does is not part of the run.
            nexts = rows[number + 1 : number + 2] if number == begin + 1 else ()
            if any(len(_common(block, row.blanks, below.blanks)) > len(common) for below in nexts):
                break
            end = number + 1
    return end


def _common(block: TextBlock, some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The x intervals that are blank in both rows."""
    shared: list[Interval] = []
    at = 0
    for left, right in some:
        while at < len(others) and others[at][1] <= left:
            at += 1
        for other in others[at:]:
            if other[0] >= right:
                break
            both = max(left, other[0]), min(right, other[1])
            if both[1] - both[0] >= MIN_GUTTER * block.line_height:
                shared.append(both)
    return shared


def _divided(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """Divide the lines of a run of rows at gutters that divide the page rather than a table."""
    cuts = page_gutters(block, rows, columns)
    parts: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for line in (line for row in rows for line in row):
        left, _, right, _ = block.frames[line]
        parts[sum(cut < (left + right) / 2 for cut in cuts)].append(line)
    return parts


def _is_table(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> bool:
    """Whether a run of rows is a table: it has several columns, enough filled cells, and aligned columns."""
    if len(columns) < 2 or sum(map(len, rows)) < FILLED * len(rows) * len(columns):
        return False
    return all(_is_aligned(block, lines) for lines in in_columns(block, rows, columns) if len(lines) >= MIN_ROWS)


def _is_aligned(block: TextBlock, lines: Sequence[int]) -> bool:
    frames = np.array([block.frames[line] for line in lines])[:, ::2]
    places = np.column_stack([frames, frames.mean(axis=1)])
    near = np.abs(places - np.median(places, axis=0)) <= ALIGNED_HEIGHTS * block.line_height
    return bool((near.sum(axis=0) >= ALIGNED * len(lines)).any())


def _with_heading(
    block: TextBlock, above: Sequence[int], rows: list[Sequence[int]], columns: Sequence[Interval]
) -> list[Sequence[int]]:
    """Prepend the row `above` if its pieces are several headings, each over different columns."""
    reached = [column for line in above for column in block.reached(columns, line)]
    if not len(above) < len(reached) == len(set(reached)) or len(above) < 2:
        return rows
    left, _, right, _ = block.frame(above)
    is_within = left > columns[0][0] - block.line_height and right < columns[-1][1] + block.line_height
    return [above, *rows] if is_within else rows


def find_stacked_grids(block: TextBlock, segments: NDArray[np.int32], check: Check) -> Iterator[Grid]:
    """Find stacks of horizontal rules with equal ends and table rows between them; `complete` adds the cells."""
    frames = np.array([block.frames[line] for line in block.lines]).reshape(-1, 4)
    middles, left_looks = (frames[:, :2] + frames[:, 2:]) / 2, MAX_LOOKS * len(frames)
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
    """Add the rows and columns of the text to a grid of ruled lines; None for fewer than two columns, or too many."""
    sides = grid.columns[0], grid.columns[-1]
    bands = _bands(block, *sides, grid.rows)
    if len(grid.columns) > 2:
        parts = [_divided_rows(block, band, list(pairwise(grid.columns)), MIN_ROWS) for band in bands]
        return Grid(_row_borders(block, grid.rows, parts), grid.columns, _expanded(grid.cells, parts))
    rows = [row for band in bands for row in band]
    columns = columns_of(block, rows)
    if not 2 <= len(columns) <= MAX_COLUMNS or page_gutters(block, rows, columns, rules_cross=True):
        return None
    least = 2 if len(bands) <= FEW_BANDS else MIN_ROWS
    parts = [_divided_rows(block, band, columns, least) for band in bands]
    return _grid_of_rows(block, parts, grid.rows, columns, sides)


def _grid_of_rows(
    block: TextBlock, parts: Sequence[Rows], rules: Sequence[float], columns: Sequence[Interval], sides: Interval
) -> Grid:
    cells = spans_of_rows(block, [row for part in parts for row in part], columns)
    return Grid(_row_borders(block, rules, parts), tuple(borders_between(columns, *sides)), cells)


def _stacks(segments: NDArray[np.int32], line_height: float) -> Iterator[tuple[float, float, list[float]]]:
    """Yield stacks of rules with the same ends: left, right, and the y of each rule from the top."""
    long = segments[segments[:, 2] >= MIN_RULE * line_height]
    long = long[np.argsort(-long[:, 2], kind="stable")[:MAX_RULES]].astype(np.float64)
    near = SAME_EXTENT * line_height
    stacks: list[tuple[float, float, list[float]]] = []
    for left, top, width, height in long.tolist():
        for stack in stacks:
            if abs(stack[0] - left) <= near and abs(stack[1] - left - width) <= near:
                stack[2].append(top + height / 2)
                break
        else:
            stacks.append((left, left + width, [top + height / 2]))
    for left, right, places in stacks:
        apart = [place for before, place in pairwise([-np.inf, *sorted(places)]) if place - before > line_height / 2]
        if len(apart) > 1:
            yield left, right, apart


def _bands(block: TextBlock, left: float, right: float, places: Sequence[float]) -> list[Rows]:
    """The rows of text between neighbouring rules; `places` are the y of the rules."""
    bands: list[list[int]] = [[] for _ in places]
    for line in block.lines:
        frame = block.frames[line]
        if (
            left <= (frame[0] + frame[2]) / 2 <= right
            and places[0] < (middle := (frame[1] + frame[3]) / 2) <= places[-1]
        ):
            bands[bisect_left(places, middle) - 1].append(line)
    return [rows_of(block.frames, lines) for lines in bands[:-1]]


def _divided_rows(block: TextBlock, rows: Rows, columns: Sequence[Interval], least: int) -> Rows:
    """The table rows between two rules: one per text row if most have text in most columns, else a single one."""
    whole = [[line for row in rows for line in row]]
    by_column = in_columns(block, rows, columns)
    if len(rows) < least or any(map(partial(is_running_text, block), by_column, columns)):
        return whole
    used = sum(map(bool, by_column))
    full = sum(sum(map(bool, in_columns(block, [row], columns))) >= FULL_COLUMNS * used for row in rows)
    return join_continued(block, rows, columns) if used > 1 and full >= FULL_ROWS * len(rows) else whole


def _row_borders(block: TextBlock, rules: Sequence[float], parts: Sequence[Rows]) -> tuple[float, ...]:
    """The y of all row borders: the rules, and borders between text rows that no rule separates."""
    borders = [rules[0]]
    for (top, bottom), rows in zip(pairwise(rules), parts, strict=True):
        borders += borders_between(block.heights([row for row in rows if row]), top, bottom)[1:]
    return tuple(borders)


def _expanded(cells: Sequence[Span], parts: Sequence[Rows]) -> tuple[Span, ...]:
    """Convert cells from bands between ruled lines to table rows; `parts` lists the table rows of each band."""
    firsts = [0, *accumulate(map(len, parts))]
    expanded = []
    for cell in cells:
        first, last = firsts[cell.row], firsts[cell.row + cell.rows]
        rows = 1 if cell.rows == 1 else last - first
        expanded += [Span(row, cell.column, rows, cell.columns) for row in range(first, last, rows)]
    return tuple(sorted(expanded, key=lambda cell: (cell.row, cell.column)))
