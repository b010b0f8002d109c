"""Joins characters that are adjacent in the file and on the page into runs, and groups runs on one baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.characters import Flags, Indices, Numbers, PageCharacters

GAP: Final = 1.5  # widest gap within a line, in ems; a wider one separates columns or cells
_STRETCHED: Final = 4.0  # widest gap, in ems, at a single space within a text object, as in justified lines
SHIFT: Final = 0.5  # largest difference, in ems, between neighbours' baselines, as of a footnote number and its word
BLANK: Final = 0.15  # narrowest gap, in ems, that counts as a space between runs of characters
_OBJECTS_BLANK: Final = 0.25  # narrowest gap, in ems, that counts as a space between adjacent text objects
LEFTWARDS_BLANK: Final = 0.28  # narrowest gap, in ems, between Arabic words; gaps inside words are narrower
WIDE_BLANK: Final = 0.5  # narrowest gap, in ems, between Chinese characters that counts as a space
_BACK: Final = 0.3  # largest overlap, in ems, of two successive characters of a line
_SIDEWAYS: Final = 0.3  # largest sideways shift, in ems, between characters of a vertical line
_PITCH: Final = (0.7, 1.6)  # least and largest distance, in ems, between characters of a vertical line
_LARGER: Final = 2.5  # largest ratio of font sizes in a run

IN_STRING, AFTER_NOTHING, AFTER_GUESS, AFTER_BLANK, IN_OBJECT = range(5)
"""What precedes a character in the file: a character of the same text object; a character of another object; a space
that pdfium inserted at a gap; a space; a space in the same text object as both of its neighbours."""

_CJK: Final = ((0x2E80, 0xA4CF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x3FFFF))
_RIGHT_TO_LEFT: Final = ((0x0590, 0x08FF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF))


@dataclass(frozen=True, slots=True)
class Level:
    """Parallel arrays of the characters that share one text direction, rotated so that the text runs left to right.

    In pixels, y down. `left` and `right` bound each character's ink, `start` and `base` are x and y of its origin.
    `taken` is the right end of its ink, or of the square of a Chinese character, whose ink may be small (a comma).
    `is_letter`: A to Z; `blank`: a space precedes it; `is_back`: in reading direction, it lies before its predecessor.
    """

    indices: Indices
    left: Numbers
    right: Numbers
    base: Numbers
    em: Numbers
    start: Numbers
    font: Numbers
    taken: Numbers
    spaces: Indices
    is_cjk: Flags
    is_leftwards: Flags
    is_letter: Flags
    blank: Flags
    is_back: Flags


def read_level(characters: PageCharacters, indices: Indices, spaces: Indices, degrees: int) -> Level:
    """Rotate characters of one direction to run left to right; `spaces` (N,): what precedes each, such as IN_STRING."""
    some = characters.of(indices)
    angle = np.radians(degrees)
    along, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    start = some.origin @ along
    corners = some.ink[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ along
    left, right = corners.min(axis=1), corners.max(axis=1)
    if degrees % 90:
        # The upright bounding box of a slanted character is too wide, so assume a width of half an em.
        left, right = start, start + some.em / 2
    is_cjk = _within(some.codes, _CJK)
    leftwards = _within(some.codes, _RIGHT_TO_LEFT)
    white = np.maximum(left[1:] - right[:-1], left[:-1] - right[1:])
    both = is_cjk[1:] & is_cjk[:-1]
    # Add no spaces within a text object: pdfium inserts those itself, because it knows the widths of characters.
    apart = np.where(some.owner[1:] == some.owner[:-1], np.inf, _OBJECTS_BLANK) * some.em[1:]
    blank, is_back = np.zeros(len(left), np.bool_), np.zeros(len(left), np.bool_)
    is_apart = (spaces[indices[1:]] >= AFTER_GUESS) | (white > apart)
    taken = np.where(is_cjk, np.maximum(right, start + some.em), right)
    blank[1:] = np.where(both, np.minimum(white, left[1:] - taken[:-1]) > WIDE_BLANK * some.em[1:], is_apart)
    step = np.diff(left + right) / 2 * np.where(leftwards[1:], -1.0, 1.0)
    is_back[1:] = (step < -_BACK * some.em[1:]) & (leftwards[1:] == leftwards[:-1])
    folded = some.codes | 0x20
    return Level(
        *(indices, left, right, some.origin @ down, some.em, start, some.font, taken, spaces[indices]),
        *(is_cjk, leftwards, (folded >= 0x61) & (folded <= 0x7A), blank, is_back),
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of characters adjacent in the file and on the page; `is_odd`: stored against reading direction."""

    begins: Sequence[int]
    ends: Sequence[int]
    left: Sequence[float]
    right: Sequence[float]
    base: Sequence[float]
    em: Sequence[float]
    is_vertical: Sequence[bool]
    leftwards: Sequence[int]
    is_odd: Sequence[bool]


