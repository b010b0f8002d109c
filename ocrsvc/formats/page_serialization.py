"""Packs a page into plain JSON values, and checks and unpacks them again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

from ocrsvc.records import (
    MASK_KINDS,
    Barcode,
    Box,
    Cell,
    Character,
    Line,
    LineSource,
    MaskedPart,
    Page,
    Region,
    RegionType,
    Table,
    Word,
)

_TYPES: Final = get_args(RegionType)
_SOURCES: Final = get_args(LineSource)
_ANGLES: Final = (0, 90, 180, 270)
_NUMBERS: Final = 8  # of a box: four corners


class InvalidData(ValueError):
    """What came back is not what `pack_page` or a working child packs."""


def pack_page(page: Page) -> list[object]:
    """A page as a list that orjson writes; numbers that are not finite become null, which `unpack_page` refuses."""
    lines = [_pack_line(line) for line in page.lines]
    packed = [int(page.width), int(page.height), int(page.angle), int(page.number), lines]
    if not (page.tables or page.regions or page.barcodes) and page.masked is None:
        # Pages of documents lie on disk, written by versions that knew none of these.
        return packed
    tables = [_pack_table(table) for table in page.tables]
    regions = [[region.type, float(region.confidence), region.lines, *_pack_box(region.box)] for region in page.regions]
    masked = [[part.kind, part.line, part.begin, part.end, *_pack_box(part.box)] for part in page.masked or ()]
    more: list[object] = [] if page.masked is None and not page.barcodes else [None if page.masked is None else masked]
    if page.barcodes:
        more.append([[code.type, code.text, *_pack_box(code.box)] for code in page.barcodes])
    return [*packed, tables, regions, *more]


def _pack_table(table: Table) -> list[object]:
    cells = [
        [cell.row, cell.column, cell.row_span, cell.column_span, cell.text, cell.lines, *_pack_box(cell.box)]
        for cell in table.cells
    ]
    return [table.rows, table.columns, cells, *_pack_box(table.box)]


def _pack_box(box: Box) -> list[float]:
    return [float(number) for corner in box for number in corner]


def _pack_line(line: Line) -> list[object]:
    """Text, confidence, corners, the words if there is a list of them, and its source if that is known."""
    words = None if line.words is None else [_pack_word(word) for word in line.words]
    if line.source is not None:
        return [*_pack_text(line), words, line.source]
    return _pack_text(line) + ([] if words is None else [words])


def _pack_word(word: Word) -> list[object]:
    return [*_pack_text(word), [_pack_text(character) for character in word.characters]]


def _pack_text(text: Line | Word | Character) -> list[object]:
    return [text.text, float(text.confidence), *_pack_box(text.box)]


def unpack_page(row: Any) -> Page:
    """The page that was packed, checked completely. Raises InvalidData."""
    match row:
        case [int(width), int(height), int(angle), int(number), list(rows), *rest] if (
            width > 0 < height and angle in _ANGLES
        ):
            lines = tuple(_unpack_line(line) for line in rows)
            return Page(width, height, angle, lines, number, *_unpack_rest(rest, lines))
    raise InvalidData("a page that is none")


def _unpack_rest(
    rest: list[Any], lines: Sequence[Line]
) -> tuple[tuple[Table, ...], tuple[Region, ...], tuple[MaskedPart, ...] | None, tuple[Barcode, ...]]:
    """The tables, regions, masked parts and bar codes of a page with these lines."""
    match rest:
        case []:
            return (), (), None, ()
        case [list(tables), list(regions), *others] if len(others) <= 2:
            masked, codes = [*others, None, None][:2]
            return (
                tuple(_unpack_table(table, len(lines)) for table in tables),
                tuple(_unpack_region(region, len(lines)) for region in regions),
                None if masked is None else tuple(_unpack_masked(part, lines) for part in _list(masked)),
                () if codes is None else tuple(_unpack_barcode(code) for code in _list(codes)),
            )
    raise InvalidData("tables, regions, masked parts and bar codes that are no lists")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidData("parts of a page that are no list")
    return value


def _unpack_barcode(row: Any) -> Barcode:
    match row:
        case [str(kind), str(text), *numbers]:
            return Barcode(kind, text, _unpack_box(numbers))
    raise InvalidData("a bar code without a format or a text")


def _unpack_masked(row: Any, lines: Sequence[Line]) -> MaskedPart:
    match row:
        case [str(kind), int(line), int(begin), int(end), *numbers] if (
            kind in MASK_KINDS and 0 <= line < len(lines) and 0 <= begin < end <= len(lines[line].text)
        ):
            return MaskedPart(kind, line, begin, end, _unpack_box(numbers))
    raise InvalidData("a masked part of no kind, or outside of its line")


def _unpack_region(row: Any, lines: int) -> Region:
    match row:
        case [str(kind), float(confidence), list(inside), *numbers] if kind in _TYPES and 0.0 <= confidence <= 1.0:
            return Region(cast(RegionType, kind), confidence, _unpack_box(numbers), _unpack_indices(inside, lines))
    raise InvalidData("a region of no type, or without a confidence from 0 to 1")


def _unpack_table(row: Any, lines: int) -> Table:
    match row:
        case [int(rows), int(columns), list(cells), *numbers] if rows > 0 < columns:
            unpacked = tuple(_unpack_cell(cell, lines) for cell in cells)
            if all(cell.row + cell.row_span <= rows and cell.column + cell.column_span <= columns for cell in unpacked):
                return Table(_unpack_box(numbers), rows, columns, unpacked)
    raise InvalidData("a table whose cells are not within its rows and columns")


def _unpack_cell(row: Any, lines: int) -> Cell:
    match row:
        case [int(top), int(left), int(rows), int(columns), str(text), list(inside), *numbers] if (
            min(top, left) >= 0 < min(rows, columns)
        ):
            return Cell(top, left, rows, columns, _unpack_box(numbers), text, _unpack_indices(inside, lines))
    raise InvalidData("a cell without a place")


def _unpack_indices(inside: list[Any], lines: int) -> tuple[int, ...]:
    """Places in a page's list of so many lines."""
    if not all(type(line) is int and 0 <= line < lines for line in inside):
        raise InvalidData("lines that the page has not")
    return tuple(inside)


