"""What is written over a page: runs of text, each over one box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Run = tuple[str, Sequence[float]]
"""Text, and the box over which it is written: x0, y0, … x3, y3, clockwise from where reading starts, in pixels."""


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of one page: its number in the document, from 1, its width and height in pixels, and its runs."""

    number: int
    width: int
    height: int
    runs: Sequence[Run]
