"""Escapes text for XML and HTML, and writes tables as HTML and as Markdown."""

import re
from typing import Final

from ocrsvc.results import Cell, Table

# XML's special characters, and the characters that XML 1.0 forbids or that XML parsers normalize.
_SPECIAL: Final = re.compile("[&<>\"']|[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# White space other than the space is written as a reference, because parsers normalize it in attributes.
_REFERENCES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&#39;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}
# Characters that act as markup, HTML or references in a table cell of GitHub Flavored Markdown.
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")


def to_markup(text: str) -> str:
    """Escape text for an element or attribute of XML or HTML; characters that XML cannot contain become U+FFFD."""
    return _SPECIAL.sub(lambda match: _REFERENCES.get(match[0], "\N{REPLACEMENT CHARACTER}"), text)


def to_html(table: Table) -> str:
    """Write a <table> with one <td> per cell; line breaks are <br/>, so that it is also XML."""
    rows = [""] * table.rows
    for cell in table.cells:
        rows[cell.row] += _td(cell)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def to_markdown(table: Table) -> str:
    """Write a table in GitHub Flavored Markdown with the first row as its heading.

    A spanning cell's text stands in its first cell. Line breaks become <br>, the only markup that cells can contain.
    """
    grid = [[""] * table.columns for _ in range(table.rows)]
    for cell in table.cells:
        grid[cell.row][cell.column] = "<br>".join(_MARKDOWN.sub(r"\\\1", line) for line in cell.text.splitlines())
    heading, *body = [f"| {' | '.join(row)} |" for row in grid]
    return "\n".join([heading, f"|{' --- |' * table.columns}", *body])


def _td(cell: Cell) -> str:
    spans = (("rowspan", cell.row_span), ("colspan", cell.column_span))
    attributes = "".join(f' {name}="{span}"' for name, span in spans if span > 1)
    return f"<td{attributes}>{'<br/>'.join(map(to_markup, cell.text.splitlines()))}</td>"