def _unpack_line(row: Any) -> Line:
    text, confidence, box, rest = _unpack_text(row)
    match rest:
        case []:
            return Line(text, confidence, box)
        case [list(words)]:
            return Line(text, confidence, box, tuple(_unpack_word(word) for word in words))
        case [None, str(source)] if source in _SOURCES:
            return Line(text, confidence, box, None, cast(LineSource, source))
        case [list(words), str(source)] if source in _SOURCES:
            unpacked = tuple(_unpack_word(word) for word in words)
            return Line(text, confidence, box, unpacked, cast(LineSource, source))
    raise InvalidData("a line with something else than words and a source")


def _unpack_word(row: Any) -> Word:
    text, confidence, box, rest = _unpack_text(row)
    match rest:
        case [list(characters)]:
            return Word(text, confidence, box, tuple(_unpack_character(character) for character in characters))
    raise InvalidData("a word without a list of its characters")


def _unpack_character(row: Any) -> Character:
    text, confidence, box, rest = _unpack_text(row)
    if rest:
        raise InvalidData("a character with something else")
    return Character(text, confidence, box)


def _unpack_text(row: Any) -> tuple[str, float, Box, list[Any]]:
    """Text, confidence, corners, and what follows."""
    match row:
        case [str(text), float(confidence), *numbers] if 0.0 <= confidence <= 1.0:
            return text, confidence, _unpack_box(numbers[:_NUMBERS]), numbers[_NUMBERS:]
    raise InvalidData("a text without a confidence from 0 to 1")


def _unpack_box(numbers: list[Any]) -> Box:
    if len(numbers) != _NUMBERS or not all(type(number) is float and math.isfinite(number) for number in numbers):
        raise InvalidData("a box without four corners")
    x0, y0, x1, y1, x2, y2, x3, y3 = numbers
    return (x0, y0), (x1, y1), (x2, y2), (x3, y3)
