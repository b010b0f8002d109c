"""How large the letters of a line are, of those of the running text: by the height of its box, and by its width.

Boxes are as high as what was found of a line, which depends on its letters and on the detector's grid: those of 40 px
over text of 26 px are 1.2 to 1.45 times as high. A line's width says more, once it is known which letters stand in it;
but it is that of the gaps in it as well. So the height says between what the size must be, and the width where.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from ocrsvc.results import Line, Page

_ADVANCES: Final = (
    (" !'|,.:;ijl\u00b7\u2018\u2019", 0.3),
    ('-()[]{}/\\"`fIrt', 0.38),
    ("mwMW@%\u2014\u2026", 0.9),
    ("ABCDEFGHKLNOPQRSTUVXYZ&", 0.68),
)
"""Widths of letters in ems, in the mean of common typefaces; of other letters and digits the next."""
_USUAL_ADVANCE: Final = 0.56
_WIDE_ADVANCE: Final = 1.0
_WIDE: Final = 0x2E80  # the first of the characters that are as wide as high: Chinese, Japanese and Korean
_LEAST_EMS: Final = 0.3
_ADVANCE: Final = {letter: advance for letters, advance in _ADVANCES for letter in letters}
_SURELY_LARGER: Final = 1.05
_MOST_LESS, _MOST_MORE = 1 / 1.15, 1.3  # of the size that a line's height gives, between which its width corrects it
_STEPS: Final = 8  # of a pixel, in which widths of letters are counted


class BodySize:
    """How large running text is in the pages of one size that were added: half of their letters are no larger."""

    def __init__(self) -> None:
        self._heights, self._widths = Counter[int](), Counter[int]()

    def add(self, page: Page) -> BodySize:
        """Count the letters of a page."""
        for line in page.lines:
            self._heights[round(_STEPS * height_of(line))] += len(line.text)
            self._widths[round(_STEPS * _em_of(line))] += len(line.text)
        return self

    def ratio_of(self, line: Line) -> float:
        """How many times as large as these the letters of a line are; 1 without any."""
        height, em = _middle(self._heights), _middle(self._widths)
        if not height:
            return 1.0
        by_height = height_of(line) / height
        if by_height < _SURELY_LARGER or not em:
            return by_height
        return min(max(_MOST_LESS * by_height, _em_of(line) / em), _MOST_MORE * by_height)


def height_of(line: Line) -> float:
    """Of its box, in pixels."""
    return math.dist(line.box[0], line.box[3])


def _em_of(line: Line) -> float:
    """The size of type at which the line's text is as wide as its box, in pixels."""
    return math.dist(line.box[0], line.box[1]) / max(_LEAST_EMS, sum(map(_advance, line.text)))


def _advance(letter: str) -> float:
    return _WIDE_ADVANCE if ord(letter) >= _WIDE else _ADVANCE.get(letter, _USUAL_ADVANCE)


def _middle(counts: Counter[int]) -> float:
    left = counts.total() / 2
    for size in sorted(counts):
        left -= counts[size]
        if left <= 0:
            return size / _STEPS
    return 0.0
