"""Looks for rules between the cells of a table, on a small drawing of a page."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from ocrsvc.imaging.pdf.columns import RuleFinder
from ocrsvc.imaging.pdf.copied_text import Flags, Numbers, PageFrame
from ocrsvc.records import Pixels

_STEP: Final = 12
"""The least difference of a rule from the ground, of 255: a hairline of light gray has it at 50 dpi."""
_ABOVE, _BELOW = 0.85, 0.28
"""Ems of a rule above and below the baseline: more than any letter or bracket has."""
_NEAR_PX: Final = 3
"""On each side of a rule, within which the ground is seen."""
_LEAST_PX: Final = 3  # of a drawing
_SAMPLES: Final = 12
"""Rows at which a column is looked at, from above a line to below it."""
_MOST_PX: Final = 64
"""Of a white that is looked at from its left side on."""


class PageRules:
    """The upright rules of a page, and other upright edges between two grounds.

    Args:
        drawing: The page in gray, with the small sides of the frame.
        frame: Of the page.
    """

    def __init__(self, drawing: Pixels, frame: PageFrame) -> None:
        self._drawing, self._frame = drawing, frame

    def along(self, degrees: int) -> RuleFinder | None:
        """What finds rules across lines that are turned clockwise by so much; None for slanted ones.

        It takes (G,) left and right sides, baselines and font sizes in pixels of the page, turned about its origin so
        that lines run from left to right. It says where a rule is, and where one ground ends and another one begins.
        """
        if degrees % 90:
            return None
        height, width = self._drawing.shape
        x, y = {0: (0, 0), 90: (0, width), 180: (width, height), 270: (height, 0)}[degrees]
        across, down = self._frame.small_width / self._frame.width, self._frame.small_height / self._frame.height
        scale_x, scale_y = (across, down) if degrees % 180 == 0 else (down, across)
        turned = np.ascontiguousarray(np.rot90(self._drawing, degrees // 90))
        # The darker of the grounds on both sides: beside a rule both are lighter, in a coloured ground one is the same.
        beside = [cv2.dilate(turned, np.ones((1, _NEAR_PX + 1), np.uint8), anchor=(at, 0)) for at in (0, _NEAR_PX)]
        ground = np.asarray(cv2.min(*beside), np.uint8)

        def find(left: Numbers, right: Numbers, base: Numbers, em: Numbers) -> tuple[Flags, Flags]:
            sides = left * scale_x + x, right * scale_x + x
            rows = (base - _ABOVE * em) * scale_y + y, (base + _BELOW * em) * scale_y + y
            return _find(turned, ground, *sides, *rows)

        return find


def _find(
    drawing: Pixels, ground: Pixels, left: Numbers, right: Numbers, top: Numbers, bottom: Numbers
) -> tuple[Flags, Flags]:
    """In which of these frames, in pixels, a column is darker than both grounds beside it, from top to bottom.

    And in which there is one whose grounds differ in the same way from top to bottom.
    """
    height, width = drawing.shape
    if width < _LEAST_PX:
        return np.zeros(len(left), np.bool_), np.zeros(len(left), np.bool_)
    first, last = np.maximum(np.floor(left), 1).astype(np.intp), np.ceil(right).astype(np.intp) - 1
    last = np.clip(last, 1, width - 2)
    first = np.minimum(first, width - 1)
    sampled = np.linspace(top, bottom, _SAMPLES)
    rows = np.clip(sampled, 0, height - 1).astype(np.intp)
    is_rule, is_step = np.zeros(len(left), np.bool_), np.zeros(len(left), np.bool_)
    for at in range(min(_MOST_PX, int((last - first).max(initial=-1)) + 1)):
        column = np.minimum(first + at, width - 2)
        here = drawing[rows, column].astype(np.int16)
        step = drawing[rows, column + 1].astype(np.int16) - drawing[rows, column - 1]
        within = first + at <= last
        is_rule |= within & (ground[rows, column] - here > _STEP).all(axis=0)
        is_step |= within & ((step > _STEP).all(axis=0) | (step < -_STEP).all(axis=0))
    return is_rule, is_step
