"""Runs of rows of text that leave the same gutters free: what a table without rules is made of.

As in T. Kieninger, "Table structure recognition based on robust block segmentation" (1998), from the boxes of lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ocrsvc.imaging.tables.text_grid import LEAST_GUTTER, Frame, Interval, rows_of

LEAST_ROWS: Final = 3
ROW_GAP: Final = 2.5  # widest gap between two rows of a table, in line heights
MOST_SINGLES: Final = 2  # rows of one piece that follow each other within a table


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some lines of a levelled page, in which tables are looked for.

    Attributes:
        frames: Of all lines of the page.
        lines: Those that are looked at.
        line_height: Pixels of an ordinary line.
    """

    frames: Sequence[Frame]
    lines: Sequence[int]
    line_height: float

    def part(self, lines: Sequence[int]) -> TextBlock:
        """Some of the lines."""
        return TextBlock(self.frames, lines, self.line_height)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of text, and where it leaves the paper blank, from minus to plus infinity."""

    lines: Sequence[int]
    blanks: Sequence[Interval]
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of a run, from top to bottom, and the row right above it, if there is one that is near."""

    rows: list[Sequence[int]]
    above: Sequence[int]


def find_runs(block: TextBlock) -> Iterator[Run]:
    """The runs of a block, from top to bottom; each has LEAST_ROWS rows of several pieces at least."""
    rows = [_row(block, lines) for lines in rows_of(block.frames, block.lines)]
    begin = 0
    while begin < len(rows):
        end = _end_of_run(block, rows, begin)
        run = rows[begin:end]
        if sum(len(row.lines) > 1 for row in run) >= LEAST_ROWS:
            is_near = begin > 0 and _are_near(block, rows[begin - 1], rows[begin])
            yield Run([row.lines for row in run], rows[begin - 1].lines if is_near else ())
            begin = end
        else:
            begin += 1


def _row(block: TextBlock, lines: Sequence[int]) -> _Row:
    frames = [block.frames[line] for line in lines]
    rights = [-math.inf, *accumulate((frame[2] for frame in frames), max)]
    lefts = [*(frame[0] for frame in frames), math.inf]
    least = LEAST_GUTTER * block.line_height
    blanks = [(right, left) for right, left in zip(rights, lefts, strict=True) if left - right >= least]
    return _Row(lines, blanks, min(frame[1] for frame in frames), max(frame[3] for frame in frames))


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
            if number == begin + 1 and _begins_better(block, rows[number:], common):
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
