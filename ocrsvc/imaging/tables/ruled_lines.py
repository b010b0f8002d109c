"""Finds ruled lines: long, thin, horizontal or vertical runs of ink on a levelled page.

Ink is what is darker than its surroundings (a local threshold), so that gray hairlines and the edges of filled cells
count on any ground. Of it, a morphological opening with a long flat element leaves the runs, as in OpenCV's tutorial
"Extract horizontal and vertical lines by using morphological operations". What lies within a line of text, or is too
thick, is a stroke of a letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Check, Pixels

Mask = NDArray[np.uint8]
"""(H, W), 1 or 0."""

THRESHOLD_BLOCK_PX: Final = 25
CONTRAST: Final = 8  # gray levels below the surroundings' mean: a hairline of the lightest gray that people can see
RUN_HEIGHTS: Final = 1.1  # shortest run, in line heights: no stroke of an ordinary letter is longer
LEAST_RUN_PX: Final = 16
MOST_THICK: Final = 0.5  # of a line height
IN_TEXT: Final = 0.9  # of a run lies within a line of text, if it is a stroke of it


@dataclass(frozen=True, slots=True)
class RuledLines:
    """The ruled lines of a levelled page.

    Attributes:
        horizontal, vertical: Masks of those of each direction.
        segments: (N, 4) int32 left, top, width, height of each horizontal one.
        ink: Mask of all other ink.
    """

    horizontal: Mask
    vertical: Mask
    segments: NDArray[np.int32]
    ink: Mask


def find_ruled_lines(gray: Pixels, frames: NDArray[np.float32], line_height: float, check: Check) -> RuledLines:
    """The ruled lines of a page.

    Args:
        gray: (H, W) uint8, levelled.
        frames: (N, 4) left, top, right, bottom of its lines of text.
        line_height: Pixels of an ordinary line of text.
        check: Called between steps.
    """
    ink = cast(
        Mask,
        cv2.adaptiveThreshold(gray, 1, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, THRESHOLD_BLOCK_PX, CONTRAST),
    )
    check()
    text = _painted(gray.shape[:2], frames)
    horizontal, segments = _runs(ink, text, line_height)
    check()
    vertical, _ = _runs(np.ascontiguousarray(ink.T), np.ascontiguousarray(text.T), line_height)
    ink[(horizontal | vertical.T).astype(bool)] = 0
    return RuledLines(horizontal, np.ascontiguousarray(vertical.T), segments, ink)


def _painted(shape: tuple[int, ...], frames: NDArray[np.float32]) -> Mask:
    painted = np.zeros(shape, np.uint8)
    for left, top, right, bottom in np.rint(frames).astype(int).tolist():
        painted[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = 1
    return painted


def _runs(ink: Mask, text: Mask, line_height: float) -> tuple[Mask, NDArray[np.int32]]:
    """The horizontal runs of ink that are rules: their mask, and the frame of each."""
    length = max(LEAST_RUN_PX, round(RUN_HEIGHTS * line_height))
    # One pixel up and down bridges the steps of a line that is not quite level.
    thick = cv2.dilate(ink, np.ones((3, 1), np.uint8))
    runs = cv2.morphologyEx(thick, cv2.MORPH_OPEN, np.ones((1, length), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(runs, connectivity=8, ltype=cv2.CV_32S)
    areas = stats[:, cv2.CC_STAT_AREA].astype(np.float64)
    within = np.bincount(labels[text.astype(bool)], minlength=count)
    is_rule = (areas / stats[:, cv2.CC_STAT_WIDTH] <= 2 + MOST_THICK * line_height) & (within < IN_TEXT * areas)
    is_rule[0] = False
    return cast(Mask, is_rule.astype(np.uint8)[labels]), stats[is_rule, :4].astype(np.int32)
