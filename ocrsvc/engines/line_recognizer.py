"""The contract of line recognition, between the code that finds lines and the recognizers that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ocrsvc.records import Check, Pixels, no_check


@dataclass(frozen=True, slots=True)
class LineText:
    """The text of one line and its confidence in [0, 1]; empty text has confidence 0."""

    text: str
    confidence: float


class LineReader(Protocol):
    """Reads straightened line images."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """(width, height) in pixels at which it wants a line that is `along` pixels long and `across` pixels tall.

        Depends on that line alone, so that a line reads the same whatever is read beside it.
        """
        ...

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """One LineText for each (h, w[, 3]) uint8 crop, in the same order; `check` is called before each."""
        ...
