"""The contract between the code that finds lines and the recognizers that read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Direction
from ocrsvc.results import Check, Pixels, no_check


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The characters of one line with their positions and probabilities."""

    characters: list[str]  # N texts, spaces included
    first: NDArray[np.intp]  # (N,) first and last step of each character. Steps divide the crop's width evenly.
    last: NDArray[np.intp]
    steps: int  # of the whole crop
    confidence: float  # mean probability of the characters, each at its first step, in [0, 1]; 0 without characters
    probabilities: NDArray[np.floating]  # (N,) per character, in [0, 1]; 1 for a space that was inserted later


@dataclass(frozen=True, slots=True, eq=False)
class ScriptGaps:
    """Gaps between the ink of neighbouring characters along one line, in pixels of its crop."""

    pitch: float  # typical distance between neighbouring Chinese characters; 0 if there are too few of them
    chinese: NDArray[np.float32]  # (K,) gaps between two Chinese characters
    places: NDArray[np.intp]  # (N,) index of the last character before each change between Chinese and Latin script
    widths: NDArray[np.float32]  # (N,) gaps at these changes
    crop_width: int


@dataclass(frozen=True, slots=True)
class LineText:
    """The text that was read in one line."""

    text: str
    confidence: float  # in [0, 1]; empty text has confidence 0
    # positions of the characters, which together are the text; None if the recognizer reports none
    path: Path | None = field(default=None, compare=False)
    # gaps at changes of script, from which the page decides on spaces; None without such a change
    gaps: ScriptGaps | None = field(default=None, compare=False)
    # (w,) uint64, ink in each column of the crop, bit 1 << row for each row; only if words are requested
    ink: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    direction: Direction = field(default="ltr", compare=False)  # that of the recognizer's lines


class LineReader(Protocol):
    """Reads straightened line images."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of the crop of a line `along` px long and `across` px tall; it depends on nothing else."""
        ...

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read (h, w[, 3]) uint8 crops; one LineText per crop, in order. `check` is called before each crop."""
        ...
