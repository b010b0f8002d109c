"""Contours that hold several lines: the levels of the map at which they come apart, and what the parts must look like.

Rows of a tight table touch on the map, and a column of short numbers is one tall shape. Between two lines the map is a
little less sure than inside them, so at a higher threshold the shape comes apart, as regions do in the component tree
of an image (R. Jones, "Connected Filtering and Segmentation Using Component Trees", 1999). A shape that may be one line
is taken apart only where its parts lie as rows lie, because a line with a gap comes apart as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

Contour = NDArray[np.int32]
Box = tuple[int, int, int, int]

LEVELS: Final = (0.3, 0.5, 0.7, 0.85)  # of probability, tried one after the other, above the map's threshold
SMALLEST_PX: Final = 3  # both sides of a part are at least that; what is smaller is left out
MOST_PARTS: Final = 24  # more of them are noise
MOST_LOOKS: Final = 4.0
"""Times the area of the map that may be looked at on one map; upright frames of ordinary contours hardly overlap."""

MOST_LOOKS_AT_PARTS: Final = 2.0
"""Times the area of a shape's frame that may be looked at in its parts: on the corpus their frames have 1.2 times its
area at most; those of shapes inside each other lie in each other."""

SQUAT: Final = 1.25  # height of a part of a column by its width: at most that of the least tall one
TALLEST: Final = 2.5  # the same, of the tallest one: two rows that stay together. Words on their side are taller.


def may_be_looked_at(contours: Sequence[Contour], size: int, most: float = MOST_LOOKS) -> list[bool]:
    """Which contours may be taken apart: as many as have frames of `most` times `size` pixels in all.

    So the cost is linear in the size of what they lie in.
    """
    frames = np.array([cv2.boundingRect(contour)[2:] for contour in contours], np.int64).reshape(-1, 2)
    allowed: list[bool] = (frames.prod(axis=1).cumsum() <= most * size).tolist()
    return allowed


@dataclass(frozen=True, slots=True)
class Division:
    """What a contour comes apart into."""

    parts: list[Contour]  # None where it stays whole
    levels: tuple[float, ...] = ()  # for its parts; fewer than before, so that an end is sure


def rows_of(contour: Contour, probabilities: NDArray[Any], levels: tuple[float, ...]) -> Division:
    """The parts of a contour that lie one above the other as rows do; none where it holds one line.

    `levels` are of the map's values (float32 or uint8), ascending; the first one is the threshold of the mask.
    """
    return _divide(contour, probabilities, levels, _are_rows)


def parts_of(contour: Contour, probabilities: NDArray[Any], levels: tuple[float, ...]) -> Division:
    """The parts of a contour, wherever they lie, at the lowest level that takes it apart; see `rows_of`."""
    return _divide(contour, probabilities, levels, lambda _boxes, _frame: True)


def _divide(
    contour: Contour,
    probabilities: NDArray[Any],
    levels: tuple[float, ...],
    accept: Callable[[Sequence[Box], Box], bool],
) -> Division:
    left, top, width, height = frame = cast(Box, cv2.boundingRect(contour))
    here = probabilities[top : top + height, left : left + width]
    own = _own_pixels(contour - np.array([left, top], np.int32), here > levels[0])
    for number, level in enumerate(levels[1:], 1):
        above = (here > level).astype(np.uint8) & own
        count, found, stats, _ = cv2.connectedComponentsWithStats(above, connectivity=4)
        labels = cast("NDArray[np.int32]", found)
        large = [n for n in range(1, count) if min(stats[n, 2:4]) >= SMALLEST_PX] if count <= MOST_PARTS else []
        boxes = [cast(Box, tuple(stats[n, :4].tolist())) for n in large]
        if len(large) > 1 and accept(boxes, frame):
            parts = [_border(labels, n, box, (left, top), own) for n, box in zip(large, boxes, strict=True)]
            return Division(parts, (levels[0], *levels[number + 1 :]))
    return Division([])


def _own_pixels(contour: Contour, above: NDArray[np.bool_]) -> Pixels:
    """(h, w) uint8, 1 where the shape within a contour is, without what lies in its holes."""
    inside = np.zeros(above.shape, np.uint8)
    cv2.fillPoly(inside, [contour], 1)
    shape = above.astype(np.uint8) & inside
    # In a map of one byte a pixel the border may have been rounded below the threshold.
    cv2.polylines(shape, [contour], isClosed=True, color=(1,))
    _, labels = cv2.connectedComponents(shape, connectivity=8)
    column, row = contour[0, 0]
    own: Pixels = (labels == labels[row, column]).astype(np.uint8)
    return own


def _are_rows(boxes: Sequence[Box], frame: Box) -> bool:
    """Whether parts, as (left, top, width, height), lie one above the other, and are squat where they make a column."""
    *_, width, height = frame
    if height >= width:
        shapes = [part_height / part_width for _, _, part_width, part_height in boxes]
        return min(shapes) <= SQUAT and max(shapes) <= TALLEST and _overlap(boxes, 0)
    return _overlap(boxes, 0) and not _overlap(boxes, 1)


def _overlap(boxes: Sequence[Box], axis: int) -> bool:
    """Whether each part shares, along an axis, at least half of the smaller one's length with the one before it."""
    ordered = sorted(boxes, key=lambda box: box[1 - axis])
    return all(_shared(one, other, axis) >= 0.5 for one, other in pairwise(ordered))


def _shared(one: Box, other: Box, axis: int) -> float:
    begin, end = max(one[axis], other[axis]), min(one[axis] + one[axis + 2], other[axis] + other[axis + 2])
    return (end - begin) / min(one[axis + 2], other[axis + 2])


def _border(labels: NDArray[np.int32], number: int, box: Box, corner: tuple[int, int], own: Pixels) -> Contour:
    """The contour, on the map, of one part, grown by a pixel to where the whole shape ends."""
    left, top, width, height = box
    left, top = max(0, left - 1), max(0, top - 1)
    window = np.s_[top : top + height + 2, left : left + width + 2]
    grown = cast(Pixels, cv2.dilate((labels[window] == number).astype(np.uint8), np.ones((3, 3), np.uint8)))
    contours, _ = cv2.findContours(grown & own[window], cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    largest = max(contours, key=len)
    return np.asarray(largest + np.array([left + corner[0], top + corner[1]], np.int32), np.int32)
