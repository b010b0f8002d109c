"""The interface between the code that finds lines and the recognizers that read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Direction
from ocrsvc.results import Check, Pixels, no_check


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The characters of one line with their positions and probabilities, as the recognizer's best path gives them."""

    characters: list[str]  # N characters, including spaces
    first: NDArray[np.intp]  # (N,) first and last step of each character; the crop's width is divided into equal steps
    last: NDArray[np.intp]
    steps: int  # number of steps in the crop
    confidence: float  # mean probability of the characters, each at its first step, in [0, 1]; 0 if there are none
    probabilities: NDArray[np.floating]  # (N,) of each character, in [0, 1]; 1 for a space that was inserted later


@dataclass(frozen=True, slots=True, eq=False)
class ScriptGaps:
    """Widths of the gaps between the ink of neighbouring characters in one line, in pixels of its crop."""

    pitch: float  # typical distance between neighbouring Chinese characters; 0 if there are too few of them
    chinese: NDArray[np.float32]  # (K,) gaps between neighbouring Chinese characters
    places: NDArray[np.intp]  # (N,) index of the last character before each change between Chinese and Latin script
    widths: NDArray[np.float32]  # (N,) gap at each change between Chinese and Latin script
    crop_width: int


@dataclass(frozen=True, slots=True)
class LineText:
    """The text that a recognizer read in one line."""

    text: str
    confidence: float  # in [0, 1]; empty text has confidence 0
    # the characters of the text with their positions; None if the recognizer does not report positions
    path: Path | None = field(default=None, compare=False)
    # gaps where the script changes, which decide on spaces for the whole page; None if the script does not change
    gaps: ScriptGaps | None = field(default=None, compare=False)
    # (w,) uint64, ink in each column of the crop: bit 1 << row is set if the row has ink; only if words are requested
    ink: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    direction: Direction = field(default="ltr", compare=False)  # writing direction of the recognizer's script


class LineReader(Protocol):
    """Reads the text in straightened line images."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of the crop for a line `along` px long and `across` px tall; depends only on these two."""
        ...

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read (h, w[, 3]) uint8 crops; returns one LineText per crop. Calls `check` before each crop."""
        ...
