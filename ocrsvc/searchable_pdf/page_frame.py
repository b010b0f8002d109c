"""Where a page that was drawn lies in its own points: as pdfium, which draws it, takes its boxes and its turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.searchable_pdf.text_content import Point, ToPoints

_NO_BOX: Final = (0.0, 0.0, 612.0, 792.0)

Frame = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


@dataclass(frozen=True, slots=True)
class PageFrame:
    """What is shown of a page, and the clockwise degrees by which it is turned then: 0, 90, 180 or 270."""

    box: Frame
    turn: int

    def to_points(self, width: int, height: int) -> ToPoints:
        """From pixels of the page drawn so wide and high."""
        left, bottom, right, top = self.box
        wide, high = right - left, top - bottom

        def point(x: float, y: float) -> Point:
            across, down = x / width, y / height
            match self.turn:
                case 90:
                    return left + down * wide, bottom + across * high
                case 180:
                    return right - across * wide, bottom + down * high
                case 270:
                    return right - down * wide, top - across * high
                case _:
                    return left + across * wide, top - down * high

        return point


def frame_of(media: Sequence[float], crop: Sequence[float], turn: int) -> PageFrame:
    """The frame of a page with these boxes, as they stand in the file; without one that is sound, of a letter."""
    whole = _box_of(media) or _NO_BOX
    part = _box_of(crop)
    return PageFrame((_common(whole, part) if part else None) or whole, turn // 90 % 4 * 90)


def _box_of(numbers: Sequence[float]) -> Frame | None:
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        return None
    x0, y0, x1, y1 = numbers
    return _unless_empty((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))


def _common(one: Frame, other: Frame) -> Frame | None:
    lefts, rights = zip(one[:2], other[:2], strict=True), zip(one[2:], other[2:], strict=True)
    left, bottom = (max(pair) for pair in lefts)
    right, top = (min(pair) for pair in rights)
    return _unless_empty((left, bottom, right, top))


def _unless_empty(box: Frame) -> Frame | None:
    left, bottom, right, top = box
    return box if left < right and bottom < top else None
