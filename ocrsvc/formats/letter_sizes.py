"""Estimates the size of a line's letters relative to the running text, from the height and the width of its box.

The height depends on which letters occur and on the detector's grid: boxes of 40 px text are 1.2 to 1.45 times as high
as those of 26 px text. The width of known letters is more precise, but the line may have gaps. So the height limits the
size to a range, and the width gives the size within this range.
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
"""Widths of letters in ems, averaged over common typefaces; _USUAL_ADVANCE is that of other letters and digits."""
_USUAL_ADVANCE: Final = 0.56
_WIDE_ADVANCE: Final = 1.0
_WIDE: Final = 0x2E80  # first code point of square characters: Chinese, Japanese and Korean
_MIN_EMS: Final = 0.3
_ADVANCE: Final = {letter: advance for letters, advance in _ADVANCES for letter in letters}
_SURELY_LARGER: Final = 1.05
_MAX_LESS, _MAX_MORE = 1 / 1.15, 1.3  # the width may correct the size estimated from the height by these factors
_STEPS: Final = 8  # sizes are counted in eighths of a pixel


class BodySize:
    """Median letter size of the added pages, in pixels; all of them must have the same width and height."""

    def __init__(self) -> None:
        self._heights, self._widths = Counter[int](), Counter[int]()

    def add(self, page: Page) -> BodySize:
        """Add the letters of a page to the median; returns this BodySize."""
        for line in page.lines:
            self._heights[round(_STEPS * height_of(line))] += len(line.text)
            self._widths[round(_STEPS * _em_of(line))] += len(line.text)
        return self

    def ratio_of(self, line: Line) -> float:
        """Size of a line's letters relative to the median; 1 if no letters were added."""
        height, em = _middle(self._heights), _middle(self._widths)
        if not height:
            return 1.0
        by_height = height_of(line) / height
        if by_height < _SURELY_LARGER or not em:
            return by_height
        return min(max(_MAX_LESS * by_height, _em_of(line) / em), _MAX_MORE * by_height)


def height_of(line: Line) -> float:
    """Height of a line's box in pixels."""
    return math.dist(line.box[0], line.box[3])


def _em_of(line: Line) -> float:
    """The font size, in pixels, at which the line's text is as wide as its box."""
    return math.dist(line.box[0], line.box[1]) / max(_MIN_EMS, sum(map(_advance, line.text)))


def _advance(letter: str) -> float:
    return _WIDE_ADVANCE if ord(letter) >= _WIDE else _ADVANCE.get(letter, _USUAL_ADVANCE)


def _middle(counts: Counter[int]) -> float:
    left = counts.total() / 2
    for size in sorted(counts):
        left -= counts[size]
        if left <= 0:
            return size / _STEPS
    return 0.0
