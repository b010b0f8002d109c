"""Masks a page: its lines with their words and characters, the cells of its tables, and its bar codes."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice, repeat
from typing import Final

from ocrsvc.masking.rules import MASK, Rules, Span, find_spans, mask_spans, masked_text
from ocrsvc.results import Box, Cell, Character, Line, MaskedPart, Page, Point, Word

# Characters of a part of a cell; less of a number says little, and stands in other places too.
LONG: Final = 4
_LONG_PART: Final = re.compile(rf"\S{{{LONG},}}")

# Of a line whose characters' places are not known, in full-width characters: as far as a part may stand from its share.
MARGIN = 3.0
# Of the line's length: its letters may be all wide before the part and all narrow after it.
MARGIN_SHARE = 0.04
# Beside known places, in heights of the line: the edges of letters are soft.
_EDGE = 0.08


def mask_page(page: Page, rules: Rules) -> Page:
    """The page with stars in place of what the rules find, and with a list of it.

    Rules see the lines in reading order, so that a number with a check digit is found that goes on in the next line. A
    table's cell is masked where its lines are, and where the rules find something in the cell alone.
    """
    starts = list(accumulate((len(line.text) + 1 for line in page.lines), initial=0))
    parts = tuple(_parts_of(find_spans(page.text, rules), page.lines, starts))
    by_line: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        by_line.setdefault(part.line, []).append((part.begin, part.end))
    lines = tuple(_masked_line(line, by_line.get(number)) for number, line in enumerate(page.lines))
    tables = tuple(
        replace(table, cells=tuple(_masked_cell(cell, page.lines, lines, rules) for cell in table.cells))
        for table in page.tables
    )
    barcodes = tuple(replace(code, text=masked_text(code.text, rules)) for code in page.barcodes)
    return replace(page, lines=lines, tables=tables, barcodes=barcodes, masked=parts)


def _parts_of(spans: Sequence[Span], lines: Sequence[Line], starts: Sequence[int]) -> Iterator[MaskedPart]:
    """Each span of the page's text as parts of the lines that it touches."""
    for begin, end, kind in spans:
        for number in range(bisect_right(starts, begin) - 1, bisect_right(starts, end - 1)):
            line, start = lines[number], starts[number]
            first, last = max(0, begin - start), min(len(line.text), end - start)
            if first < last:
                yield MaskedPart(kind, number, first, last, place_of(line, first, last))


def _masked_line(line: Line, spans: Sequence[tuple[int, int]] | None) -> Line:
    if not spans:
        return line
    text = mask_spans(line.text, spans)
    words = None if line.words is None else _masked_words(line.words, line.text, text)
    return replace(line, text=text, words=words)


def _masked_words(words: Sequence[Word], text: str, masked: str) -> tuple[Word, ...]:
    """The words of a line whose text was masked; stars alone if they are not the text without its spaces."""
    left = (sign for sign, before in zip(masked, text, strict=True) if not before.isspace())
    signs = left if "".join(word.text for word in words) == "".join(text.split()) else repeat(MASK)
    return tuple(_masked_word(word, "".join(islice(signs, len(word.text)))) for word in words)


def _masked_word(word: Word, masked: str) -> Word:
    fits = "".join(character.text for character in word.characters) == word.text
    signs = iter(masked) if fits else repeat(MASK)
    characters = (replace(one, text="".join(islice(signs, len(one.text)))) for one in word.characters)
    return replace(word, text=masked, characters=tuple(characters))


def _masked_cell(cell: Cell, before: Sequence[Line], after: Sequence[Line], rules: Rules) -> Cell:
    """A cell holds whole lines, or the pieces of some that stand in it."""
    changed = [(before[at].text, after[at].text) for at in cell.lines if before[at].text != after[at].text]
    text = cell.text
    for line, masked in changed:
        text = _with_line_masked(text, line, masked)
    divided = [(line, masked) for line, masked in changed if line not in cell.text]
    if divided:
        # Its parts that stand in lines that were divided, also within a word, are as these were masked.
        lines, masked = ("\n".join(texts) for texts in zip(*divided, strict=True))
        text = _LONG_PART.sub(lambda part: _as_masked(part[0], lines, masked), text)
    found = [(begin, end) for begin, end, _ in find_spans(cell.text, rules)]
    return replace(cell, text=mask_spans(text, found))


