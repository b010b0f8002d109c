"""Groups the characters of a page into lines, by baseline and gap; the order of the file counts within a line alone."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.bidirectional_text import logical_order
from ocrsvc.imaging.text_direction import MOSTLY, RIGHT_TO_LEFT
from ocrsvc.imaging.text_layer.copied_text import Flags, Numbers, PageCharacters

Indices = NDArray[np.intp]

# All in ems.
GAP: Final = 1.5
"""The widest white within a line: beyond it stands another column, or a table's next cell."""
SHIFT: Final = 0.5
"""By how much a character may stand above or below its neighbour's baseline, as a footnote's number does."""
BLANK: Final = 0.15
"""The narrowest white between words that stand apart in the file."""
_OBJECTS_BLANK: Final = 0.25  # the same where one follows the other in the file
_LEFTWARDS_BLANK: Final = 0.28  # between Arabic letters, some of which join none
_WIDE_BLANK: Final = 0.5  # between Chinese characters
_BACK: Final = 0.3  # two characters of a line may overlap by so much
_SIDEWAYS: Final = 0.3  # the characters of a vertical line stand below each other
_PITCH: Final = (0.7, 1.6)  # and so far from one to the next
_LARGER: Final = 2.5

_CJK: Final = (0x2E80, 0xA4CF)
_CJK_MORE: Final = ((0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x20000, 0x3FFFF))
_RIGHT_TO_LEFT: Final = ((0x0590, 0x08FF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF))
# pdfium gives them for a hyphen at the end of a line, whose word goes on in the next.
HYPHENS: Final = (0x2, 0xAD, 0xFFFE)
BULLETS: Final = {0xF0B7: "•", 0xF0A7: "▪", 0xF076: "❖", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→", 0xF06E: "■"}
"""Signs of the fonts Symbol and Wingdings as word processors write them, by their code points for private use."""

_PRESENTATION_FORMS: Final = (0xFB00, 0xFEFF)


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of characters.

    Attributes:
        members: Which of the page's characters, in logical order.
        texts: What each of them says, at least one code point.
        blanks: Whether white stands before each of them; never before the first.
        degrees: By how much the line is turned clockwise from left to right.
        text: What it says.
    """

    members: Indices
    texts: Sequence[str]
    blanks: Sequence[bool]
    degrees: int
    text: str


def is_blank(codes: NDArray[np.uint32]) -> Flags:
    """Which code points are white, or commands to a printer."""
    spaces = [0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF, *range(0x2000, 0x200C)]
    return ((codes <= 0x20) | np.isin(codes, spaces)) & ~np.isin(codes, HYPHENS)


def find_lines(characters: PageCharacters) -> list[TextLine]:
    """The lines of a page, in no particular order; characters that stand for themselves are lines of one."""
    blank = is_blank(characters.codes)
    seen = np.flatnonzero(~blank)
    after_blank = np.zeros(len(characters), np.bool_)
    after_blank[1:] = blank[:-1]
    degrees = np.round(np.degrees(np.arctan2(characters.along[:, 1], characters.along[:, 0]))).astype(int) % 360
    return [
        line
        for turn in np.unique(degrees[seen]).tolist()
        for line in _lines_along(characters, seen[degrees[seen] == turn], after_blank, turn)
    ]


@dataclass(frozen=True, slots=True)
class _Level:
    """Characters of one direction, turned so that it is from left to right; pixels, y downwards.

    Attributes:
        indices: Which of the page's.
        left, right, base, em: Where their ink is, their baseline, and the size of their font.
        is_cjk, is_leftwards: Chinese, Japanese or Korean; of a script from right to left.
        blank: White before it, if it follows the one before it in its line, too.
        is_back: It stands before the one before it, in the direction of their script.
    """

    indices: Indices
    left: Numbers
    right: Numbers
    base: Numbers
    em: Numbers
    is_cjk: Flags
    is_leftwards: Flags
    blank: Flags
    is_back: Flags


def _level(characters: PageCharacters, indices: Indices, after_blank: Flags, degrees: int) -> _Level:
    some = characters.of(indices)
    angle = np.radians(degrees)
    along, down = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    start = some.origin @ along
    corners = some.ink[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ along
    left, right = corners.min(axis=1), corners.max(axis=1)
    if degrees % 90:
        # The frame of a slanted character says little.
        left, right = start, start + some.em / 2
    is_cjk = _is_cjk(some.codes)
    leftwards = _within(some.codes, _RIGHT_TO_LEFT)
    white = np.maximum(left[1:] - right[:-1], left[:-1] - right[1:])
    both = is_cjk[1:] & is_cjk[:-1]
    # Within a text object, pdfium says where its words end; it knows how wide its characters are.
    apart = np.where(some.owner[1:] == some.owner[:-1], np.inf, _OBJECTS_BLANK) * some.em[1:]
    blank, is_back = np.zeros(len(left), np.bool_), np.zeros(len(left), np.bool_)
    said = after_blank[indices[1:]] | (white > apart)
    blank[1:] = np.where(both, white > _WIDE_BLANK * some.em[1:], said)
    step = np.diff(left + right) / 2 * np.where(leftwards[1:], -1.0, 1.0)
    is_back[1:] = (step < -_BACK * some.em[1:]) & (leftwards[1:] == leftwards[:-1])
    return _Level(indices, left, right, some.origin @ down, some.em, is_cjk, leftwards, blank, is_back)


@dataclass(frozen=True, slots=True)
class _Runs:
    """R runs of characters that follow each other, in the file as on the page.

    Attributes:
        begins, ends: The first place of each in its `_Level`, and the one after its last.
        left, right, base, em: As of its characters.
        is_vertical: They stand below each other.
        leftwards: How many of them are of a script from right to left.
        is_odd: They do not go where their script does.
    """

    begins: Sequence[int]
    ends: Sequence[int]
    left: Sequence[float]
    right: Sequence[float]
    base: Sequence[float]
    em: Sequence[float]
    is_vertical: Sequence[bool]
    leftwards: Sequence[int]
    is_odd: Sequence[bool]


def _lines_along(characters: PageCharacters, indices: Indices, after_blank: Flags, degrees: int) -> Iterator[TextLine]:
    level = _level(characters, indices, after_blank, degrees)
    runs = _find_runs(level)
    for begin, end, is_vertical in zip(runs.begins, runs.ends, runs.is_vertical, strict=True):
        if is_vertical:
            yield _line(characters, indices[begin:end], [False] * (end - begin), degrees)
    for numbers in _joined(runs):
        if any(runs.is_odd[number] for number in numbers):
            places, blanks = _as_they_stand(level, runs, numbers)
            yield _turned(_line(characters, indices[places], blanks, degrees))
        else:
            places, blanks = _in_line(level, runs, numbers)
            yield _line(characters, indices[places], blanks, degrees)


def _find_runs(level: _Level) -> _Runs:
    is_new, downwards = _breaks(level)
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(is_new))
    lengths = ends - starts
    # What stands before the first of a run says nothing of the run.
    odd = np.logical_or.reduceat(level.is_back & ~is_new, starts)
    return _Runs(
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


def _breaks(level: _Level) -> tuple[Flags, Flags]:
    """Which characters do not go on where the one before them ended; and which go on below it, as in vertical lines."""
    is_new, downwards = np.ones(len(level.left), np.bool_), np.zeros(len(level.left), np.bool_)
    em = np.maximum(level.em[1:], level.em[:-1])
    gap = np.maximum(level.left[1:] - level.right[:-1], level.left[:-1] - level.right[1:])
    shift = level.base[1:] - level.base[:-1]
    similar = em <= _LARGER * np.minimum(level.em[1:], level.em[:-1])
    beside = (np.abs(shift) <= SHIFT * em) & (gap <= GAP * em) & similar
    sideways = np.abs((level.left + level.right)[1:] - (level.left + level.right)[:-1]) / 2
    below = level.is_cjk[1:] & level.is_cjk[:-1] & (sideways <= _SIDEWAYS * em)
    below &= (shift >= _PITCH[0] * em) & (shift <= _PITCH[1] * em)
    links = np.where(beside, 1, np.where(below, 2, 0))
    before = np.concatenate([[0], links[:-1]]) if len(links) else links
    is_new[1:] = (links == 0) | ((before != 0) & (before != links))
    downwards[1:] = below
    return is_new, downwards


def _joined(runs: _Runs) -> list[list[int]]:
    """The numbers of runs that stand beside each other on one baseline, in whatever order the file has them."""
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


def _in_line(level: _Level, runs: _Runs, numbers: Sequence[int]) -> tuple[Indices, list[bool]]:
    """The places of a line of these runs, in the order of the file within each, and where white stands between them."""
    if any(runs.leftwards[number] for number in numbers):
        numbers = _in_logical_order(runs, numbers)
    places = [np.arange(runs.begins[number], runs.ends[number]) for number in numbers]
    blanks: list[bool] = []
    before = numbers[0]
    for number in numbers:
        white = max(runs.left[number] - runs.right[before], runs.left[before] - runs.right[number])
        blanks.append(white > BLANK * runs.em[number])
        blanks += level.blank[runs.begins[number] + 1 : runs.ends[number]].tolist()
        before = number
    return places[0] if len(places) == 1 else np.concatenate(places), blanks


def _in_logical_order(runs: _Runs, numbers: Sequence[int]) -> list[int]:
    """Runs that stand beside each other, as they are read: from right to left where most of the line is."""
    leftwards = sum(runs.leftwards[number] for number in numbers)
    if MOSTLY * leftwards < sum(runs.ends[number] - runs.begins[number] for number in numbers) - leftwards:
        return list(numbers)
    stretches = [list(some) for _, some in groupby(numbers, lambda number: runs.leftwards[number] > 0)]
    # Numbers and Latin words beside each other keep their order.
    return [number for some in reversed(stretches) for number in (reversed(some) if runs.leftwards[some[0]] else some)]


def _as_they_stand(level: _Level, runs: _Runs, numbers: Sequence[int]) -> tuple[Indices, list[bool]]:
    places = np.concatenate([np.arange(runs.begins[number], runs.ends[number]) for number in numbers])
    places = places[np.argsort((level.left + level.right)[places], kind="stable")]
    em = float(np.median(level.em[places]))
    white = level.left[places[1:]] - np.maximum.accumulate(level.right[places])[:-1]
    wide = level.is_cjk[places[1:]] & level.is_cjk[places[:-1]]
    apart = np.where(wide, _WIDE_BLANK, np.where(level.is_leftwards[places[1:]], _LEFTWARDS_BLANK, BLANK))
    return places, [False, *(white > apart * em).tolist()]


def _line(characters: PageCharacters, members: Indices, blanks: list[bool], degrees: int) -> TextLine:
    texts = [_text_of(code) for code in characters.codes[members].tolist()]
    blanks[0] = False
    return TextLine(members, texts, blanks, degrees, _joined_text(texts, blanks))


def _turned(line: TextLine) -> TextLine:
    """The line in logical order, if it has text from right to left; its characters come as they stand on the page."""
    if not any(unicodedata.bidirectional(text[0]) in RIGHT_TO_LEFT for text in line.texts if not text.isascii()):
        return line
    shown: list[tuple[int, str]] = []
    for place, (text, blank) in enumerate(zip(line.texts, line.blanks, strict=True)):
        shown += [(-1, " ")] * blank + [(place, text)]
    order, found = logical_order([text for _, text in shown])
    places, texts, blanks, before = list[int](), list[str](), list[bool](), False
    for at, text in zip(order, found, strict=True):
        if shown[at][0] < 0:
            before = bool(places)
            continue
        places.append(shown[at][0])
        texts.append(text)
        blanks.append(before)
        before = False
    return TextLine(line.members[places], texts, blanks, line.degrees, _joined_text(texts, blanks))


def _joined_text(texts: Sequence[str], blanks: Sequence[bool]) -> str:
    return "".join([" " + text if blank else text for text, blank in zip(texts, blanks, strict=True)])


@cache
def _text_of(code: int) -> str:
    """What a code point says: ligatures and shapes of letters as the letters, hyphens as such."""
    if code in HYPHENS:
        return "-"
    if code in BULLETS:
        return BULLETS[code]
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return "\ufffd"
    text = chr(code)
    if _PRESENTATION_FORMS[0] <= code <= _PRESENTATION_FORMS[1]:
        return unicodedata.normalize("NFKC", text).strip() or text
    return text


def _is_cjk(codes: NDArray[np.uint32]) -> Flags:
    return _within(codes, (_CJK, *_CJK_MORE))


def _within(codes: NDArray[np.uint32], ranges: Sequence[tuple[int, int]]) -> Flags:
    found = np.zeros(len(codes), np.bool_)
    for first, last in ranges:
        found |= (codes >= first) & (codes <= last)
    return cast(Flags, found)
