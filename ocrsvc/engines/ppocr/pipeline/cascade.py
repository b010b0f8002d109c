"""Reads a line with a quick recognizer first, and with the careful one where the quick one may be wrong."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.ppocr.pipeline.network_input import at_usual_height
from ocrsvc.engines.ppocr.pipeline.recognition_batches import LineImage
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer
from ocrsvc.engines.ppocr.pipeline.spaces import blank_columns, longest_runs
from ocrsvc.results import Check, Pixels, no_check

MIN_WIDTH_PX: Final = 80  # narrower lines are read by the careful recognizer alone: few of them would be trusted
TRUSTED: Final = 0.975  # mean probability of the visible characters from which a line of the quick recognizer is kept
# The quick recognizer reads too many and too few spaces, with probabilities that say little about the other characters.
SURE_SPACE: Final = 0.9  # probability from which a space is kept however wide its gap is
MIN_GAP_PX: Final = 11  # width of the gap at any other space, in the line's crop, which is 48 px tall
# The quick recognizer reads "14 A" as "14A" with high confidence, so such text is never trusted.
_DIGIT_BESIDE_LETTER: Final = re.compile(r"[0-9][A-Za-z]|[A-Za-z][0-9]")


def is_trusted(path: Path, visible: NDArray[np.bool_], get_crop: Callable[[], Pixels]) -> bool:
    """Whether the quick recognizer's text of a line is kept.

    `visible` (N,) tells which of the N characters are not spaces. `get_crop` returns the line's (48, w[, 3]) crop; it
    is called only if the text has spaces that may be wrong.
    """
    if not visible.any() or path.probabilities[visible].mean() < TRUSTED:
        return False
    if _DIGIT_BESIDE_LETTER.search("".join(path.characters)) is not None:
        return False
    doubtful = np.flatnonzero(~visible & (path.probabilities < SURE_SPACE))
    if not len(doubtful):
        return True
    blank = blank_columns(get_crop())
    middles = (path.first + path.last + 1)[visible] / 2 * (len(blank) / path.steps)
    gaps = longest_runs(blank, middles.astype(np.intp))
    after = np.searchsorted(np.flatnonzero(visible), doubtful)  # number of the visible character after each space
    inside = after[(after > 0) & (after <= len(gaps))]
    return bool((gaps[inside - 1] >= MIN_GAP_PX).all())


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CascadeRecognizer(Recognizer):
    """The careful recognizer; it reads only lines that `quick` cannot read, or whose text by `quick` is not trusted."""

    quick: Recognizer  # reads crops of the same height

    def read_line_images(self, line_images: Sequence[LineImage], check: Check = no_check) -> list[LineText]:
        """See Recognizer. A line's text depends on that line alone."""
        wide = [index for index, image in enumerate(line_images) if image.width >= MIN_WIDTH_PX]
        read = zip(wide, self.quick.read_line_images([line_images[index] for index in wide], check), strict=True)
        kept = ((index, _if_trusted(text, line_images[index])) for index, text in read)
        texts = {index: text for index, text in kept if text is not None}
        left = [index for index in range(len(line_images)) if index not in texts]
        careful = super().read_line_images([line_images[index] for index in left], check)
        texts.update(zip(left, careful, strict=True))
        return [texts[index] for index in range(len(line_images))]


def _if_trusted(text: LineText, line_image: LineImage) -> LineText | None:
    """The text with the confidence of its visible characters, for which it is kept; None if it is not trusted."""
    path = text.path
    assert path is not None, "a Recognizer's texts have paths"
    visible = np.array([not character.isspace() for character in path.characters], bool)
    if not is_trusted(path, visible, lambda: at_usual_height(line_image.pixels())):
        return None
    confidence = float(path.probabilities[visible].mean())
    return replace(text, confidence=confidence, path=replace(path, confidence=confidence))
