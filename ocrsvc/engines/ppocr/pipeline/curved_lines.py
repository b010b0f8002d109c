"""Curved lines on the detector's map: a contour that is a strip of even thickness along a curve, and its outline.

A line on a bent page, a bottle or a banner fills little of the smallest rectangle around it. Its centre is fitted by
least squares as a cubic of the place along that rectangle, over the points of the contour; where the contour is a
strip, they lie half its thickness from the curve. Each contour costs a time linear in its own length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.outline import Outline

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


@dataclass(frozen=True, slots=True)
class _Strip:
    """A curve in the frame of a rectangle, whose middle is the origin and whose longer side is the first axis."""

    middle: NDArray[np.float64]  # of the rectangle, in pixels of the map
    axis: NDArray[np.float64]  # unit vector along the longer side
    half: float  # half of the longer side, in pixels
    # (4,) coefficients, constant first, of the place across, by the place along in units of `half`
    cubic: NDArray[np.float64]
    length: float  # of the curve, in pixels
    thickness: float  # of the strip, in pixels

    def points(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) in the frame, of (n,) places from -1 to 1 along the longer side."""
        return np.stack([places * self.half, np.vander(places, 4, increasing=True) @ self.cubic], axis=1)

    def normals(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) unit vectors across the curve, in the frame, to the side of the second axis."""
        slopes = np.vander(places, 3, increasing=True) @ (self.cubic[1:] * (1, 2, 3)) / self.half
        return np.stack([-slopes, np.ones_like(slopes)], axis=1) / np.hypot(slopes, 1)[:, None]

    def on_map(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) in pixels of the map, of (n, 2) in the frame."""
        (x, y), frame = self.axis, points.T
        return np.stack([frame[0] * x - frame[1] * y, frame[0] * y + frame[1] * x], axis=1) + self.middle


def fills(contour: NDArray[np.int32], across: float, along: float) -> bool:
    """Whether a contour fills its smallest rectangle, whose sides are given in pixels, as a straight line does."""
    return cv2.contourArea(contour) >= FULL * across * along


def curved_outline(
    contour: NDArray[np.int32], probabilities: NDArray[Any], least: float, unclip: float
) -> Outline | None:
    """The outline of a curved line, in pixels of the map, grown by DB's unclip distance; None for any other shape.

    A line has at least the mean probability `least` along its curve.
    """
    strip = _fit(contour)
    if strip is None or _mean_along(strip, probabilities) < least:
        return None
    pieces = _count_pieces(strip)
    return None if pieces == 1 else _grow(strip, pieces, unclip)


def _fit(contour: NDArray[np.int32]) -> _Strip | None:
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
    length = _length(half, cubic)
    thickness = max(1.0, cv2.contourArea(contour) / length)
    spread = math.sqrt(float(np.mean((across - powers @ cubic) ** 2)))
    if spread > UNEVEN * thickness or length < SHORTEST * thickness:
        return None
    return _Strip(middle, axis, half, cubic, length, thickness)


def _every_pixel(corners: NDArray[np.int32]) -> NDArray[np.float64]:
    """(m, 2) all points of a closed contour, of its (n, 2) corners; its edges are level, upright or diagonal."""
    steps = np.roll(corners, -1, axis=0) - corners
    counts = np.abs(steps).max(axis=1)
    first = np.repeat(counts.cumsum() - counts, counts)
    done = (np.arange(len(first)) - first)[:, None]
    points: NDArray[np.int64] = np.repeat(corners, counts, axis=0) + np.repeat(np.sign(steps), counts, axis=0) * done
    return points.astype(np.float64)


def _length(half: float, cubic: NDArray[np.float64]) -> float:
    places = np.linspace(-1, 1, 33)
    return float(np.hypot(np.diff(places * half), np.diff(np.vander(places, 4, increasing=True) @ cubic)).sum())


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
