"""Stand-ins for recognizers of other scripts: an invented script, and small ONNX models that read it.

No package ships recognizers of Cyrillic, Arabic or vertical text; these test the path through detector and recognizer.
A letter is a stem with two or three of five stripes beside it; no letter is a part of another one of its script. It
looks like a mirrored E, which the detector finds as text. The model measures the darkness of each stripe in every
fourth pixel column of a line; the more stripes agree with a class, the likelier it is.
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
STEM: Final = 0.2  # width of a stem; all widths are in letter heights
WIDE: Final = 0.7  # width of a letter
APART: Final = 0.4
SPACE: Final = 1.2  # between words

HEIGHT_PX: Final = 48
STEP_PX: Final = 4
WINDOW_PX: Final = 28  # a space has no ink in this width
CERTAINTY: Final = 4.0


@dataclass(frozen=True)
class StandIn:
    """A script of five or ten letters, and the languages of its model; vertical text has upright stripes."""

    letters: str
    black: int  # number of black stripes per letter
    direction: str
    languages: tuple[str, ...]
    first: int = 0  # index of its first pattern among those with `black` stripes
    every: int = 1  # step to its next pattern
    ink_px: tuple[float, float] = (6.5, 41.5)  # top and bottom of the ink in a detected line of 48 px

    @cached_property
    def stripes(self) -> dict[str, tuple[int, ...]]:
        """Each letter's black stripes, counted from the top, or in vertical text from the right."""
        patterns = list(combinations(range(STRIPES), self.black))
        return dict(zip(self.letters, patterns[self.first :: self.every], strict=True))

    @property
    def dictionary(self) -> bytes:
        return "\n".join(self.letters).encode() + b"\n"

    def draw(self, pixels: Pixels, text: str, left: int, top: int, size: int) -> list[Frame]:
        """Draw a line `size` px high, or vertical text `size` px wide; returns the frame of each word."""
        frames = []
        at = 0.0
        words = text.split()
        for word in words[::-1] if self.direction == "rtl" else words:
            begin = at
            for letter in word[::-1] if self.direction == "rtl" else word:
                self._draw_letter(pixels[top:, left:], letter, at, size)
                at += (WIDE + APART) * size
            first, last = round(begin), round(at - APART * size)
            is_column = self.direction == "vertical"
            frames.append((0, first, size, last) if is_column else (first, 0, last, size))
            at += (SPACE - APART) * size
        placed = [(left + one, top + two, left + three, top + four) for one, two, three, four in frames]
        return placed[::-1] if self.direction == "rtl" else placed

    def _draw_letter(self, pixels: Pixels, letter: str, at: float, size: int) -> None:
        """Draw a letter `at` px from the start of the line, which is the top left corner of the pixels."""
        begin, stem, end = (round(at + part * size) for part in (0, WIDE - STEM, WIDE))
        heights = [(stripe * size / STRIPES, (stripe + 1) * size / STRIPES) for stripe in self.stripes[letter]]
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
        # All five stripes agree on a letter; three or fewer agree at its edge.
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
        output: Sequence[int | str | None] = ["N", "T", agreement.shape[1]]
        return model_of(nodes, constants, 11, ("x", ["N", 3, HEIGHT_PX, "W"]), ("probabilities", output))


def _filters(black: int, top_px: float, bottom_px: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Convolution weights and bias: whether each stripe is black (-1 to 1), whether it is a space, whether a stem."""
    weights = np.zeros((STRIPES + 2, 3, HEIGHT_PX, WINDOW_PX), np.float32)
    middle = slice((WINDOW_PX - STEP_PX) // 2, (WINDOW_PX + STEP_PX) // 2)
    for stripe in range(STRIPES):
        centre = round(top_px + (stripe + 0.5) * (bottom_px - top_px) / STRIPES)
        # Darkness is (1 - x) / 2; 0.5 is neither black nor white.
        weights[stripe, :, centre - 1 : centre + 1, middle] = -2 / (3 * 2 * STEP_PX)
    # Less than 3 % ink is a space; the padding beyond the line's ends counts as gray.
    weights[STRIPES] = 20 * 0.5 / (3 * HEIGHT_PX * WINDOW_PX)
    weights[STRIPES + 1] = 2 * weights[:STRIPES].sum(axis=0)
    bias = np.zeros(STRIPES + 2, np.float32)
    bias[STRIPES] = 20 * (0.03 - 0.5)
    # The sum is 4 * black - 2 * STRIPES on a letter's arms, 2 * STRIPES on its stem, and in between at an edge.
    bias[STRIPES + 1] = -2 * (4 * black - 2 * STRIPES + 1)
    return weights, bias


CYRILLIC: Final = StandIn("абвгд", 2, "ltr", ("ru",), 0, 2)
ARABIC: Final = StandIn("ابتثجحخدذر", 3, "rtl", ("ar",))
COLUMNS: Final = StandIn("あいうえお", 2, "vertical", ("ja",), 1, 2, (10.5, 39.0))
