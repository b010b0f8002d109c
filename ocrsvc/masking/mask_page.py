"""Masks a page: its lines with their words and characters, the cells of its tables, and its barcodes."""

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

# Shorter parts of a cell's text may occur in a line several times, so they do not identify a position.
LONG: Final = 4
_LONG_PART: Final = re.compile(rf"\S{{{LONG},}}")

# Margin, in full-width characters, around a masked part of a line whose character boxes are unknown.
MARGIN = 3.0
# Additional margin, as a share of the line's length: wide letters before the masked part shift its position.
MARGIN_SHARE = 0.04
# Margin around known character boxes, as a share of the line height, because the edges of letters are blurred.
_EDGE = 0.08


def mask_page(page: Page, rules: Rules) -> Page:
    """Replace what the rules find on a page by stars, and list the masked parts.

    Rules search the lines in reading order, to find numbers with a check digit that continue in the next line. A cell
    of a table is masked where its lines are masked, and where the rules match the cell's text.
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
    # Drop the Markdown: it has no offsets of lines, so it cannot be masked.
    return replace(page, lines=lines, tables=tables, barcodes=barcodes, masked=parts, markdown=None)


def _parts_of(spans: Sequence[Span], lines: Sequence[Line], starts: Sequence[int]) -> Iterator[MaskedPart]:
    """Split each span of the page's text into parts of lines; `starts` are the indices of the lines in the text."""
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
    """The words of a masked line; if the words together are not the text, all of them become stars."""
    visible = (character for character, before in zip(masked, text, strict=True) if not before.isspace())
    source = visible if "".join(word.text for word in words) == "".join(text.split()) else repeat(MASK)
    return tuple(_masked_word(word, "".join(islice(source, len(word.text)))) for word in words)


def _masked_word(word: Word, masked: str) -> Word:
    fits = "".join(character.text for character in word.characters) == word.text
    source = iter(masked) if fits else repeat(MASK)
    characters = tuple(replace(part, text="".join(islice(source, len(part.text)))) for part in word.characters)
    return replace(word, text=masked, characters=characters)


def _masked_cell(cell: Cell, before: Sequence[Line], after: Sequence[Line], rules: Rules) -> Cell:
    """Mask a cell made of lines or pieces of lines. `before`, `after`: the page's lines before and after masking."""
    changed = [(before[at].text, after[at].text) for at in cell.lines if before[at].text != after[at].text]
    text = cell.text
    for line, masked in changed:
        text = _with_line_masked(text, line, masked)
    divided = [(line, masked) for line, masked in changed if line not in cell.text]
    if divided:
        # The cell has only pieces of these lines, which may divide words: mask each piece as it is masked in its line.
        lines, masked = ("\n".join(texts) for texts in zip(*divided, strict=True))
        text = _LONG_PART.sub(lambda part: _as_masked(part[0], lines, masked), text)
    return replace(cell, text=mask_spans(text, ((begin, end) for begin, end, _ in find_spans(cell.text, rules))))


def _with_line_masked(cell: str, line: str, masked: str) -> str:
    """A cell's text after masking one of its lines."""
    pieces, end = [], 0
    for at in _places(f" {line} ", f" {cell} ".replace("\n", " ")):
        pieces += [cell[end:at], masked]
        end = at + len(line)
    if pieces:
        return "".join([*pieces, cell[end:]])
    if cell in line:
        return _as_masked(cell, line, masked)
    # The cell has only a piece of this line, and text of other lines: mask word by word.
    for word, stars in sorted(zip(line.split(), masked.split(), strict=True), key=lambda pair: -len(pair[0])):
        if word != stars:
            cell = cell.replace(word, stars)
    return cell


def _as_masked(part: str, text: str, masked: str) -> str:
    """Mask a part of `text`: take the characters at the same position in `masked`, the masked form of `text`.

    If the part occurs several times, the occurrence with the most stars is used, so that too much rather than too
    little is masked. For a short part, occurrences between spaces are preferred.
    """
    places = list(_places(part, text))
    if len(part) < LONG:
        places = list(_places(f" {part} ", f" {text} ")) or places
    return max((masked[at : at + len(part)] for at in places), key=lambda text: text.count(MASK), default=part)


def _places(part: str, text: str) -> Iterator[int]:
    """Yield the indices at which a part occurs in a text; two occurrences may share a character, such as a space."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + max(1, len(part) - 1))


def place_of(line: Line, begin: int, end: int) -> Box:
    """The box of characters [begin, end) of a line's text; with a wide margin if their boxes are unknown."""
    known = _known_range(line, begin, end) if line.words else None
    return _cut(line.box, *(known or _share(line, begin, end)))


def _known_range(line: Line, begin: int, end: int) -> tuple[float, float] | None:
    """Start and end of characters [begin, end) by their boxes, as shares of the line's length; None without boxes."""
    words = line.words or ()
    if "".join(word.text for word in words) != "".join(line.text.split()):
        return None
    # Words contain no spaces, so count characters without spaces.
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
    """Estimate start and end of characters [begin, end) as shares of the line's length, plus a margin."""
    widths = [1.0 if unicodedata.east_asian_width(character) in {"W", "F"} else 0.5 for character in line.text]
    whole = sum(widths)
    margin = MARGIN / whole + MARGIN_SHARE
    return sum(widths[:begin]) / whole - margin, sum(widths[:end]) / whole + margin


def _along(box: Box, point: Point) -> float:
    """A point's position along a line's box, as a share of the box's length."""
    begin, end = complex(*box[0]), complex(*box[1])
    # The quotient's real part is the point's projection on the line from `begin` to `end`, as a share of its length.
    return ((complex(*point) - begin) / (end - begin)).real if end != begin else 0.0


def _cut(box: Box, first: float, last: float) -> Box:
    """The part of a box between two shares of its length."""
    first, last = min(max(first, 0.0), 1.0), min(max(last, 0.0), 1.0)
    a, b, c, d = box
    return _between(a, b, first), _between(a, b, last), _between(d, c, last), _between(d, c, first)


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share