def _with_line_masked(cell: str, line: str, masked: str) -> str:
    """A cell's text after a line of it was masked."""
    pieces, end = [], 0
    for at in _places(f" {line} ", f" {cell} ".replace("\n", " ")):
        pieces += [cell[end:at], masked]
        end = at + len(line)
    if pieces:
        return "".join([*pieces, cell[end:]])
    if cell in line:
        return _as_masked(cell, line, masked)
    # A piece of the line beside others: each of its words as the line has it.
    for word, stars in sorted(zip(line.split(), masked.split(), strict=True), key=lambda pair: -len(pair[0])):
        if word != stars:
            cell = cell.replace(word, stars)
    return cell


def _as_masked(part: str, text: str, masked: str) -> str:
    """A part of a text after the text was masked.

    Where the part stands several times, its cell may be any of these places: the one that is masked most decides. For a
    short part only places between blanks count, if there are any.
    """
    places = list(_places(part, text))
    if len(part) < LONG:
        places = list(_places(f" {part} ", f" {text} ")) or places
    return max((masked[at : at + len(part)] for at in places), key=lambda found: found.count(MASK), default=part)


def _places(part: str, text: str) -> Iterator[int]:
    """Where a part begins in a text; two places may share one character."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + max(1, len(part) - 1))


def place_of(line: Line, begin: int, end: int) -> Box:
    """A box around the signs between two places of a line's text: larger where their own places are not known."""
    known = _known_range(line, begin, end) if line.words else None
    return _cut(line.box, *(known or _share(line, begin, end)))


def _known_range(line: Line, begin: int, end: int) -> tuple[float, float] | None:
    """By the characters of its words, or the words themselves, as shares of its length; None where these differ."""
    words = line.words or ()
    if "".join(word.text for word in words) != "".join(line.text.split()):
        return None
    # Words have no spaces: so signs are counted without.
    first, last = (len("".join(line.text[:place].split())) for place in (begin, end))
    boxes = list(_boxes_between(words, first, last))
    if not boxes:
        return None
    shares = [_along(line.box, corner) for box in boxes for corner in box]
    edge = _EDGE * math.dist(line.box[0], line.box[3]) / max(math.dist(line.box[0], line.box[1]), 1.0)
    return min(shares) - edge, max(shares) + edge


def _boxes_between(words: Sequence[Word], first: int, last: int) -> Iterator[Box]:
    at = 0
    for word in words:
        parts: Sequence[Word | Character] = word.characters
        if "".join(part.text for part in parts) != word.text:
            parts = (word,)
        for part in parts:
            if at < last and at + len(part.text) > first:
                yield part.box
            at += len(part.text)


def _share(line: Line, begin: int, end: int) -> tuple[float, float]:
    """By how wide signs usually are, with a margin."""
    widths = [1.0 if unicodedata.east_asian_width(sign) in {"W", "F"} else 0.5 for sign in line.text]
    whole = sum(widths)
    margin = MARGIN / whole + MARGIN_SHARE
    return sum(widths[:begin]) / whole - margin, sum(widths[:end]) / whole + margin


def _along(box: Box, point: Point) -> float:
    """How far along a line's box a point stands, as a share of its length."""
    begin, end = complex(*box[0]), complex(*box[1])
    # The real part of a quotient is the share of one vector along the other.
    return ((complex(*point) - begin) / (end - begin)).real if end != begin else 0.0


def _cut(box: Box, first: float, last: float) -> Box:
    """The part of a box from one share of its length to another."""
    first, last = min(max(first, 0.0), 1.0), min(max(last, 0.0), 1.0)
    a, b, c, d = box
    return _between(a, b, first), _between(a, b, last), _between(d, c, last), _between(d, c, first)


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share
