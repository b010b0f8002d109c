"""Tables on the terminal: columns as wide as their widest cell, two spaces between."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

_WIDE: Final = frozenset("WF")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, its heads first; each row has a cell for each column."""
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """In columns of a terminal, where Chinese takes two."""
    return sum(2 if unicodedata.east_asian_width(sign) in _WIDE else 1 for sign in text)
