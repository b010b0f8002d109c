"""Masks a page: its lines with their words and characters, the cells of its tables, and its bar codes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from ocrsvc.masking.places import place_of
from ocrsvc.masking.rules import MASK, Rules, find_spans, mask_spans
from ocrsvc.masking.text_forms import Span
from ocrsvc.masking.words import mask_words
from ocrsvc.records import Cell, Line, MaskedPart, Page, Table

LONG: Final = 4
"""Characters of a part of a cell; less of a number says little, and stands in other places too."""

_LONG_PART: Final = re.compile(rf"\S{{{LONG},}}")


def mask_page(page: Page, rules: Rules) -> Page:
    """The page with stars in place of what the rules find, and with a list of it.

    Rules see the lines in reading order, so that a number with a check digit is found that goes on in the next line. A
    table's cell is masked where its lines are, and where the rules find something in the cell alone.

    Args:
        page: As it was read; its boxes stay.
        rules: What is masked.
    """
    starts = list(accumulate((len(line.text) + 1 for line in page.lines), initial=0))
    parts = tuple(_parts_of(find_spans(page.text, rules), page.lines, starts))
    by_line: dict[int, list[tuple[int, int]]] = {}
    for part in parts:
        by_line.setdefault(part.line, []).append((part.begin, part.end))
    lines = tuple(_masked_line(line, by_line.get(number)) for number, line in enumerate(page.lines))
    tables = tuple(_masked_table(table, page.lines, lines, rules) for table in page.tables)
    barcodes = tuple(replace(code, text=_masked_text(code.text, rules)) for code in page.barcodes)
    return replace(page, lines=lines, tables=tables, barcodes=barcodes, masked=parts)


def _masked_text(text: str, rules: Rules) -> str:
    return mask_spans(text, [(begin, end) for begin, end, _ in find_spans(text, rules)])


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
    words = None if line.words is None else mask_words(line.words, line.text, text)
    return replace(line, text=text, words=words)


def _masked_table(table: Table, before: Sequence[Line], after: Sequence[Line], rules: Rules) -> Table:
    return replace(table, cells=tuple(_masked_cell(cell, before, after, rules) for cell in table.cells))


def _masked_cell(cell: Cell, before: Sequence[Line], after: Sequence[Line], rules: Rules) -> Cell:
    """A cell holds whole lines, or the pieces of some that stand in it."""
    changed = [(before[at].text, after[at].text) for at in cell.lines if before[at].text != after[at].text]
    text = cell.text
    for line, masked in changed:
        text = _with_line_masked(text, line, masked)
    divided = [(line, masked) for line, masked in changed if line not in cell.text]
    if divided:
        text = _with_parts_masked(text, *("\n".join(texts) for texts in zip(*divided, strict=True)))
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


def _with_parts_masked(cell: str, lines: str, masked: str) -> str:
    """A cell's text whose parts that stand in lines that were divided, also within a word, are as these were masked."""
    return _LONG_PART.sub(lambda part: _as_masked(part[0], lines, masked), cell)


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
