"""Groups the characters of a page into lines by baseline and gap; their order in the file matters only inside lines."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.pdf.characters import Flags, Indices, PageCharacters
from ocrsvc.imaging.pdf.columns import part_columns
from ocrsvc.imaging.pdf.page_look import RuleFinder
from ocrsvc.imaging.pdf.runs import (
    AFTER_BLANK,
    AFTER_GUESS,
    AFTER_NOTHING,
    BLANK,
    IN_OBJECT,
    IN_STRING,
    LEFTWARDS_BLANK,
    WIDE_BLANK,
    Level,
    Runs,
    find_runs,
    join_runs,
    read_level,
)
from ocrsvc.imaging.text_direction import MOSTLY, RIGHT_TO_LEFT, logical_order

# pdfium returns these code points for a hyphen at the end of a line.
HYPHENS: Final = (0x2, 0xAD, 0xFFFE)
# Bullets of the fonts Symbol and Wingdings, by the private-use code points that word processors write.
BULLETS: Final = {0xF0B7: "•", 0xF0A7: "▪", 0xF076: "❖", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→", 0xF06E: "■"}
_PRESENTATION_FORMS: Final = (0xFB00, 0xFEFF)

FindRules = Callable[[int], RuleFinder | None]


@dataclass(frozen=True, slots=True)
class TextLine:
    """Characters in logical order, their texts, and whether a space precedes each; the line is turned by `degrees`."""

    members: Indices
    texts: Sequence[str]
    blanks: Sequence[bool]
    degrees: int

    @property
    def text(self) -> str:
        """The line's text, with spaces."""
        return "".join([" " + text if blank else text for text, blank in zip(self.texts, self.blanks, strict=True)])


def is_blank(codes: NDArray[np.uint32]) -> Flags:
    """Whether each code point is white space or a control character."""
    spaces = [0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF, *range(0x2000, 0x200C)]
    return ((codes <= 0x20) | np.isin(codes, spaces)) & ~np.isin(codes, HYPHENS)


def find_lines(characters: PageCharacters, find_rules: FindRules | None = None) -> list[TextLine]:
    """Find a page's lines, unordered. `find_rules(degrees)` makes a finder of cell borders for text at that angle."""
    blank = is_blank(characters.codes)
    seen = np.flatnonzero(~blank)
    spaces = _spaces(characters, blank, seen)
    degrees = np.round(np.degrees(np.arctan2(characters.along[:, 1], characters.along[:, 0]))).astype(int) % 360
    return [
        line
        for turn in np.unique(degrees[seen]).tolist()
        for line in _lines_along(characters, seen[degrees[seen] == turn], spaces, turn, find_rules)
    ]


def _spaces(characters: PageCharacters, blank: Flags, seen: Indices) -> Indices:
    """(N,) for each character, a constant of runs.py that says what precedes it in the file, such as AFTER_BLANK."""
    spaces, owner = np.full(len(characters), AFTER_NOTHING, np.intp), characters.owner
    is_own = blank & ~characters.is_added
    spaces[1:][blank[:-1]] = AFTER_GUESS
    spaces[1:][is_own[:-1]] = AFTER_BLANK
    before, after = seen[:-1], seen[1:]
    of_one = owner[before] == owner[after]
    spaces[after[of_one & (after - before == 1)]] = IN_STRING
    spaces[after[of_one & is_own[after - 1] & (owner[after - 1] == owner[after])]] = IN_OBJECT
    return spaces


def _lines_along(
    characters: PageCharacters, indices: Indices, spaces: Indices, degrees: int, find_rules: FindRules | None
) -> Iterator[TextLine]:
    level = read_level(characters, indices, spaces, degrees)
    runs = find_runs(level)
    for begin, end, is_vertical in zip(runs.begins, runs.ends, runs.is_vertical, strict=True):
        if is_vertical:
            yield _line(characters, indices[begin:end], [False] * (end - begin), degrees)
    find_ruled = None if find_rules is None else find_rules(degrees)
    runs, lines = _parted(level, runs, join_runs(runs), characters.codes[indices], find_ruled)
    for numbers in lines:
        is_odd = any(runs.is_odd[number] for number in numbers)
        places, blanks = (_in_visual_order if is_odd else _in_line)(level, runs, numbers)
        line = _line(characters, indices[places], blanks, degrees)
        yield _in_logical_text(line) if is_odd else line


