"""The interface of every line recognizer: crops of lines in, their texts out.

A plug-in provides a `LineRecognizer`, of which `engines/line_engine.py` makes an engine. For recognizers that report
boxes, `path_at` makes the `Path`, from which the words and characters of answers come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Direction
from ocrsvc.results import Check, Pixels, no_check

# Order of a line's characters: from left to right as on the page, or as they are typed and spoken.
Order = Literal["visual", "logical"]
# Largest ratio of width to height of a crop; longer lines are squeezed, because reading takes time in proportion.
MAX_WIDTH_PER_HEIGHT: Final = 64
_MIN_WIDTH_PER_HEIGHT: Final = 0.5
_MIN_STEPS: Final = 2  # smallest distance between the middles of two characters, in steps


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The recognized characters of one line, with their positions in the crop and their probabilities."""

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
    # gaps where the script changes; those of all lines decide where the page has spaces; None without a change
    gaps: ScriptGaps | None = field(default=None, compare=False)
    # (w,) uint64, ink in each column of the crop: bit 1 << row is set if the row has ink; only if words are requested
    ink: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    direction: Direction = field(default="ltr", compare=False)  # writing direction of the recognizer's script
    order: Order = field(default="visual", compare=False)  # order of the characters in `text` and `path`


class LineReader(Protocol):
    """Reads the text in straightened line images, for one thread."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of the crop for a line `along` px long and `across` px tall; depends only on these two."""
        ...

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read (h, w[, 3]) uint8 crops; returns one LineText per crop. Calls `check` before each crop."""
        ...


@dataclass(frozen=True, slots=True)
class RecognizerInfo:
    """A recognizer's model, version, languages and abilities, as its plug-in declares them."""

    model: str  # name of its model, for answers
    version: str  # changes whenever the recognized text may change
    provider: str  # what runs it, such as a library
    languages: tuple[str, ...] = ()
    direction: Direction = "ltr"
    serial_open: bool = False  # readers must be opened one after the other
    reads_latin: bool = True  # if not, ppocr's recognizer reads the Latin words


class OwnedLineReader(LineReader, Protocol):
    """A LineReader with resources of its own, which only the thread that opened it may use."""

    def close(self) -> None:
        """Free the resources; called once."""


class LineRecognizer(Protocol):
    """A loaded recognizer, which opens a reader for each thread."""

    @property
    def info(self) -> RecognizerInfo:
        """The recognizer's model, version, languages and abilities."""
        ...

    def open_reader(self) -> OwnedLineReader:
        """Open a reader for the calling thread. Raises EngineUnavailable, BadModel."""
        ...


def crop_of_height(along: float, across: float, height_px: int) -> tuple[int, int]:
    """Width and height of a crop that keeps the aspect ratio of a line; for `LineReader.crop_size`."""
    ratio = along / max(across, 1.0)
    return round(height_px * min(max(ratio, _MIN_WIDTH_PER_HEIGHT), MAX_WIDTH_PER_HEIGHT)), height_px


def path_at(
    characters: Sequence[str], middles: Sequence[float], probabilities: Sequence[float], columns: int
) -> Path | None:
    """A Path of characters whose boxes have their `middles` at these shares of the crop's width, in any order.

    Boxes may overlap: only their middles are used, and moved apart where they coincide. `columns` is the crop's
    width in pixels. None if the crop is too narrow for that many characters.
    """
    count = len(characters)
    if _MIN_STEPS * count > columns:
        return None
    order = np.argsort(middles, kind="stable")
    lowest = _MIN_STEPS * np.arange(count)
    places = np.asarray(middles, np.float64)[order] * columns - lowest
    # Move characters apart to at least _MIN_STEPS, and keep all within the crop.
    places = np.clip(np.maximum.accumulate(places), 0, columns - _MIN_STEPS * count) + lowest
    steps = np.empty(count, np.intp)
    steps[order] = places.astype(np.intp)
    values = np.asarray(probabilities, np.float64)
    return Path(list(characters), steps, steps, columns, float(values.mean()) if count else 0.0, values)


def gray_with_margin(crop: Pixels, share: float) -> Pixels:
    """Convert a crop (h, w[, 3]) to contiguous gray, and add a margin of `share` of its height in background colour."""
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY) if crop.ndim == 3 else crop
    margin = max(1, round(share * gray.shape[0]))
    colour = float(np.median(np.concatenate((gray[0], gray[-1], gray[:, 0], gray[:, -1]))))
    framed = cv2.copyMakeBorder(gray, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=colour)
    return np.ascontiguousarray(framed, np.uint8)
