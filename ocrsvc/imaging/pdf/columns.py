"""Parts lines where the page shows columns: at white that lines up over several rows, and at rules between cells."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ocrsvc.imaging.pdf.characters import Flags, Indices, Numbers
from ocrsvc.imaging.pdf.page_look import RuleFinder
from ocrsvc.imaging.pdf.runs import AFTER_BLANK, AFTER_GUESS, AFTER_NOTHING, IN_OBJECT, Level

# In ems.
_WORD: Final = 0.12  # the least white that may be a blank between words
_LETTERS: Final = 0.25  # white that may be between the letters of a word, where the file moves from one to the next
_LEAST: Final = 0.4
"""The least white between columns, where the file does not say by its blanks which white is between words."""
_LEAST_WITHOUT_BLANK: Final = 0.15  # the same where it does: between two words of a text it would have a blank
_SAME_ROW: Final = 0.3
_SAME_EDGE: Final = 0.2
_FURTHEST_ROW: Final = 3.5

_WIDER: Final = 1.6  # times the least white of its line, or what is usual on the page, is clearly wider
_USUAL: Final = (0.2, 0.3, 0.35)  # least, without any, most ems of a blank that is taken for usual
_USUAL_SHARE: Final = 0.2  # of all white is no wider
_HAS_BLANKS: Final = 0.2  # of all white within lines is of blanks in the file, where it writes blanks
_MOSTLY: Final = 0.75
_SPACED_OUT, _LEAST_SPACED_OUT = 0.6, 6
_LEAST_ROWS: Final = 3
_SURE_ROWS: Final = 5
"""Rows after which white with an edge is between columns, though other white of its line is as wide."""
_ROWS_WITHOUT_EDGE: Final = 6
"""Rows after which white lines up though neither side of it does, as beside columns whose cells are centred."""
_MOST_CHANNELS: Final = 64
_MOST_PASSED: Final = 8  # rows beside a channel, until it ends

# What stands before the items of a list, which belongs to their lines: bullets, numbers and letters with a sign.
_MARKER_CHARACTERS: Final = 7
_MARKER: Final = re.compile(
    r"(?P<list>\W|[(\[]?(?:\d{1,3}|\w{1,4})[.):\]]{1,2}|(?:\d{1,2}\.){1,3}\d{0,2})|(?P<number>\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class _Whites:
    """White between characters that stand beside each other in a row, by row and from left to right.

    It is between `before` and `after`, places in their level; `left`, `right` and the font's size are pixels; `line` is
    that before it. It is parted if another line begins after it; it may part, as white between two columns, if it lines
    up with other white; it is wide if it clearly is wider than others of its line, ruled if a rule stands in it. The
    text behind it, up to the next white that may part, ends at `end`, and is a number if it is mostly digits.
    """

    before: Indices
    after: Indices
    left: Numbers
    right: Numbers
    em: Numbers
    row: Indices
    line: Indices
    is_parted: Flags
    may_part: Flags
    is_wide: Flags
    is_ruled: Flags
    end: Numbers
    is_number: Flags


@dataclass(slots=True)
class _Channel:
    """White that goes down through rows: between these sides, in these whites; rows beside it since the last one."""

    left: float
    right: float
    base: float
    whites: list[int] = field(default_factory=list)
    passed: int = 0


def part_columns(level: Level, line_of: Indices, codes: Sequence[int], find_ruled: RuleFinder | None) -> Indices | None:
    """The cell that each character is in; cells do not reach over lines. None where all lines stay as they are.

    `line_of` (C,) is the line of each, from 0 on, or -1; without `find_ruled` the page is not drawn.
    """
    order, rows, bases = _in_rows(level, line_of)
    if not len(order):
        return None
    whites = _find_whites(level, line_of, codes, (order, rows), find_ruled)
    if not (whites.may_part.any() or whites.is_ruled.any()):
        return None
    channels = [channel for channel in _find_channels(whites, rows, bases, order, level) if _is_column(channel, whites)]
    cut = _cuts(channels, whites, line_of, codes) | whites.is_ruled
    return _cells(whites, np.flatnonzero(cut), line_of, order) if cut.any() else None


def _in_rows(level: Level, line_of: Indices) -> tuple[Indices, Indices, Numbers]:
    """The characters of lines from the top and the left, the row of each, and the baselines of rows."""
    chosen = np.flatnonzero(line_of >= 0)
    if not len(chosen):
        return chosen, chosen, np.zeros(0)
    numbers = line_of[chosen]
    count = np.maximum(np.bincount(numbers), 1)
    base, em = np.bincount(numbers, level.base[chosen]) / count, np.bincount(numbers, level.em[chosen]) / count
    downwards = np.argsort(base, kind="stable")
    is_next = np.diff(base[downwards]) > _SAME_ROW * np.minimum(em[downwards][1:], em[downwards][:-1])
    row_of = np.empty(len(base), np.intp)
    row_of[downwards] = np.concatenate([[0], np.cumsum(is_next)])
    first = np.concatenate([[True], is_next])
    rows = row_of[numbers]
    order = np.lexsort((level.left[chosen], rows))
    return chosen[order], rows[order], base[downwards][first]


def _find_whites(
    level: Level,
    line_of: Indices,
    codes: Sequence[int],
    in_rows: tuple[Indices, Indices],
    find_ruled: RuleFinder | None,
) -> _Whites:
    order, rows = in_rows
    # What is Chinese takes its square, whatever of it is ink; so commas below each other are no column.
    right, left = level.taken[order], np.where(level.is_cjk, np.minimum(level.left, level.start), level.left)[order]
    far = 2 * float(np.abs(right).max(initial=0) + np.abs(left).max(initial=0)) + 1
    reach = np.maximum.accumulate(right + far * rows) - far * rows
    em = (level.em[order][1:] + level.em[order][:-1]) / 2
    size = left[1:] - reach[:-1]
    before, after = order[:-1], order[1:]
    is_next = np.abs(after - before) == 1
    blank = np.where(is_next, level.spaces[np.maximum(before, after)], AFTER_BLANK)
    # Letters of a word may have as much white between them.
    is_word = (blank >= AFTER_GUESS) | ((blank == AFTER_NOTHING) & (size > _LETTERS * em))
    at = np.flatnonzero((rows[1:] == rows[:-1]) & (size > _WORD * em) & is_word)
    before, after, em, size, blank = before[at], after[at], em[at], size[at] / em[at], blank[at]
    lines = line_of[before]
    is_parted = lines != line_of[after]
    fixed = _fixed_fonts(level)
    least = np.full(int(line_of.max()) + 1, np.inf)
    np.minimum.at(least, lines[~is_parted], size[~is_parted])
    has_blanks = np.count_nonzero(blank == IN_OBJECT) > _HAS_BLANKS * np.count_nonzero(~is_parted)
    usual = _usual_blank(size, blank, is_parted)
    is_wide = size >= _WIDER * least[lines]
    may_part = size >= max(_LEAST, _WIDER * usual)
    if has_blanks:
        without = (blank < AFTER_BLANK) & (size >= _LEAST_WITHOUT_BLANK)
        may_part, is_wide = may_part | without, is_wide | without
    is_ruled, is_step = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_)
    if find_ruled is not None:
        asked = np.flatnonzero(~is_parted & (blank < IN_OBJECT))
        sides = reach[at][asked], left[at + 1][asked]
        is_ruled[asked], is_step[asked] = find_ruled(*sides, level.base[before[asked]], em[asked])
    # A ground of its own may be a cell's, or a word's that is marked: other rows have to say which.
    may_part, is_wide = may_part | is_step, is_wide | is_step
    may_part &= ~is_parted & (blank < IN_OBJECT) & ~(fixed[before] & fixed[after])
    may_part &= ~_spaced_out(line_of, lines[~is_parted])[lines] & ~is_ruled
    end, is_number = _behind(at, np.flatnonzero(may_part | is_parted | is_ruled), reach, rows, codes, order)
    places = before, after, reach[at], left[at + 1], em, rows[at], lines
    return _Whites(*places, is_parted, may_part, is_wide, is_ruled, end, is_number)


def _behind(
    at: Indices, usable: Indices, reach: Numbers, rows: Indices, codes: Sequence[int], order: Indices
) -> tuple[Numbers, Flags]:
    """Where what stands behind each white ends, and whether it is a number; of what is usable alone, else nothing.

    `at` (G,) is the place, in their order, of the character before each white; `reach` (C,) how far the characters up
    to each place reach in their row.
    """
    last = np.searchsorted(rows, rows[at[usable]], side="right") - 1
    last = np.minimum(last, np.append(at[usable][1:], len(order)))
    shown = np.asarray(codes, np.int64)[order]
    digits = np.concatenate([[0], np.cumsum((shown >= 0x30) & (shown <= 0x39))])
    end, is_number = np.zeros(len(at)), np.zeros(len(at), np.bool_)
    end[usable] = reach[last]
    first = at[usable] + 1
    is_number[usable] = 2 * (digits[last + 1] - digits[first]) >= last + 1 - first
    return end, is_number


def _usual_blank(size: Numbers, blank: Indices, is_parted: Flags) -> float:
    """Ems of white between the words of the page."""
    least, without, most = _USUAL
    known = size[blank == IN_OBJECT] if (blank == IN_OBJECT).any() else size[~is_parted]
    return float(np.clip(np.quantile(known, _USUAL_SHARE), least, most)) if len(known) else without


def _spaced_out(line_of: Indices, lines: Indices) -> Flags:
    """Which lines have white between most of their letters, as headings have; of the lines of all whites in one."""
    letters = np.bincount(line_of[line_of >= 0])
    spaced = np.bincount(lines, minlength=len(letters)) >= np.maximum(_SPACED_OUT * letters, _LEAST_SPACED_OUT)
    return np.asarray(spaced, np.bool_)


def _fixed_fonts(level: Level) -> Flags:
    """(C,) which characters are of a font whose characters all have one width: there everything lines up."""
    letter = level.is_letter
    step = (level.start[1:] - level.start[:-1]) / level.em[1:]
    pairs = np.flatnonzero(letter[1:] & letter[:-1] & (level.spaces[1:] < AFTER_GUESS) & (step > 0) & (step < 1))
    _, fonts = np.unique(level.font, return_inverse=True)
    count = int(fonts.max(initial=0)) + 1
    of = fonts[pairs]
    total = np.bincount(of, minlength=count)
    mean = np.bincount(of, step[pairs], count) / np.maximum(total, 1)
    same = np.bincount(of, np.abs(step[pairs] - mean[of]) < 0.02, count)
    fixed = (total >= _ROWS_WITHOUT_EDGE) & (same >= 0.9 * total)
    return np.asarray(fixed[fonts], np.bool_)


def _find_channels(whites: _Whites, rows: Indices, bases: Numbers, order: Indices, level: Level) -> list[_Channel]:
    usable = np.flatnonzero(whites.may_part | whites.is_parted | whites.is_ruled)
    ends = np.searchsorted(whites.row[usable], np.arange(len(bases) + 1))
    starts = np.searchsorted(rows, np.arange(len(bases) + 1))
    left, right, em = whites.left.tolist(), whites.right.tolist(), whites.em.tolist()
    reach = np.maximum.reduceat(level.right[order], starts[:-1]).tolist()
    begin = level.left[order][starts[:-1]].tolist()
    active, ended = list[_Channel](), list[_Channel]()
    for row, base in enumerate(bases.tolist()):
        some = usable[ends[row] : ends[row + 1]].tolist()
        rights = [right[one] for one in some]
        taken, kept = set[int](), list[_Channel]()
        for channel in active:
            at = bisect_right(rights, channel.left)
            one = some[at] if at < len(some) else -1
            least = _LEAST_WITHOUT_BLANK * em[one]
            if one >= 0 and min(right[one], channel.right) - max(left[one], channel.left) >= least:
                if base - channel.base <= _FURTHEST_ROW * em[one]:
                    channel.left, channel.right = max(channel.left, left[one]), min(channel.right, right[one])
                    channel.base, channel.passed = base, 0
                    channel.whites.append(one)
                    taken.add(one)
                    kept.append(channel)
                    continue
            elif not begin[row] < (channel.left + channel.right) / 2 < reach[row] and channel.passed < _MOST_PASSED:
                channel.passed += 1
                kept.append(channel)
                continue
            ended.append(channel)
        active = kept
        new = [one for one in some if one not in taken][: _MOST_CHANNELS - len(active)]
        active += [_Channel(left[one], right[one], base, [one]) for one in new]
    return ended + active


def _is_column(channel: _Channel, whites: _Whites) -> bool:
    if len(channel.whites) < _LEAST_ROWS or not whites.may_part[channel.whites].any():
        return False
    return len(channel.whites) >= _ROWS_WITHOUT_EDGE or _has_edge(channel, whites)


def _has_edge(channel: _Channel, whites: _Whites) -> bool:
    """Whether what stands before it ends at one place, or what stands behind it begins, or numbers end, at one."""
    near = _SAME_EDGE * float(np.median(whites.em[channel.whites]))
    sides = [whites.left[channel.whites], whites.right[channel.whites]]
    if whites.is_number[channel.whites].mean() >= _MOSTLY:
        sides.append(whites.end[channel.whites])
    return any(np.count_nonzero(np.abs(side - np.median(side)) <= near) >= _MOSTLY * len(side) for side in sides)


def _cuts(channels: Sequence[_Channel], whites: _Whites, line_of: Indices, codes: Sequence[int]) -> Flags:
    cut = np.zeros(len(whites.row), np.bool_)
    numbered, is_sure = np.zeros_like(cut), np.zeros_like(cut)
    is_apart = np.zeros(len(line_of), np.bool_)
    is_apart[whites.after[whites.may_part | whites.is_ruled]] = True
    for channel in channels:
        some = [one for one in channel.whites if whites.may_part[one]]
        begins = [_beginning(line_of, codes, is_apart, int(whites.before[one])) for one in some]
        markers = list(filter(None, map(_MARKER.fullmatch, begins)))
        if sum(marker["list"] is not None for marker in markers) >= _MOSTLY * len(some):
            continue
        is_numbers = len(markers) >= _MOSTLY * len(some)
        (numbered if is_numbers else cut)[some] = True
        is_sure[some] |= len(channel.whites) >= _SURE_ROWS and _has_edge(channel, whites)
    # Numbers stand before a list's items, and a program's lines, too; in tables they are not the only column.
    in_table = np.zeros(int(whites.row.max()) + 1, np.bool_)
    in_table[whites.row[cut]] = True
    cut |= numbered & in_table[whites.row]
    # Where all white of a line is alike it is a justified one, unless there are columns at all of it.
    rest = np.bincount(whites.line[~(cut | whites.is_parted | whites.is_ruled)], minlength=len(line_of))
    return np.asarray(cut & (whites.is_wide | is_sure | (rest[whites.line] == 0)), np.bool_)


def _beginning(line_of: Indices, codes: Sequence[int], is_apart: Flags, last: int) -> str:
    """What a line begins with, up to this character before some white; "" if that is long, or has white in it."""
    line, first = line_of[last], last
    while first > 0 and last - first < _MARKER_CHARACTERS and line_of[first - 1] == line:
        first -= 1
    if last - first >= _MARKER_CHARACTERS or is_apart[first + 1 : last + 1].any():
        return ""
    return "".join(chr(code) if code <= 0x10FFFF else " " for code in codes[first : last + 1])


def _cells(whites: _Whites, cuts: Indices, line_of: Indices, order: Indices) -> Indices:
    """(C,) the cell of each character: as many as there are lines and cuts."""
    is_first = np.zeros(len(line_of), np.int64)
    is_first[whites.after[cuts]] = 1
    by_line = order[np.argsort(line_of[order], kind="stable")]
    lines = line_of[by_line]
    begins = np.concatenate([[1], np.diff(lines) != 0]) | is_first[by_line]
    cells = np.full(len(line_of), -1, np.intp)
    cells[by_line] = np.cumsum(begins) - 1
    return cells
