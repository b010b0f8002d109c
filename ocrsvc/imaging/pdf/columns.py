"""Splits lines into columns: at gaps that line up over several rows, and at ruled lines between cells."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ocrsvc.imaging.pdf.characters import Flags, Indices, Numbers
from ocrsvc.imaging.pdf.page_look import RuleFinder
from ocrsvc.imaging.pdf.runs import AFTER_BLANK, AFTER_GUESS, AFTER_NOTHING, IN_OBJECT, Level

# The constants up to _FURTHEST_ROW are distances in ems.
_WORD: Final = 0.12  # narrowest gap between words, in ems
_LETTERS: Final = 0.25  # widest gap, in ems, between letters of a word that the file positions one by one
_LEAST: Final = 0.4  # narrowest gap, in ems, between columns in files without space characters
_MIN_WITHOUT_BLANK: Final = 0.15  # narrowest gap, in ems, between columns where a file with spaces has none
_SAME_ROW: Final = 0.3
_SAME_EDGE: Final = 0.2
_FURTHEST_ROW: Final = 3.5

_WIDER: Final = 1.6  # a gap this many times its line's narrowest gap, or the page's usual space, is clearly wider
_USUAL: Final = (0.2, 0.3, 0.35)  # usual word space in ems: least, default, most
_USUAL_SHARE: Final = 0.2  # this quantile of the gaps is the usual word space
_HAS_BLANKS: Final = 0.2  # a file "with space characters" has them in at least this share of the gaps within lines
_MOSTLY: Final = 0.75
_SPACED_OUT, _MIN_SPACED_OUT = 0.6, 6
_MIN_ROWS: Final = 3
# Aligned gaps in this many rows, with text aligned beside them, separate columns even in lines of equally wide gaps.
_SURE_ROWS: Final = 5
_ROWS_WITHOUT_EDGE: Final = 6  # aligned gaps in this many rows separate columns without aligned text: centred cells
_MAX_CHANNELS: Final = 64
_MAX_PASSED: Final = 8  # a series of aligned gaps ends after this many successive rows too short to reach it

# Longest list marker (bullet; number or letter with punctuation): list markers are not split off as a column.
_MARKER_CHARACTERS: Final = 7
_MARKER: Final = re.compile(
    r"(?P<list>\W|[(\[]?(?:\d{1,3}|\w{1,4})[.):\]]{1,2}|(?:\d{1,2}\.){1,3}\d{0,2})|(?P<number>\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class _Whites:
    """The gaps between successive characters of rows, as arrays; lengths are in pixels."""

    before: Indices  # the character before the gap
    after: Indices  # the character after it
    left: Numbers
    right: Numbers
    em: Numbers
    row: Indices
    line: Indices  # the line of the character before the gap
    is_parted: Flags  # another line begins after the gap
    may_part: Flags  # the gap separates columns if it lines up with gaps of other rows
    is_wide: Flags  # clearly wider than other gaps of its line
    is_ruled: Flags  # a ruled line stands in the gap
    end: Numbers  # right end of the text between this gap and the next that may separate columns
    is_number: Flags  # whether that text is mostly digits


@dataclass(slots=True)
class _Channel:
    """Aligned gaps of successive rows, which may separate two columns; `left` to `right` is common to all of them."""

    left: float
    right: float
    base: float  # baseline of the last gap's row
    whites: list[int]  # indices of the gaps
    passed: int = 0  # rows without such a gap since the last one


def part_columns(level: Level, line_of: Indices, codes: Sequence[int], find_ruled: RuleFinder | None) -> Indices | None:
    """Split lines into cells: (C,) the number of each character's cell, or None if no line is split.

    `line_of` (C,) is each character's line from 0, or -1; `find_ruled` is None for a page that is not drawn.
    """
    if not (line_of >= 0).any():
        return None
    order, rows, bases = _in_rows(level, line_of)
    whites = _find_whites(level, line_of, codes, (order, rows), find_ruled)
    if not (whites.may_part.any() or whites.is_ruled.any()):
        return None
    channels = [channel for channel in _find_channels(whites, rows, bases, order, level) if _is_column(channel, whites)]
    cut = _cuts(channels, whites, line_of, codes) | whites.is_ruled
    return _cells(whites, np.flatnonzero(cut), line_of, order) if cut.any() else None


def _in_rows(level: Level, line_of: Indices) -> tuple[Indices, Indices, Numbers]:
    """Indices of the characters in lines, sorted by row and left side; their rows; and each row's baseline."""
    chosen = np.flatnonzero(line_of >= 0)
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
    # Count a Chinese character as wide as its em square: the blank part of a comma's square is no gap.
    right, left = level.taken[order], np.where(level.is_cjk, np.minimum(level.left, level.start), level.left)[order]
    far = 2 * float(np.abs(right).max(initial=0) + np.abs(left).max(initial=0)) + 1
    reach = np.maximum.accumulate(right + far * rows) - far * rows
    em = (level.em[order][1:] + level.em[order][:-1]) / 2
    size = left[1:] - reach[:-1]
    before, after = order[:-1], order[1:]
    is_next = np.abs(after - before) == 1
    blank = np.where(is_next, level.spaces[np.maximum(before, after)], AFTER_BLANK)
    # If a file positions letters one by one without spaces, only gaps wider than _LETTERS separate words.
    is_word = (blank >= AFTER_GUESS) | ((blank == AFTER_NOTHING) & (size > _LETTERS * em))
    at = np.flatnonzero((rows[1:] == rows[:-1]) & (size > _WORD * em) & is_word)
    before, after, em, size, blank = before[at], after[at], em[at], size[at] / em[at], blank[at]
    lines = line_of[before]
    is_parted = lines != line_of[after]
    fixed = _fixed_fonts(level)
    least = np.full(int(line_of.max()) + 1, np.inf)
    np.minimum.at(least, lines[~is_parted], size[~is_parted])
    is_blank = blank == IN_OBJECT
    has_blanks = np.count_nonzero(is_blank) > _HAS_BLANKS * np.count_nonzero(~is_parted)
    min_usual, usual, max_usual = _USUAL
    if len(known := size[is_blank if is_blank.any() else ~is_parted]):
        usual = float(np.clip(np.quantile(known, _USUAL_SHARE), min_usual, max_usual))
    is_wide = size >= _WIDER * least[lines]
    may_part = size >= max(_LEAST, _WIDER * usual)
    if has_blanks:
        without = (blank < AFTER_BLANK) & (size >= _MIN_WITHOUT_BLANK)
        may_part, is_wide = may_part | without, is_wide | without
    is_ruled, is_step = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_)
    if find_ruled is not None:
        open_gaps = np.flatnonzero(~is_parted & (blank < IN_OBJECT))
        sides = reach[at][open_gaps], left[at + 1][open_gaps]
        is_ruled[open_gaps], is_step[open_gaps] = find_ruled(*sides, level.base[before[open_gaps]], em[open_gaps])
    # A change of background (`is_step`) comes from a cell or a highlighted word: split only if other rows have the gap.
    may_part, is_wide = may_part | is_step, is_wide | is_step
    may_part &= ~is_parted & (blank < IN_OBJECT) & ~(fixed[before] & fixed[after]) & ~is_ruled
    # In a letter-spaced heading most letters have wide gaps between them, none of which separates columns.
    letters, gaps = np.bincount(line_of[line_of >= 0]), np.bincount(lines[~is_parted], minlength=len(least))
    may_part &= (gaps < np.maximum(_SPACED_OUT * letters, _MIN_SPACED_OUT))[lines]
    end, is_number = _behind(at, np.flatnonzero(may_part | is_parted | is_ruled), reach, rows, codes, order)
    places = before, after, reach[at], left[at + 1], em, rows[at], lines
    return _Whites(*places, is_parted, may_part, is_wide, is_ruled, end, is_number)


