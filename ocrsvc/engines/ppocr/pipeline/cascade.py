"""Reads a line with a quick recognizer first, and with the careful one where the quick one may be wrong."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer
from ocrsvc.results import Check, no_check

MIN_WIDTH_PX: Final = 112  # narrower lines are read by the careful recognizer alone: few of them would be trusted
TRUSTED: Final = 0.975  # confidence from which a line of the quick recognizer is kept
# The quick recognizer reads "14 A" as "14A" with high confidence, so such text is never trusted.
_DIGIT_BESIDE_LETTER: Final = re.compile(r"[0-9][A-Za-z]|[A-Za-z][0-9]")


def is_trusted(text: str, confidence: float) -> bool:
    """Whether the quick recognizer's text of a line is kept; `confidence` is the characters' mean probability."""
    return confidence >= TRUSTED and _DIGIT_BESIDE_LETTER.search(text) is None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CascadeRecognizer(Recognizer):
    """The careful recognizer; it reads only lines that `quick` cannot read, or whose text by `quick` is not trusted."""

    quick: Recognizer  # reads crops of the same height

    def read_line_images(self, line_images: Sequence[LineImage], check: Check = no_check) -> list[LineText]:
        """See Recognizer. A line's text depends on that line alone."""
        wide = [index for index, image in enumerate(line_images) if image.width >= MIN_WIDTH_PX]
        read = zip(wide, self.quick.read_line_images([line_images[index] for index in wide], check), strict=True)
        texts = {index: text for index, text in read if is_trusted(text.text, text.confidence)}
        left = [index for index in range(len(line_images)) if index not in texts]
        careful = super().read_line_images([line_images[index] for index in left], check)
        texts.update(zip(left, careful, strict=True))
        return [texts[index] for index in range(len(line_images))]
