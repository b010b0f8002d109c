"""Rows and columns of text by their alignment: rows overlap vertically, columns are divided by whitespace.

Columns come from the projection of all rows onto the horizontal axis, as in the stream methods of Tabula and Camelot
(A. Nurminen, "Algorithmic extraction of data in tables in PDF documents", Tampere 2013).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

Frame = Sequence[float]
"""Left, top, right, bottom, in pixels of the levelled page."""

Interval = tuple[float, float]

SAME_ROW: Final = 0.5  # how far apart the middles of one row's lines are, in heights of the smaller
CROSSED: Final = 0.2  # of the rows may cross a gutter: headings over several columns
LEAST_GUTTER: Final = 0.4  # in line heights


def rows_of(frames: Sequence[Frame], lines: Sequence[int]) -> list[list[int]]:
    """The lines in rows from top to bottom, each from left to right."""
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


def columns_of(frames: Sequence[Frame], rows: Sequence[Sequence[int]], line_height: float) -> list[Interval]:
    """Left and right of each column that the rows have in common, from left to right.

    A gutter is where no more than CROSSED of the rows have text, and at least LEAST_GUTTER wide; what stands wholly in
    one is a sparse column.
    """
    spans = sorted((frames[line][0], frames[line][2]) for row in rows for line in row)
    columns = _merged(_covered(spans, int(CROSSED * len(rows))), LEAST_GUTTER * line_height)
    sparse = [span for span in spans if not reached_columns(columns, *span)]
    return _merged(sorted(columns + _merged(sparse, LEAST_GUTTER * line_height)), 0.0)


def reached_columns(columns: Sequence[Interval], left: float, right: float) -> range:
    """Which of the columns, that stand apart from left to right, reach into what lies from `left` to `right`."""
    return range(bisect_right(columns, left, key=itemgetter(1)), bisect_left(columns, right, key=itemgetter(0)))


def _covered(spans: Sequence[Interval], allowed: int) -> list[Interval]:
    """Where more than `allowed` of the spans lie."""
    events = sorted([(left, 1) for left, right in spans] + [(right, -1) for left, right in spans])
    covered: list[Interval] = []
    depth, begin = 0, 0.0
    for place, change in events:
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
