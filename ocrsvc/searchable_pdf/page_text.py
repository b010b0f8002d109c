"""What is written over a page: lines, each over its box, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Piece = tuple[str, float, float]
"""Text, and where it begins and ends along its line, whose length is 1."""

TextLine = tuple[Sequence[float], Sequence[Piece]]
"""A line's box, x0, y0, … x3, y3 in pixels, clockwise from where reading starts; and its pieces, from left to right."""


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of one page: its number in the document, from 1, its width and height in pixels, and its lines."""

    number: int
    width: int
    height: int
    lines: Sequence[TextLine]
