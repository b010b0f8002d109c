"""What commands show on a terminal: tables, and the progress of what takes its time."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

_WIDE: Final = frozenset("WF")
_BAR: Final = 24


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_right: bool = False) -> Iterator[str]:
    """The lines of a table, its heads first; each row has a cell for each column, as wide as the widest in it.

    Args:
        columns, rows: The heads and the cells.
        to_right: Whether all columns but the first are figures.
    """
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - _width(cell))
            cells.append(blanks + cell if to_right and at else cell + blanks)
        yield "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """In columns of a terminal, where Chinese takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in _WIDE else 1 for character in text)


def show_progress(done: int, count: int, doing: str = "") -> None:
    """A bar on a terminal, a line elsewhere."""
    filled = _BAR * done // max(1, count)
    end = "\r" if sys.stderr.isatty() and done < count else "\n"
    sys.stderr.write(f"[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{count} {doing:60}{end}")
    sys.stderr.flush()
