"""Contours on the detector's map that are not one straight line: several lines that touch, and curved lines.

Rows of a tight table touch on the map, and a column of short numbers is one tall shape. Probabilities are slightly
lower between two lines than inside them, so at a higher threshold the shape splits into parts; repeated splitting
follows the component tree of an image (R. Jones, "Connected Filtering and Segmentation Using Component Trees", 1999). A
shape that may be one line is split only if its parts are arranged as rows, because a line with a gap also splits. A
curved line fills little of its minimum-area rectangle; its centre line is fitted to the contour's points by least
squares, as a cubic over the position along that rectangle. The cost is linear in the length of each contour.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.text_contour import Outline
from ocrsvc.results import Pixels

Contour = NDArray[np.int32]
Values = NDArray[np.float64]
Box = tuple[int, int, int, int]
# The parts of a contour (none if it is not split), and the thresholds that remain for splitting the parts.
Division = tuple[list[Contour], tuple[float, ...]]
LEVELS: Final = (0.3, 0.5, 0.7, 0.85)  # probability thresholds, tried in this order
MIN_SHAPE_PX: Final = 3  # shortest side of a part; smaller parts are dropped
MAX_PARTS: Final = 24  # a shape that splits into more parts is noise
# Contours are split only until their bounding boxes' total area exceeds this multiple of the map's, to limit the time.
MAX_SCANNED_AREA: Final = 4.0
# Limit on the total area of the parts' bounding boxes, relative to the shape's; at most 1.2 on the corpus. It is higher
# only for nested shapes, whose boxes contain each other.
MAX_SCANNED_PART_AREA: Final = 2.0
SQUAT_ASPECT: Final = 1.25  # a tall shape has rows only if the flattest part's height / width is at most this
MAX_ASPECT: Final = 2.5  # largest height / width of a row of a tall shape; a word written sideways is taller

MIN_FILL: Final = 0.75  # share of its minimum-area rectangle that the contour of a straight line fills
MIN_BEND: Final = 0.5  # from this distance between curve and chord on, in thicknesses, a line counts as curved
# Largest root mean square distance between contour and curve, in thicknesses of the line. It is 0.5 for a line of even
# thickness, and more for two touching lines, a cross or a ring.
MAX_SPREAD: Final = 0.75
MIN_LENGTH: Final = 5.0  # minimum length of a curved line, in thicknesses; shorter shapes are often blots
MAX_DEVIATION: Final = 0.1  # largest distance between a straight piece of the outline and the curve, in thicknesses
MAX_PIECES: Final = 16
MAX_BORDER: Final = 3.0  # longest contour of a curved line, in width + height of its rectangle; half a ring has 2.1


def within_scan_limit(contours: Sequence[Contour], size: int, max_areas: float = MAX_SCANNED_AREA) -> list[bool]:
    """Which contours may be split: the first ones, until their boxes have `max_areas` * `size` pixels in total."""
    frames = np.array([cv2.boundingRect(contour)[2:] for contour in contours], np.int64).reshape(-1, 2)
    return cast("list[bool]", (frames.prod(axis=1).cumsum() <= max_areas * size).tolist())


def split_parts(
    contour: Contour,
    probabilities: NDArray[Any],
    levels: tuple[float, ...],
    accept: Callable[[Sequence[Box], Box], bool] = lambda _boxes, _frame: True,
) -> Division:
    """Split a contour, found at probability `levels[0]`, at the first higher level whose parts `accept` accepts."""
    left, top, width, height = frame = cast(Box, cv2.boundingRect(contour))
    here = probabilities[top : top + height, left : left + width]
    own = _own_pixels(contour - np.array([left, top], np.int32), here > levels[0])
    for number, level in enumerate(levels[1:], 1):
        above = (here > level).astype(np.uint8) & own
        count, components, stats, _ = cv2.connectedComponentsWithStats(above, connectivity=4)
        labels = cast("NDArray[np.int32]", components)
        large = [n for n in range(1, count) if min(stats[n, 2:4]) >= MIN_SHAPE_PX] if count <= MAX_PARTS else []
        boxes = [cast(Box, tuple(stats[n, :4].tolist())) for n in large]
        if len(large) > 1 and accept(boxes, frame):
            parts = [_border(labels, n, box, (left, top), own) for n, box in zip(large, boxes, strict=True)]
            return parts, (levels[0], *levels[number + 1 :])
    return [], ()


def _own_pixels(contour: Contour, above: NDArray[np.bool_]) -> Pixels:
    """(h, w) uint8 mask of the contour's own shape, without other shapes in its holes."""
    inside = np.zeros(above.shape, np.uint8)
    cv2.fillPoly(inside, [contour], 1)
    shape = above.astype(np.uint8) & inside
    # In a uint8 map, rounding may lower border pixels to the threshold, so they are added.
    cv2.polylines(shape, [contour], isClosed=True, color=(1,))
    _, labels = cv2.connectedComponents(shape, connectivity=8)
    column, row = contour[0, 0]
    return cast(Pixels, (labels == labels[row, column]).astype(np.uint8))


