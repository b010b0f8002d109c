"""Contours on the detector's map that are no straight line: those that hold several lines, and those that are curved.

Rows of a tight table touch on the map, and a column of short numbers is one tall shape. Between two lines the map is a
little less sure than inside them, so at a higher threshold the shape comes apart, as regions do in the component tree
of an image (R. Jones, "Connected Filtering and Segmentation Using Component Trees", 1999). A shape that may be one line
is taken apart only where its parts lie as rows lie, because a line with a gap comes apart as well.

A line on a bent page, a bottle or a banner fills little of the smallest rectangle around it. Its centre is fitted by
least squares as a cubic of the place along that rectangle, over the points of the contour; where the contour is a
strip, they lie half its thickness from the curve. Each contour costs a time linear in its own length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.outline import Outline
from ocrsvc.results import Pixels

Contour = NDArray[np.int32]
Values = NDArray[np.float64]
Box = tuple[int, int, int, int]
Division = tuple[list[Contour], tuple[float, ...]]
"""The parts of a contour, none where it stays whole, and levels for them: fewer than before, so that an end is sure."""

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

FULL: Final = 0.75  # share of its smallest rectangle that the contour of a straight line fills at least
BENT: Final = 0.5  # how far a curve leaves its chord, in thicknesses of the strip, from which it is followed
UNEVEN: Final = 0.75
"""How far the contour's points lie from the curve at most (root mean square, in thicknesses of the strip). It is 0.5 in
an even strip; in two lines that touch, in a cross or in a ring it is more."""

SHORTEST: Final = 5.0  # length of a curved line in thicknesses; shorter shapes are as likely blots
STRAIGHT: Final = 0.1  # how far a piece of the outline may leave the curve, in thicknesses of the strip
MOST_PIECES: Final = 16
LONGEST_BORDER: Final = 3.0
"""Length of a curved line's contour in sums of its rectangle's two sides; that of half a ring is 2.1."""


def may_be_looked_at(contours: Sequence[Contour], size: int, most: float = MOST_LOOKS) -> list[bool]:
    """Which contours may be taken apart: those whose frames have `most` times `size` pixels in all, for linear cost."""
    frames = np.array([cv2.boundingRect(contour)[2:] for contour in contours], np.int64).reshape(-1, 2)
    return cast("list[bool]", (frames.prod(axis=1).cumsum() <= most * size).tolist())


def rows_of(contour: Contour, probabilities: NDArray[Any], levels: tuple[float, ...]) -> Division:
    """The parts of a contour that lie one above the other as rows do; none where it holds one line.

    `levels` are of the map's values (float32 or uint8), ascending; the first one is the threshold of the mask.
    """
    return parts_of(contour, probabilities, levels, _are_rows)


def parts_of(
    contour: Contour,
    probabilities: NDArray[Any],
    levels: tuple[float, ...],
    accept: Callable[[Sequence[Box], Box], bool] = lambda _boxes, _frame: True,
) -> Division:
    """The parts of a contour at the lowest level that takes it apart into what is accepted; see `rows_of`."""
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
            return parts, (levels[0], *levels[number + 1 :])
    return [], ()


def _own_pixels(contour: Contour, above: NDArray[np.bool_]) -> Pixels:
    """(h, w) uint8, 1 where the shape within a contour is, without what lies in its holes."""
    inside = np.zeros(above.shape, np.uint8)
    cv2.fillPoly(inside, [contour], 1)
    shape = above.astype(np.uint8) & inside
    # In a map of one byte a pixel the border may have been rounded below the threshold.
    cv2.polylines(shape, [contour], isClosed=True, color=(1,))
    _, labels = cv2.connectedComponents(shape, connectivity=8)
    column, row = contour[0, 0]
    return cast(Pixels, (labels == labels[row, column]).astype(np.uint8))


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


@dataclass(frozen=True, slots=True)
class _Strip:
    """A curve in the frame of a rectangle, whose middle is the origin and whose longer side is the first axis."""

    middle: Values  # of the rectangle, in pixels of the map
    axis: Values  # unit vector along the longer side
    half: float  # half of the longer side, in pixels
    cubic: Values  # (4,) coefficients, constant first, of the place across, by the place along in units of `half`
    length: float  # of the curve, in pixels
    thickness: float  # of the strip, in pixels

    def points(self, places: Values) -> Values:
        """(n, 2) in the frame, of (n,) places from -1 to 1 along the longer side."""
        return np.stack([places * self.half, np.vander(places, 4, increasing=True) @ self.cubic], axis=1)

    def normals(self, places: Values) -> Values:
        """(n, 2) unit vectors across the curve, in the frame, to the side of the second axis."""
        slopes = np.vander(places, 3, increasing=True) @ (self.cubic[1:] * (1, 2, 3)) / self.half
        return np.stack([-slopes, np.ones_like(slopes)], axis=1) / np.hypot(slopes, 1)[:, None]

    def on_map(self, points: Values) -> Values:
        """(n, 2) in pixels of the map, of (n, 2) in the frame."""
        (x, y), frame = self.axis, points.T
        return np.stack([frame[0] * x - frame[1] * y, frame[0] * y + frame[1] * x], axis=1) + self.middle


def fills(contour: Contour, across: float, along: float) -> bool:
    """Whether a contour fills its smallest rectangle, whose sides are given in pixels, as a straight line does."""
    return cv2.contourArea(contour) >= FULL * across * along


def curved_outline(contour: Contour, probabilities: NDArray[Any], least: float, unclip: float) -> Outline | None:
    """The outline of a line whose mean probability along its curve is `least`, on the map, grown; None for others."""
    strip = _fit(contour)
    if strip is None or _mean_along(strip, probabilities) < least:
        return None
    pieces = _count_pieces(strip)
    return None if pieces == 1 else _grow(strip, pieces, unclip)


def _fit(contour: Contour) -> _Strip | None:
    """The strip that a contour is; None where it is none, or straight."""
    (x, y), (width, height), degrees = cv2.minAreaRect(contour)
    radians = math.radians(degrees if width >= height else degrees + 90)
    half = max(width, height) / 2
    if half < 1 or cv2.arcLength(contour, closed=True) > LONGEST_BORDER * (width + height):
        return None
    axis, middle = np.array([math.cos(radians), math.sin(radians)]), np.array([x, y])
    offsets = _every_pixel(contour[:, 0]) - middle
    along, across = offsets @ axis / half, offsets @ np.array([-axis[1], axis[0]])
    powers = np.vander(along, 4, increasing=True)
    # The normal equations: four unknowns, and terms between -1 and 1.
    cubic = np.linalg.lstsq(powers.T @ powers, powers.T @ across, rcond=None)[0]
    places = np.linspace(-1, 1, 33)
    length = float(np.hypot(np.diff(places * half), np.diff(np.vander(places, 4, increasing=True) @ cubic)).sum())
    thickness = max(1.0, cv2.contourArea(contour) / length)
    spread = math.sqrt(float(np.mean((across - powers @ cubic) ** 2)))
    if spread > UNEVEN * thickness or length < SHORTEST * thickness:
        return None
    return _Strip(middle, axis, half, cubic, length, thickness)


def _every_pixel(corners: Contour) -> Values:
    """(m, 2) all points of a closed contour, of its (n, 2) corners; its edges are level, upright or diagonal."""
    steps = np.roll(corners, -1, axis=0) - corners
    counts = np.abs(steps).max(axis=1)
    first = np.repeat(counts.cumsum() - counts, counts)
    done = (np.arange(len(first)) - first)[:, None]
    points: NDArray[np.int64] = np.repeat(corners, counts, axis=0) + np.repeat(np.sign(steps), counts, axis=0) * done
    return points.astype(np.float64)


def _mean_along(strip: _Strip, probabilities: NDArray[Any]) -> float:
    """Mean probability along the curve."""
    places = np.linspace(-1, 1, max(2, round(strip.length)))
    columns, rows = np.rint(strip.on_map(strip.points(places))).astype(int).T
    height, width = probabilities.shape
    return float(probabilities[rows.clip(0, height - 1), columns.clip(0, width - 1)].mean())


def _count_pieces(strip: _Strip) -> int:
    """Straight pieces that follow the curve; 1 where it is straight enough to be cut as a rectangle."""
    points = strip.points(np.linspace(-1, 1, 33))
    chord = points[-1] - points[0]
    away = (points - points[0]) @ np.array([-chord[1], chord[0]]) / math.hypot(*chord)
    bend = float(away.max() - away.min()) / strip.thickness
    # A piece n times as short leaves its curve n squared times less.
    return 1 if bend < BENT else min(MOST_PIECES, math.ceil(math.sqrt(bend / STRAIGHT)))


def _grow(strip: _Strip, pieces: int, unclip: float) -> Outline:
    distance = strip.length * strip.thickness * unclip / (2 * (strip.length + strip.thickness))
    places = np.linspace(-1, 1, pieces + 1)
    points, normals = strip.points(places), strip.normals(places)
    ends = normals[[0, -1]][:, ::-1] * (1, -1)
    points[[0, -1]] += ends * (distance * np.array([[-1], [1]]))
    across = normals * (strip.thickness / 2 + distance)
    outline = strip.on_map(np.concatenate([points - across, (points + across)[::-1]]))
    dx, dy = strip.on_map(points[-1:])[0] - strip.on_map(points[:1])[0]
    backwards = dx < 0 if abs(dx) >= abs(dy) else dy < 0
    return np.roll(outline, len(outline) // 2 if backwards else 0, axis=0).astype(np.float32)
