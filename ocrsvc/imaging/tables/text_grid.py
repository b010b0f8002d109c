"""Text in rows and columns, by its alignment: what the finders of grids, ruled or not, have in common.

Rows overlap vertically, columns are divided by whitespace. Columns come from the projection of all rows onto the
horizontal axis, as in the stream methods of Tabula and Camelot (A. Nurminen, "Algorithmic extraction of data in tables
in PDF documents", Tampere 2013).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import Final

Frame = Sequence[float]
"""Left, top, right, bottom, in pixels of the levelled page."""

Interval = tuple[float, float]
Rows = Sequence[Sequence[int]]
"""Lines of text in rows, from top to bottom, each from left to right."""

LEAST_ROWS: Final = 3
SAME_ROW: Final = 0.5  # how far apart the middles of one row's lines are, in heights of the smaller
CROSSED: Final = 0.2  # of the rows may cross a gutter: headings over several columns
LEAST_GUTTER: Final = 0.4  # in line heights
LONG: Final = 8.0  # median length of lines of running text, in line heights
FULL: Final = 0.8  # of a column's width is the median length of its lines, if it is running text
PAGE_GUTTER: Final = 3.0  # least width of a gutter between two tables, in line heights
WIDER: Final = 1.3  # times as wide as any other gutter, if rows beside it do not pair
MUCH_WIDER: Final = 2.5  # and if they do
PAIRED: Final = 0.7  # of the rows go on at the other side of a gutter within a table
LEVEL: Final = 0.25  # how far apart their middles are then, in line heights
WRAPPED: Final = 0.6  # of the usual gap between rows is above a row that goes on with the one before


@dataclass(frozen=True, slots=True)
class Span:
    """One cell of a grid: its first row and column, and how many of each it takes."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Borders of rows and columns in pixels of the levelled page, and the cells between them, row by row."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    cells: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some lines of a levelled page, in which tables are looked for; `frames` are those of all its lines."""

    frames: Sequence[Frame]
    lines: Sequence[int]
    line_height: float

    def part(self, lines: Sequence[int]) -> TextBlock:
        """Some of the lines."""
        return TextBlock(self.frames, lines, self.line_height)

    def frame(self, lines: Sequence[int]) -> tuple[float, float, float, float]:
        """The frame around some lines."""
        lefts, tops, rights, bottoms = zip(*(self.frames[line] for line in lines), strict=True)
        return min(lefts), min(tops), max(rights), max(bottoms)

    def heights(self, rows: Rows) -> list[Interval]:
        """Top and bottom of each row."""
        return [(top, bottom) for _, top, _, bottom in map(self.frame, rows)]

    def reached(self, columns: Sequence[Interval], line: int) -> range:
        """Which columns a line reaches into."""
        return reached_columns(columns, self.frames[line][0], self.frames[line][2])


def rows_of(frames: Sequence[Frame], lines: Sequence[int]) -> list[list[int]]:
    """The lines in rows."""
    rows: list[list[int]] = []
    middle = height = 0.0
    for line in sorted(lines, key=lambda line: frames[line][1] + frames[line][3]):
        _, top, _, bottom = frames[line]
        if rows and abs((top + bottom) / 2 - middle) < SAME_ROW * min(height, bottom - top):
            rows[-1].append(line)
            middle += ((top + bottom) / 2 - middle) / len(rows[-1])
            height = min(height, bottom - top)
        else:
            rows.append([line])
            middle, height = (top + bottom) / 2, bottom - top
    return [sorted(row, key=lambda line: frames[line][0]) for row in rows]


def columns_of(block: TextBlock, rows: Rows) -> list[Interval]:
    """Left and right of each column that the rows have in common, from left to right.

    A gutter is where no more than CROSSED of the rows have text, and at least LEAST_GUTTER wide; what stands wholly in
    one is a sparse column.
    """
    spans = sorted((block.frames[line][0], block.frames[line][2]) for row in rows for line in row)
    least = LEAST_GUTTER * block.line_height
    columns = _merged(_covered(spans, int(CROSSED * len(rows))), least)
    sparse = [span for span in spans if not reached_columns(columns, *span)]
    return _merged(sorted(columns + _merged(sparse, least)), 0.0)


def reached_columns(columns: Sequence[Interval], left: float, right: float) -> range:
    """Which of the columns, that stand apart from left to right, reach into what lies from `left` to `right`."""
    return range(bisect_right(columns, left, key=itemgetter(1)), bisect_left(columns, right, key=itemgetter(0)))


def _covered(spans: Sequence[Interval], allowed: int) -> list[Interval]:
    """Where more than `allowed` of the spans lie."""
    covered: list[Interval] = []
    depth, begin = 0, 0.0
    for place, change in sorted([(left, 1) for left, _ in spans] + [(right, -1) for _, right in spans]):
        before, depth = depth, depth + change
        if before == allowed < depth:
            begin = place
        elif depth == allowed < before:
            covered.append((begin, place))
    return covered


def _merged(spans: Sequence[Interval], gap: float) -> list[Interval]:
    """Sorted spans, those nearer to each other than `gap` made one."""
    merged: list[Interval] = []
    for left, right in spans:
        if merged and left - merged[-1][1] < gap:
            merged[-1] = (merged[-1][0], max(right, merged[-1][1]))
        else:
            merged.append((left, right))
    return merged


def borders_between(spans: Sequence[Interval], first: float, last: float) -> list[float]:
    """Borders of columns or rows that stand at `spans`: `first`, the middles between them, `last`."""
    return [first, *((one[1] + other[0]) / 2 for one, other in pairwise(spans)), last]


def spans_of_rows(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> tuple[Span, ...]:
    """The cells of rows: one for each column, and one for columns that a piece of text reaches over."""
    return tuple(span for number, row in enumerate(rows) for span in _spans_of_row(block, number, row, columns))


def _spans_of_row(block: TextBlock, number: int, row: Sequence[int], columns: Sequence[Interval]) -> Iterator[Span]:
    owners = list(range(len(columns)))
    # From left to right, so that what joins pieces that join columns joins them all.
    for line in sorted(row, key=lambda line: tuple(block.frames[line])):
        reached = block.reached(columns, line)
        for column in reached[1:]:
            owners[column] = owners[reached[0]]
    for first, same in groupby(owners):
        yield Span(number, first, 1, len(list(same)))


def in_columns(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """The pieces of each column; those that reach over several are in none."""
    found: list[list[int]] = [[] for _ in columns]
    for line in (line for row in rows for line in row):
        reached = block.reached(columns, line)
        if len(reached) == 1:
            found[reached[0]].append(line)
    return found


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


def page_gutters(
    block: TextBlock, rows: Rows, columns: Sequence[Interval], *, rules_cross: bool = False
) -> list[float]:
    """Where gutters divide the page rather than a table: beside running text and, if no rules cross, between tables."""
    gutters = [(one[1], other[0]) for one, other in pairwise(columns)]
    running = list(map(partial(is_running_text, block), in_columns(block, rows, columns), columns))
    found = []
    for number, (left, right) in enumerate(gutters):
        beside = running[number : number + 2]
        is_paired = _are_paired(block, rows, right)
        is_wide = not rules_cross and _is_wide(block, gutters, number, is_paired=is_paired)
        if all(beside) or (any(beside) and not is_paired) or is_wide:
            found.append((left + right) / 2)
    return found


def _are_paired(block: TextBlock, rows: Rows, right: float) -> bool:
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


def join_continued(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """The rows, those that only go on with text of the row before joined to it.

    Such a row has nothing in the first column, and is nearer to the one before than rows usually are.
    """
    heights = block.heights(rows)
    gaps = [below[0] - above[1] for above, below in pairwise(heights)]
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