def are_rows(boxes: Sequence[Box], frame: Box) -> bool:
    """Whether a shape's parts lie one above the other like rows; in a tall shape, no part may be tall itself."""
    *_, width, height = frame
    if height >= width:
        shapes = [part_height / part_width for _, _, part_width, part_height in boxes]
        return min(shapes) <= SQUAT_ASPECT and max(shapes) <= MAX_ASPECT and _overlap(boxes, 0)
    return _overlap(boxes, 0) and not _overlap(boxes, 1)


def _overlap(boxes: Sequence[Box], axis: int) -> bool:
    """Whether each part overlaps the previous one along an axis by half of the shorter part's length or more."""
    ordered = sorted(boxes, key=lambda box: box[1 - axis])
    return all(_shared(one, other, axis) >= 0.5 for one, other in pairwise(ordered))


def _shared(one: Box, other: Box, axis: int) -> float:
    begin, end = max(one[axis], other[axis]), min(one[axis] + one[axis + 2], other[axis] + other[axis + 2])
    return (end - begin) / min(one[axis + 2], other[axis + 2])


def _border(labels: NDArray[np.int32], number: int, box: Box, corner: tuple[int, int], own: Pixels) -> Contour:
    """The contour of part `number` in pixels of the map; the part is first grown by one pixel inside the mask `own`."""
    left, top, width, height = box
    left, top = max(0, left - 1), max(0, top - 1)
    window = np.s_[top : top + height + 2, left : left + width + 2]
    grown = cast(Pixels, cv2.dilate((labels[window] == number).astype(np.uint8), np.ones((3, 3), np.uint8)))
    contours, _ = cv2.findContours(grown & own[window], cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    largest = max(contours, key=len)
    return np.asarray(largest + np.array([left + corner[0], top + corner[1]], np.int32), np.int32)


@dataclass(frozen=True, slots=True)
class _Strip:
    """A curved line in coordinates of its rectangle: the origin is the middle, the first axis the longer side."""

    middle: Values  # the rectangle's middle, in pixels of the map
    axis: Values  # unit vector along the rectangle's longer side
    half: float  # half of the longer side, in pixels
    cubic: Values  # (4,) coefficients, constant first: offset in pixels by the position in units of `half`
    length: float  # length of the curve, in pixels
    thickness: float  # thickness of the line, in pixels

    def points(self, places: Values) -> Values:
        """(n, 2) points on the curve; `places` are positions from -1 to 1 along the longer side."""
        return np.stack([places * self.half, np.vander(places, 4, increasing=True) @ self.cubic], axis=1)

    def normals(self, places: Values) -> Values:
        """(n, 2) unit normals of the curve, pointing in the direction of the rectangle's second axis."""
        slopes = np.vander(places, 3, increasing=True) @ (self.cubic[1:] * (1, 2, 3)) / self.half
        return np.stack([-slopes, np.ones_like(slopes)], axis=1) / np.hypot(slopes, 1)[:, None]

    def on_map(self, points: Values) -> Values:
        """Convert (n, 2) points from the strip's coordinates to pixels of the map."""
        (x, y), frame = self.axis, points.T
        return np.stack([frame[0] * x - frame[1] * y, frame[0] * y + frame[1] * x], axis=1) + self.middle


def fills_rectangle(contour: Contour, across: float, along: float) -> bool:
    """Whether a contour fills its minimum-area rectangle (sides in pixels), as the contour of a straight line does."""
    return cv2.contourArea(contour) >= MIN_FILL * across * along


def curved_outline(contour: Contour, probabilities: NDArray[Any], least: float, unclip: float) -> Outline | None:
    """The grown outline of a curved line; None if it is straight, or its mean probability is below `least`."""
    strip = _fit(contour)
    if strip is None or _mean_along(strip, probabilities) < least:
        return None
    pieces = _count_pieces(strip)
    return None if pieces == 1 else _grow(strip, pieces, unclip)


def _fit(contour: Contour) -> _Strip | None:
    (x, y), (width, height), degrees = cv2.minAreaRect(contour)
    radians = math.radians(degrees if width >= height else degrees + 90)
    half = max(width, height) / 2
    if half < 1 or cv2.arcLength(contour, closed=True) > MAX_BORDER * (width + height):
        return None
    axis, middle = np.array([math.cos(radians), math.sin(radians)]), np.array([x, y])
    offsets = _every_pixel(contour[:, 0]) - middle
    along, across = offsets @ axis / half, offsets @ np.array([-axis[1], axis[0]])
    powers = np.vander(along, 4, increasing=True)
    # Normal equations are accurate enough for four unknowns and terms between -1 and 1.
    cubic = np.linalg.lstsq(powers.T @ powers, powers.T @ across, rcond=None)[0]
    places = np.linspace(-1, 1, 33)
    length = float(np.hypot(np.diff(places * half), np.diff(np.vander(places, 4, increasing=True) @ cubic)).sum())
    thickness = max(1.0, cv2.contourArea(contour) / length)
    spread = math.sqrt(float(np.mean((across - powers @ cubic) ** 2)))
    if spread > MAX_SPREAD * thickness or length < MIN_LENGTH * thickness:
        return None
    return _Strip(middle, axis, half, cubic, length, thickness)


def _every_pixel(corners: Contour) -> Values:
    """All (m, 2) pixels of a closed contour with (n, 2) corners; its edges are horizontal, vertical or diagonal."""
    steps = np.roll(corners, -1, axis=0) - corners
    counts = np.abs(steps).max(axis=1)
    first = np.repeat(counts.cumsum() - counts, counts)
    done = (np.arange(len(first)) - first)[:, None]
    points: NDArray[np.int64] = np.repeat(corners, counts, axis=0) + np.repeat(np.sign(steps), counts, axis=0) * done
    return points.astype(np.float64)


def _mean_along(strip: _Strip, probabilities: NDArray[Any]) -> float:
    places = np.linspace(-1, 1, max(2, round(strip.length)))
    columns, rows = np.rint(strip.on_map(strip.points(places))).astype(int).T
    height, width = probabilities.shape
    return float(probabilities[rows.clip(0, height - 1), columns.clip(0, width - 1)].mean())


def _count_pieces(strip: _Strip) -> int:
    """Number of straight pieces that approximate the curve; 1 if a rectangle is good enough."""
    points = strip.points(np.linspace(-1, 1, 33))
    chord = points[-1] - points[0]
    away = (points - points[0]) @ np.array([-chord[1], chord[0]]) / math.hypot(*chord)
    bend = float(away.max() - away.min()) / strip.thickness
    # The distance between a piece and the curve falls with the square of the number of pieces.
    return 1 if bend < MIN_BEND else min(MAX_PIECES, math.ceil(math.sqrt(bend / MAX_DEVIATION)))


def _grow(strip: _Strip, pieces: int, unclip: float) -> Outline:
    """The curved line's outline on the map, with `pieces` straight pieces per side, grown by the unclip distance."""
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
