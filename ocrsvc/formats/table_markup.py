"""Writes a table as HTML and as Markdown, escaped so that no cell's text is taken for markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ocrsvc.formats.xml_text import to_markup
from ocrsvc.records import Cell, Table

# What GitHub Flavored Markdown reads as more than itself within a cell; of HTML, and of references to its characters.
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def to_html(table: Table) -> str:
    """A <table> with one <td> for each cell; line breaks are <br/>, so that it is XML too."""
    rows = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in _rows(table))
    return f"<table>{rows}</table>"


def to_markdown(table: Table) -> str:
    """A table of GitHub Flavored Markdown, whose first row is the heading.

    A spanning cell's text is in its first place. Line breaks become <br>, which is the only markup that cells can hold.
    """
    grid = [[""] * table.columns for _ in range(table.rows)]
    for cell in table.cells:
        grid[cell.row][cell.column] = "<br>".join(_SPECIAL.sub(r"\\\1", line) for line in cell.text.splitlines())
    heading, *body = [f"| {' | '.join(row)} |" for row in grid]
    return "\n".join([heading, f"|{' --- |' * table.columns}", *body])


def _rows(table: Table) -> Sequence[Sequence[Cell]]:
    rows: list[list[Cell]] = [[] for _ in range(table.rows)]
    for cell in table.cells:
        rows[cell.row].append(cell)
    return rows


def _td(cell: Cell) -> str:
    spans = (("rowspan", cell.row_span), ("colspan", cell.column_span))
    attributes = "".join(f' {name}="{span}"' for name, span in spans if span > 1)
    return f"<td{attributes}>{'<br/>'.join(map(to_markup, cell.text.splitlines()))}</td>"
