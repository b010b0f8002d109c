"""What one line says: straightened crops to text with the PP-OCR recogniser."""

from __future__ import annotations

from collections.abc import Sequence

from ocrsvc.engines.lines import LineText
from ocrsvc.engines.ppocr.ctc import best_path
from ocrsvc.engines.ppocr.models import Model
from ocrsvc.engines.ppocr.session import Session
from ocrsvc.engines.ppocr.spaces import text_with_spaces
from ocrsvc.engines.ppocr.tensors import to_tensor
from ocrsvc.records import Pixels

HEIGHT_PX = 48
WIDTH_STEP_PX = 16
NARROWEST_PX = 48
WIDEST_PX = 3200
SQUEEZE = 0.85  # of the width that keeps the shape: reads as well and costs less, except where strokes are few pixels
SMALL_TEXT_PX = 28


def input_width(length: float, across: float) -> int:
    """Network input width in pixels for a line of that length and height; depends on the line alone."""
    squeeze = SQUEEZE if across > SMALL_TEXT_PX else 1.0
    width = length * HEIGHT_PX / max(across, 1.0) * squeeze
    stepped = -(-width // WIDTH_STEP_PX) * WIDTH_STEP_PX
    return int(min(WIDEST_PX, max(NARROWEST_PX, stepped)))


def read_characters(model: Model) -> list[str]:
    """The recogniser's classes: blank, then the characters of its metadata, then the space."""
    return ["", *model.metadata["character"].split("\n"), " "]


class Recogniser:
    """Reads line crops, one run for each: on a CPU batching buys nothing and padding costs."""

    def __init__(self, session: Session, characters: Sequence[str]) -> None:
        self._session = session
        self._characters = characters

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """See engines.lines.LineReader."""
        return input_width(along, across), HEIGHT_PX

    def read(self, crops: Sequence[Pixels]) -> list[LineText]:
        """One LineText for each crop (HEIGHT_PX, w[, 3]) uint8, cut to `crop_size`."""
        return [self._read_one(crop) for crop in crops]

    def _read_one(self, crop: Pixels) -> LineText:
        path = best_path(self._session.run(to_tensor(crop))[0], self._characters)
        return LineText(text_with_spaces(path, crop), path.confidence)