def find_runs(level: Level, cells: Indices | None = None) -> Runs:
    """Divide characters of one text direction into runs; `cells` (C,) are their table cells, which no run leaves."""
    is_new, downwards = _breaks(level)
    if cells is not None:
        is_new[1:] |= np.diff(cells) != 0
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(is_new))
    lengths = ends - starts
    # `is_back` of a run's first character is relative to another run, so it does not count.
    odd = np.logical_or.reduceat(level.is_back & ~is_new, starts)
    return Runs(
        starts.tolist(),
        ends.tolist(),
        np.minimum.reduceat(level.left, starts).tolist(),
        np.maximum.reduceat(level.right, starts).tolist(),
        (np.add.reduceat(level.base, starts) / lengths).tolist(),
        (np.add.reduceat(level.em, starts) / lengths).tolist(),
        ((lengths > 1) & downwards[np.minimum(starts + 1, len(is_new) - 1)]).tolist(),
        np.add.reduceat(level.is_leftwards, starts, dtype=np.intp).tolist(),
        odd.tolist(),
    )


def _breaks(level: Level) -> tuple[Flags, Flags]:
    """Whether each character begins a run, and whether it stands below the one before it, as in vertical lines."""
    is_new, downwards = np.ones(len(level.left), np.bool_), np.zeros(len(level.left), np.bool_)
    em = np.maximum(level.em[1:], level.em[:-1])
    gap = np.maximum(level.left[1:] - level.right[:-1], level.left[:-1] - level.right[1:])
    shift = level.base[1:] - level.base[:-1]
    similar = em <= _LARGER * np.minimum(level.em[1:], level.em[:-1])
    # Allow wider gaps at typed spaces, because a justified line with few words stretches its spaces.
    is_stretched = (level.spaces[1:] == IN_OBJECT) & (np.diff(level.indices) == 2)
    beside = (np.abs(shift) <= SHIFT * em) & (gap <= np.where(is_stretched, _STRETCHED, GAP) * em) & similar
    sideways = np.abs((level.left + level.right)[1:] - (level.left + level.right)[:-1]) / 2
    below = level.is_cjk[1:] & level.is_cjk[:-1] & (sideways <= _SIDEWAYS * em)
    below &= (shift >= _PITCH[0] * em) & (shift <= _PITCH[1] * em)
    links = np.where(beside, 1, np.where(below, 2, 0))
    before = np.concatenate([[0], links[:-1]]) if len(links) else links
    is_new[1:] = (links == 0) | ((before != 0) & (before != links))
    downwards[1:] = below
    return is_new, downwards


def join_runs(runs: Runs) -> list[list[int]]:
    """Group runs beside each other on one baseline, whatever their order in the file."""
    level = [number for number, is_vertical in enumerate(runs.is_vertical) if not is_vertical]
    step = max(1.0, SHIFT / 2 * float(np.median(runs.em)))
    open_lines: dict[int, int] = {}
    lines: list[list[int]] = []
    ends: list[float] = []
    for number in sorted(level, key=runs.left.__getitem__):
        row, reach = round(runs.base[number] / step), (-_BACK * runs.em[number], GAP * runs.em[number])
        for near in (row, row - 1, row + 1):
            line = open_lines.get(near, -1)
            if line >= 0 and reach[0] <= runs.left[number] - ends[line] <= reach[1]:
                break
        else:
            line = len(lines)
            lines.append([])
            ends.append(-np.inf)
        lines[line].append(number)
        ends[line] = max(ends[line], runs.right[number])
        open_lines[row] = line
    return lines


def _within(codes: NDArray[np.uint32], ranges: Sequence[tuple[int, int]]) -> Flags:
    return np.asarray(np.any([(codes >= first) & (codes <= last) for first, last in ranges], axis=0), np.bool_)
