"""Derives rows and columns from the alignment of text, for the finders of grids with and without ruled lines.

Columns come from the projection of all rows onto the x axis, as in the stream methods of Tabula and Camelot (A.
Nurminen, "Algorithmic extraction of data in tables in PDF documents", Tampere 2013).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import Final

Frame = Sequence[float]  # left, top, right, bottom, in pixels of the deskewed page

Interval = tuple[float, float]
Rows = Sequence[Sequence[int]]  # lines of text in rows, from top to bottom, each from left to right

MIN_ROWS: Final = 3
SAME_ROW: Final = 0.5  # largest distance of the centres of a row's lines, as a share of the smallest line height
CROSSED: Final = 0.2  # largest share of the rows that cross a gutter, as headings over several columns do
MIN_GUTTER: Final = 0.4  # least width of a gutter, in line heights
LONG: Final = 8.0  # least median length of lines of running text, in line heights
FULL: Final = 0.8  # least median length of lines of running text, as a share of their column's width
PAGE_GUTTER: Final = 3.0  # least width of a gutter between two tables, in line heights
WIDER: Final = 1.3  # least width of a gutter between tables, in widths of the next widest, if rows do not match
MUCH_WIDER: Final = 2.5  # least width of a gutter between tables, in widths of the next widest, if rows match across it
PAIRED: Final = 0.7  # rows match across a gutter if at least this share of them has level text on both sides
LEVEL: Final = 0.25  # largest vertical distance, in line heights, of the centres of level text
WRAPPED: Final = 0.6  # a row closer to the row above than this share of the usual gap may continue it


@dataclass(frozen=True, slots=True)
class Span:
    """One cell of a grid: its first row and column, and the number of rows and columns that it spans."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Grid:
    """y of row borders and x of column borders in pixels of the deskewed page, and the cells, row by row."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    cells: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Lines of a deskewed page that may form tables; `frames` has the frames of all lines of the page."""

    frames: Sequence[Frame]
    lines: Sequence[int]
    line_height: float

    def part(self, lines: Sequence[int]) -> "TextBlock":
        """A block with only these lines."""
        return TextBlock(self.frames, lines, self.line_height)

    def frame(self, lines: Sequence[int]) -> tuple[float, float, float, float]:
        """The bounding frame of these lines: left, top, right, bottom."""
        lefts, tops, rights, bottoms = zip(*(self.frames[line] for line in lines), strict=True)
        return min(lefts), min(tops), max(rights), max(bottoms)

    def heights(self, rows: Rows) -> list[Interval]:
        """Top and bottom of each row."""
        return [(top, bottom) for _, top, _, bottom in map(self.frame, rows)]

    def reached(self, columns: Sequence[Interval], line: int) -> range:
        """Indices of the columns that the line with index `line` overlaps."""
        return reached_columns(columns, self.frames[line][0], self.frames[line][2])


def rows_of(frames: Sequence[Frame], lines: Sequence[int]) -> list[list[int]]:
    """Group lines into rows from the top, each sorted from left to right."""
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
    """Left and right of each column that most rows share, and of columns that few rows have between two of these."""
    spans = sorted((block.frames[line][0], block.frames[line][2]) for row in rows for line in row)
    least = MIN_GUTTER * block.line_height
    columns = _merged(_covered(spans, int(CROSSED * len(rows))), least)
    sparse = [span for span in spans if not reached_columns(columns, *span)]
    return _merged(sorted(columns + _merged(sparse, least)), 0.0)


def reached_columns(columns: Sequence[Interval], left: float, right: float) -> range:
    """Indices of the disjoint, sorted columns that overlap the interval from `left` to `right`."""
    return range(bisect_right(columns, left, key=itemgetter(1)), bisect_left(columns, right, key=itemgetter(0)))