def _parted(
    level: Level, runs: Runs, lines: list[list[int]], codes: NDArray[np.uint32], find_ruled: RuleFinder | None
) -> tuple[Runs, list[list[int]]]:
    line_of = np.full(len(level.left), -1, np.intp)
    for number, line in enumerate(lines):
        for run in line:
            line_of[runs.begins[run] : runs.ends[run]] = number
    cells = part_columns(level, line_of, codes.tolist(), find_ruled)
    if cells is None:
        return runs, lines
    runs = find_runs(level, cells)
    parted: dict[int, list[int]] = {}
    for run in sorted(range(len(runs.begins)), key=runs.left.__getitem__):
        if (cell := int(cells[runs.begins[run]])) >= 0:
            parted.setdefault(cell, []).append(run)
    return runs, list(parted.values())


def _in_line(level: Level, runs: Runs, numbers: Sequence[int]) -> tuple[Indices, list[bool]]:
    """Join runs into a line: character indices, in file order per run, and for each, whether a space precedes it."""
    leftwards = sum(runs.leftwards[number] for number in numbers)
    others = sum(runs.ends[number] - runs.begins[number] for number in numbers) - leftwards
    if leftwards and MOSTLY * leftwards >= others:
        groups = [list(group) for _, group in groupby(numbers, lambda number: runs.leftwards[number] > 0)]
        # In right-to-left text, neighbouring numbers and Latin words keep their left-to-right order.
        ordered = (group[::-1] if runs.leftwards[group[0]] else group for group in reversed(groups))
        numbers = [number for group in ordered for number in group]
    places = [np.arange(runs.begins[number], runs.ends[number]) for number in numbers]
    blanks: list[bool] = []
    before = numbers[0]
    for number in numbers:
        white = max(runs.left[number] - runs.right[before], runs.left[before] - runs.right[number])
        if runs.left[number] > runs.left[before]:
            white = min(white, runs.left[number] - float(level.taken[runs.ends[before] - 1]))
        blanks.append(white > BLANK * runs.em[number])
        blanks += level.blank[runs.begins[number] + 1 : runs.ends[number]].tolist()
        before = number
    return places[0] if len(places) == 1 else np.concatenate(places), blanks


def _in_visual_order(level: Level, runs: Runs, numbers: Sequence[int]) -> tuple[Indices, list[bool]]:
    """Join runs into a line: character indices from left to right, and for each, whether a space precedes it."""
    places = np.concatenate([np.arange(runs.begins[number], runs.ends[number]) for number in numbers])
    places = places[np.argsort((level.left + level.right)[places], kind="stable")]
    em = float(np.median(level.em[places]))
    white = level.left[places[1:]] - np.maximum.accumulate(level.taken[places])[:-1]
    has_blank = (np.abs(np.diff(places)) == 1) & (level.spaces[np.maximum(places[1:], places[:-1])] >= AFTER_BLANK)
    wide = level.is_cjk[places[1:]] & level.is_cjk[places[:-1]]
    apart = np.where(wide, WIDE_BLANK, np.where(level.is_leftwards[places[1:]], LEFTWARDS_BLANK, BLANK))
    return places, [False, *((white > apart * em) | has_blank).tolist()]


def _line(characters: PageCharacters, members: Indices, blanks: list[bool], degrees: int) -> TextLine:
    texts = [_text_of(code) for code in characters.codes[members].tolist()]
    blanks[0] = False
    return TextLine(members, texts, blanks, degrees)


def _in_logical_text(line: TextLine) -> TextLine:
    """Convert a line from visual to logical order if it has right-to-left text."""
    if not any(unicodedata.bidirectional(text[0]) in RIGHT_TO_LEFT for text in line.texts if not text.isascii()):
        return line
    shown: list[tuple[int, str]] = []
    for place, (text, blank) in enumerate(zip(line.texts, line.blanks, strict=True)):
        shown += [(-1, " ")] * blank + [(place, text)]
    order, logical = logical_order([text for _, text in shown])
    places = [shown[at][0] for at in order]
    kept = [at for at, place in enumerate(places) if place >= 0]
    texts = [logical[at] for at in kept]
    blanks = [at > 0 and places[at - 1] < 0 and number > 0 for number, at in enumerate(kept)]
    return TextLine(line.members[[places[at] for at in kept]], texts, blanks, line.degrees)


@cache
def _text_of(code: int) -> str:
    """The text of a code point: ligatures and presentation forms become plain letters, all hyphens become "-"."""
    if code in HYPHENS:
        return "-"
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return "\ufffd"
    text = BULLETS.get(code, chr(code))
    is_form = _PRESENTATION_FORMS[0] <= code <= _PRESENTATION_FORMS[1]
    return (unicodedata.normalize("NFKC", text).strip() if is_form else "") or text
