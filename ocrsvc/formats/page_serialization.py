"""Serializes pages for pipes, files and caches, and validates them when they are read back."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, Final

from ocrsvc.results import Cell, Character, Line, Page, Region, Table, Word

_ANGLES: Final = (0, 90, 180, 270)
# `times` are those of one request, so they are not stored with a page.
_PACKED: Final = [field.name for field in fields(Page) if field.name != "times"]


class InvalidData(ValueError):
    """Data that is not a valid page, or not a valid message of an isolated engine."""


def pack_page(page: Page) -> dict[str, object]:
    """Convert a page for orjson, which writes infinite numbers and NaN as null; `unpack_page` refuses such pages."""
    return {name: getattr(page, name) for name in _PACKED}


def unpack_page(value: Any) -> Page:
    """Make a page from parsed JSON and check it completely. Raises InvalidData."""
    # Imported here because importing takes 0.2 s, and few processes unpack pages.
    from pydantic import ValidationError

    try:
        page: Page = _adapter().validate_python(value)
    except ValidationError as error:
        raise InvalidData(str(error)) from error
    if problem := next(_problems_of(page), None):
        raise InvalidData(problem)
    return page


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Page)


def _problems_of(page: Page) -> Iterator[str]:
    """Yield inconsistencies of a page whose values have the right types."""
    count = len(page.lines)
    if not (page.width > 0 < page.height and page.angle in _ANGLES):
        yield "a page without a size or an angle"
    if not all(0.0 <= part.confidence <= 1.0 for part in (*_texts(page.lines), *page.regions)):
        yield "a confidence outside 0 to 1"
    if not all(_is_in(table, cell) for table in page.tables for cell in table.cells):
        yield "a cell outside its table"
    cells = [cell for table in page.tables for cell in table.cells]
    referring: tuple[Region | Cell, ...] = (*page.regions, *cells)
    if not all(0 <= number < count for part in referring for number in part.lines):
        yield "a reference to a missing line"
    for part in page.masked or ():
        if not (0 <= part.line < count and 0 <= part.begin < part.end <= len(page.lines[part.line].text)):
            yield "a masked part outside its line"


def _texts(lines: Iterable[Line]) -> Iterator[Line | Word | Character]:
    for line in lines:
        yield line
        for word in line.words or ():
            yield word
            yield from word.characters


def _is_in(table: Table, cell: Cell) -> bool:
    return (
        0 <= cell.row < cell.row + cell.row_span <= table.rows
        and 0 <= cell.column < cell.column + cell.column_span <= table.columns
    )