def _covered(spans: Sequence[Interval], allowed: int) -> list[Interval]:
    """The intervals that more than `allowed` spans cover."""
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
    """Merge sorted spans that are less than `gap` apart."""
    merged: list[Interval] = []
    for left, right in spans:
        if merged and left - merged[-1][1] < gap:
            merged[-1] = (merged[-1][0], max(right, merged[-1][1]))
        else:
            merged.append((left, right))
    return merged


def borders_between(spans: Sequence[Interval], first: float, last: float) -> list[float]:
    """Borders around columns or rows `spans`: `first`, the middle of each gap, `last`."""
    return [first, *((one[1] + other[0]) / 2 for one, other in pairwise(spans)), last]


def spans_of_rows(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> tuple[Span, ...]:
    """The cells of rows, one per column; columns that one piece of text overlaps form one spanning cell."""
    spans = []
    for number, row in enumerate(rows):
        owners = list(range(len(columns)))
        # Sort from left to right: a piece over columns 1 and 2, then one over 2 and 3, must join all three.
        for line in sorted(row, key=lambda line: tuple(block.frames[line])):
            reached = block.reached(columns, line)
            for column in reached[1:]:
                owners[column] = owners[reached[0]]
        spans += [Span(number, first, 1, len(list(same))) for first, same in groupby(owners)]
    return tuple(spans)


def in_columns(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """Indices of the text pieces in each column, without pieces that overlap several columns."""
    by_column: list[list[int]] = [[] for _ in columns]
    for line in (line for row in rows for line in row):
        reached = block.reached(columns, line)
        if len(reached) == 1:
            by_column[reached[0]].append(line)
    return by_column


def is_running_text(block: TextBlock, lines: Sequence[int], column: Interval) -> bool:
    """Whether the lines form a paragraph: long lines that mostly fill their column."""
    # Rejoin the pieces into which a line was split at gaps: they have the same top and bottom.
    extents: dict[tuple[float, float], Interval] = {}
    for left, top, right, bottom in (block.frames[line] for line in lines):
        before = extents.get((top, bottom), (left, right))
        extents[top, bottom] = min(left, before[0]), max(right, before[1])
    if len(extents) < MIN_ROWS:
        return False
    length = median(right - left for left, right in extents.values())
    return length >= LONG * block.line_height and length >= FULL * (column[1] - column[0])


def page_gutters(
    block: TextBlock, rows: Rows, columns: Sequence[Interval], *, rules_cross: bool = False
) -> list[float]:
    """Centres of gutters that divide the page: beside running text or, if no rules cross them, between tables."""
    gutters = [(one[1], other[0]) for one, other in pairwise(columns)]
    running = list(map(partial(is_running_text, block), in_columns(block, rows, columns), columns))
    places = []
    widths = [right - left for left, right in gutters]
    for number, (left, right) in enumerate(gutters):
        beside = running[number : number + 2]
        is_paired = _are_paired(block, rows, right)
        # A gutter between two tables is much wider than all others, and other gutters lie on both sides of it.
        least = (MUCH_WIDER if is_paired else WIDER) * max(widths[:number] + widths[number + 1 :], default=math.inf)
        is_between = 0 < number < len(gutters) - 1 and not rules_cross
        is_wide = is_between and right - left >= max(PAGE_GUTTER * block.line_height, least)
        if all(beside) or (any(beside) and not is_paired) or is_wide:
            places.append((left + right) / 2)
    return places


def _are_paired(block: TextBlock, rows: Rows, right: float) -> bool:
    """Whether most rows have level text on both sides of the gutter with right side `right`."""
    paired = 0
    for row in rows:
        sides: tuple[list[float], list[float]] = [], []
        for left, top, _, bottom in (block.frames[line] for line in row):
            sides[left >= right].append((top + bottom) / 2)
        if all(sides):
            paired += abs(median(sides[0]) - median(sides[1])) <= LEVEL * block.line_height
    return paired >= PAIRED * len(rows)


def join_continued(block: TextBlock, rows: Rows, columns: Sequence[Interval]) -> list[list[int]]:
    """Join a row to the one above it if its first column is empty and the gap is smaller than usual."""
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
