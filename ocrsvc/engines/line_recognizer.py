"""The contract of line recognition, between the code that finds lines and the recognizers that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Direction
from ocrsvc.results import Check, Pixels, no_check


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The characters of one line, where each stands, and how sure they are."""

    characters: list[str]  # what was read, one text for each character; spaces are characters too
    first: NDArray[np.intp]  # (N,) the first and the last step of each. The steps divide the crop's width evenly.
    last: NDArray[np.intp]
    steps: int
    confidence: float  # mean probability of the characters, each at its first step, in [0, 1]; 0 for none
    # (N,) those of each character, in [0, 1]; that of a space that was inserted later is 1
    probabilities: NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class ScriptGaps:
    """How far apart the ink of neighbouring characters stands in one line, in pixels of its crop, along the line."""

    pitch: float  # the usual way from one Chinese character to the next; 0 where too few of them stand side by side
    chinese: NDArray[np.float32]  # (K,) the gaps between two Chinese characters
    # (N,) where the script changes between Chinese and Latin: the last character of the path before
    places: NDArray[np.intp]
    widths: NDArray[np.float32]  # (N,) the gaps there
    crop_width: int


@dataclass(frozen=True, slots=True)
class LineText:
    """What one line says."""

    text: str
    confidence: float  # in [0, 1]; empty text has confidence 0
    # where each character stands; its characters together are the text. None from a recognizer that does not tell.
    path: Path | None = field(default=None, compare=False)
    # where the script changes, for the page to decide on the spaces there. None where it does not.
    gaps: ScriptGaps | None = field(default=None, compare=False)
    # (w,) uint64, the ink in each column of its crop: bit 1 << row for each row; where words are asked for
    ink: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    direction: Direction = field(default="ltr", compare=False)  # how the lines of the recognizer run that read it


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
