"""A page of a service's answer as the record that output formats take; loads a numeric library, unlike the client."""

from __future__ import annotations

from typing import cast

from ocrsvc.client import response
from ocrsvc.records import Box, Cell, Line, Page, Table, Word


def to_record(page: response.Page) -> Page:
    """A page of a service's answer, as output formats take it."""
    lines, tables = tuple(map(_to_line, page.lines)), tuple(map(_to_table, page.tables))
    return Page(page.width, page.height, page.angle, lines, page.number, tables)


def _to_line(line: response.Line) -> Line:
    words = [Word(word.text, word.confidence, cast("Box", word.box)) for word in line.words or ()]
    return Line(line.text, line.confidence, cast("Box", line.box), None if line.words is None else tuple(words))


def _to_table(table: response.Table) -> Table:
    cells = [
        Cell(
            cell.row, cell.column, cell.row_span, cell.column_span, cast("Box", cell.box), cell.text, tuple(cell.lines)
        )
        for cell in table.cells
    ]
    return Table(cast("Box", table.box), table.rows, table.columns, tuple(cells))
