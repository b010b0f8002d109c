"""Stand-ins for recognizers of other scripts: a script of our own, and small ONNX models that read it.

No wheel carries recognizers of Cyrillic, Arabic, or columns; these prove the way through detector and recognizer. A
sign is a stem and two or three of five stripes beside it, so no sign is a part of another of its script; it looks like
an E seen in a mirror, which the detector takes for text. The model takes the darkness of each stripe at every fourth
column of a line, and a class is as likely as its stripes agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final

import numpy as np
from drawn_models import model_of
from numpy.typing import NDArray
from onnx import helper

from ocrsvc.results import Pixels

Frame = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels."""

STRIPES: Final = 5
STEM: Final = 0.2  # how wide, in heights
WIDE: Final = 0.7  # of a sign
APART: Final = 0.4
SPACE: Final = 1.2  # between words

HEIGHT_PX: Final = 48
STEP_PX: Final = 4
WINDOW_PX: Final = 28  # without ink, for a space
CERTAINTY: Final = 4.0


@dataclass(frozen=True)
class StandIn:
    """A script of five or ten letters, and the languages of its model; columns have their stripes upright."""

    letters: str
    black: int  # stripes of a sign that are black
    direction: str
    languages: tuple[str, ...]
    first: int = 0  # of the signs with so many black stripes, the first that is its own
    every: int = 1  # and how far away the next one is
    ink_px: tuple[float, float] = (6.5, 41.5)  # where the detector's boxes have the ink of its lines, 48 px high

    @cached_property
    def stripes(self) -> dict[str, tuple[int, ...]]:
        """By letter: which of its stripes are black, from the top, or of columns from the right."""
        signs = list(combinations(range(STRIPES), self.black))
        return dict(zip(self.letters, signs[self.first :: self.every], strict=True))

    @property
    def dictionary(self) -> bytes:
        return "\n".join(self.letters).encode() + b"\n"

    def draw(self, pixels: Pixels, text: str, left: int, top: int, size: int) -> list[Frame]:
        """Draw a line, its letters `size` px high; a column is `size` px wide. Returns where each word stands."""
        frames = []
        at = 0.0
        words = text.split()
        for word in words[::-1] if self.direction == "rtl" else words:
            begin = at
            for sign in word[::-1] if self.direction == "rtl" else word:
                self._draw_sign(pixels[top:, left:], sign, at, size)
                at += (WIDE + APART) * size
            first, last = round(begin), round(at - APART * size)
            is_column = self.direction == "vertical"
            frames.append((0, first, size, last) if is_column else (first, 0, last, size))
            at += (SPACE - APART) * size
        placed = [(left + one, top + two, left + three, top + four) for one, two, three, four in frames]
        return placed[::-1] if self.direction == "rtl" else placed

    def _draw_sign(self, pixels: Pixels, sign: str, at: float, size: int) -> None:
        """Draw a sign `at` px from where the line begins, which is the top left corner of the pixels."""
        begin, stem, end = (round(at + part * size) for part in (0, WIDE - STEM, WIDE))
        heights = [(stripe * size / STRIPES, (stripe + 1) * size / STRIPES) for stripe in self.stripes[sign]]
        for first, last, upper, lower in [(stem, end, 0, size), *((begin, stem, *height) for height in heights)]:
            along, across = slice(first, last), slice(round(upper), round(lower))
            if self.direction == "vertical":
                pixels[:, :size][:, ::-1][along, across] = 0
            else:
                pixels[across, along] = 0

    def model(self) -> bytes:
        """The recognizer: x (N, 3, 48, W), -1 to 1, to the probabilities (N, W / 4, C) of blank, letters and space."""
        agreement = np.full((STRIPES + 2, len(self.letters) + 2), -CERTAINTY, np.float32)
        for number, stripes in enumerate(self.stripes.values(), 1):
            agreement[list(stripes), number] = CERTAINTY
        agreement[STRIPES:] = 0
        agreement[STRIPES, -1] = 2 * CERTAINTY
        agreement[STRIPES + 1, 0] = STRIPES * CERTAINTY
        bias_of_class = np.zeros(agreement.shape[1], np.float32)
        # A letter has five stripes that agree; with three or fewer it is the edge of one.
        bias_of_class[-1] = (3 + 2 * self.black - STRIPES) * CERTAINTY
        bias_of_class[0] = (3 + 2 * self.black) * CERTAINTY
        weights, bias = _filters(self.black, *self.ink_px)
        constants = {"weights": weights, "bias": bias, "least": np.float32(-1), "most": np.float32(1)}
        constants |= {"agreement": agreement, "bias_of_class": bias_of_class}
        pads = 2 * [0, (WINDOW_PX - STEP_PX) // 2]
        nodes = [
            helper.make_node("Conv", ["x", "weights", "bias"], ["dark"], strides=[1, STEP_PX], pads=pads),
            helper.make_node("Clip", ["dark", "least", "most"], ["black"]),
            helper.make_node("Squeeze", ["black"], ["stripes"], axes=[2]),
            helper.make_node("Transpose", ["stripes"], ["steps"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["steps", "agreement"], ["product"]),
            helper.make_node("Add", ["product", "bias_of_class"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"], axis=2),
        ]
        given: Sequence[int | str | None] = ["N", "T", agreement.shape[1]]
        return model_of(nodes, constants, 11, ("x", ["N", 3, HEIGHT_PX, "W"]), ("probabilities", given))


def _filters(black: int, top_px: float, bottom_px: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What makes of pixels whether each stripe is black, from -1 to 1, whether nothing is there, and whether a stem."""
    weights = np.zeros((STRIPES + 2, 3, HEIGHT_PX, WINDOW_PX), np.float32)
    middle = slice((WINDOW_PX - STEP_PX) // 2, (WINDOW_PX + STEP_PX) // 2)
    for stripe in range(STRIPES):
        centre = round(top_px + (stripe + 0.5) * (bottom_px - top_px) / STRIPES)
        # Darkness is (1 - x) / 2; half of it is neither black nor white.
        weights[stripe, :, centre - 1 : centre + 1, middle] = -2 / (3 * 2 * STEP_PX)
    # With less than 3 % ink it is a space; beyond the line's ends lies gray.
    weights[STRIPES] = 20 * 0.5 / (3 * HEIGHT_PX * WINDOW_PX)
    weights[STRIPES + 1] = 2 * weights[:STRIPES].sum(axis=0)
    bias = np.zeros(STRIPES + 2, np.float32)
    bias[STRIPES] = 20 * (0.03 - 0.5)
    # Of a sign's arms the sum is 4 * black - 2 * STRIPES, of its stem 2 * STRIPES, of an edge anything between.
    bias[STRIPES + 1] = -2 * (4 * black - 2 * STRIPES + 1)
    return weights, bias


CYRILLIC: Final = StandIn("абвгд", 2, "ltr", ("ru",), 0, 2)
ARABIC: Final = StandIn("ابتثجحخدذر", 3, "rtl", ("ar",))
COLUMNS: Final = StandIn("あいうえお", 2, "vertical", ("ja",), 1, 2, (10.5, 39.0))
