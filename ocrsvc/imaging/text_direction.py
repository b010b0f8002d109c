"""Whether a line's text runs from left to right or from right to left, by its letters (the classes of UAX #9)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

LEFT_TO_RIGHT: Final = frozenset({"L"})
RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})

MOSTLY: Final = 2
"""Latin letters for each Arabic or Hebrew one, above which a line runs from left to right: such lines stand on the same
pages, while lines with long Latin names in them are common."""


def runs_from_right_to_left(text: str) -> bool | None:
    """How a line runs as a whole; None where it has no letters."""
    return is_turned([unicodedata.bidirectional(character) for character in text])


def is_turned(kinds: Sequence[str]) -> bool | None:
    """The same of the bidirectional classes of its characters."""
    leftwards, rightwards = count(kinds, RIGHT_TO_LEFT), count(kinds, LEFT_TO_RIGHT)
    return MOSTLY * leftwards >= rightwards if leftwards or rightwards else None


def count(kinds: Sequence[str], wanted: frozenset[str]) -> int:
    """How many of the classes are among these."""
    return sum(kind in wanted for kind in kinds)