def _behind(
    at: Indices, usable: Indices, reach: Numbers, rows: Indices, codes: Sequence[int], order: Indices
) -> tuple[Numbers, Flags]:
    """Where the text between each `usable` gap and the next one ends, and whether it is mostly digits; else 0, False.

    `at` holds the position in `order` of the last character before each gap.
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


def _fixed_fonts(level: Level) -> Flags:
    """Whether each character (C,) is of a monospaced font, in which unrelated gaps line up."""
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
        gaps = usable[ends[row] : ends[row + 1]].tolist()
        rights = [right[gap] for gap in gaps]
        taken, kept = set[int](), list[_Channel]()
        for channel in active:
            at = bisect_right(rights, channel.left)
            gap = gaps[at] if at < len(gaps) else -1
            least = _MIN_WITHOUT_BLANK * em[gap]
            if gap >= 0 and min(right[gap], channel.right) - max(left[gap], channel.left) >= least:
                if base - channel.base <= _FURTHEST_ROW * em[gap]:
                    channel.left, channel.right = max(channel.left, left[gap]), min(channel.right, right[gap])
                    channel.base, channel.passed = base, 0
                    channel.whites.append(gap)
                    taken.add(gap)
                    kept.append(channel)
                    continue
            elif not begin[row] < (channel.left + channel.right) / 2 < reach[row] and channel.passed < _MAX_PASSED:
                channel.passed += 1
                kept.append(channel)
                continue
            ended.append(channel)
        active = kept
        new = [gap for gap in gaps if gap not in taken][: _MAX_CHANNELS - len(active)]
        active += [_Channel(left[gap], right[gap], base, [gap]) for gap in new]
    return ended + active


def _is_column(channel: _Channel, whites: _Whites) -> bool:
    if len(channel.whites) < _MIN_ROWS or not whites.may_part[channel.whites].any():
        return False
    return len(channel.whites) >= _ROWS_WITHOUT_EDGE or _has_edge(channel, whites)


def _has_edge(channel: _Channel, whites: _Whites) -> bool:
    """Whether the texts before the gaps have aligned ends, or those after them aligned starts (numbers: or ends)."""
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
        gaps = [gap for gap in channel.whites if whites.may_part[gap]]
        begins = [_beginning(line_of, codes, is_apart, int(whites.before[gap])) for gap in gaps]
        markers = list(filter(None, map(_MARKER.fullmatch, begins)))
        if sum(marker["list"] is not None for marker in markers) >= _MOSTLY * len(gaps):
            continue
        is_numbers = len(markers) >= _MOSTLY * len(gaps)
        (numbered if is_numbers else cut)[gaps] = True
        is_sure[gaps] |= len(channel.whites) >= _SURE_ROWS and _has_edge(channel, whites)
    # Numbers also precede list items and source code lines, so they are a column only in rows with other columns.
    in_table = np.zeros(int(whites.row.max()) + 1, np.bool_)
    in_table[whites.row[cut]] = True
    cut |= numbered & in_table[whites.row]
    # Do not cut a line whose gaps are about equally wide (justified text), unless all of its gaps separate columns.
    rest = np.bincount(whites.line[~(cut | whites.is_parted | whites.is_ruled)], minlength=len(line_of))
    return np.asarray(cut & (whites.is_wide | is_sure | (rest[whites.line] == 0)), np.bool_)


def _beginning(line_of: Indices, codes: Sequence[int], is_apart: Flags, last: int) -> str:
    """The text of a line from its start to character `last`; "" if it is too long for a list marker or has gaps."""
    line, first = line_of[last], last
    while first > 0 and last - first < _MARKER_CHARACTERS and line_of[first - 1] == line:
        first -= 1
    if last - first >= _MARKER_CHARACTERS or is_apart[first + 1 : last + 1].any():
        return ""
    return "".join(chr(code) if code <= 0x10FFFF else " " for code in codes[first : last + 1])


def _cells(whites: _Whites, cuts: Indices, line_of: Indices, order: Indices) -> Indices:
    """(C,) the number of each character's cell; cells are lines split at the cuts."""
    is_first = np.zeros(len(line_of), np.int64)
    is_first[whites.after[cuts]] = 1
    by_line = order[np.argsort(line_of[order], kind="stable")]
    lines = line_of[by_line]
    begins = np.concatenate([[1], np.diff(lines) != 0]) | is_first[by_line]
    cells = np.full(len(line_of), -1, np.intp)
    cells[by_line] = np.cumsum(begins) - 1
    return cells
