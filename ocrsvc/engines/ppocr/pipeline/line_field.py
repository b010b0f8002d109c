"""Measures how much the lines of a page bend, by fitting a field of line directions to the detector's mask.

Each connected component of the mask is cut along its length into pieces, and the direction of a piece is that of its
largest second moment. So both long lines and the short numbers of a table contribute. A polynomial in x and y is fitted
to the slopes of the pieces by iteratively reweighted least squares (P. Huber, "Robust Statistics"). Perspective makes
lines converge but not bend, so the bend is measured as the field's change along each line.
"""

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Pixels

Values = NDArray[np.float64]

MAX_ANGLE: Final = np.radians(30)  # pieces of lines at a larger angle to the page's direction are not running text
MIN_PIECES: Final = 8  # fewest pieces for a fit of the field's six coefficients
MAX_WEIGHT: Final = 8.0  # largest weight of a piece; the weight is its length in thicknesses
FIT_ROUNDS: Final = 4  # iterations of the fit
STEPS: Final = 16  # integration steps from a side of the text to the middle


@dataclass(frozen=True, slots=True)
class Pieces:
    """N pieces of lines, each about as long as a word; arrays (N,), in pixels and radians."""

    x: Values
    y: Values
    direction: Values  # of each piece, in radians modulo pi
    length: Values
    thickness: Values  # thickness of the whole line that the piece is part of


@dataclass(frozen=True, slots=True, eq=False)
class LineField:
    """The direction of lines at every point of a page."""

    turn_deg: float  # angle by which lines turn between the two sides of the text (root mean square)
    pieces: int  # number of pieces to which the field was fitted
    _page: float  # direction of the page, in radians
    _middle: Values  # middle of the text, in coordinates along and across the page's direction
    _half: Values  # half of the text's size along and across the page's direction
    _factors: Values

    def straighten(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Move points (..., 2) across their lines, to where they would be if the lines were straight."""
        cos, sin = np.cos(self._page), np.sin(self._page)
        turn = np.array([[cos, -sin], [sin, cos]])
        place = (points @ turn - self._middle) / self._half
        x, y = place[..., 0], place[..., 1]
        step = x / STEPS
        aspect = self._half[0] / self._half[1]
        at = x
        for _ in range(STEPS):
            # Follow the line to the text's middle (midpoint method); outside the text, the slope at its edge applies.
            half_way = y - step / 2 * aspect * self._slope(at, y)
            y = y - step * aspect * self._slope(at - step / 2, half_way)
            at = at - step
        straight = np.stack([x, y], axis=-1) * self._half + self._middle
        return cast("NDArray[np.float32]", (straight @ turn.T).astype(np.float32))

    def _slope(self, x: Values, y: Values) -> Values:
        return _slopes(self._factors, np.clip(x, -1, 1), np.clip(y, -1, 1))


def fit_field(pieces: Pieces) -> LineField | None:
    """Fit a field to those pieces that follow the page's direction; None if they are too few."""
    page = float(np.angle(np.sum(pieces.length * np.exp(2j * pieces.direction)))) / 2
    leaning = (pieces.direction - page + np.pi / 2) % np.pi - np.pi / 2
    alike = np.abs(leaning) < MAX_ANGLE
    if np.count_nonzero(alike) < MIN_PIECES:
        return None
    cos, sin = np.cos(page), np.sin(page)
    x, y, length = pieces.x[alike], pieces.y[alike], pieces.length[alike]
    place = np.stack([cos * x + sin * y, cos * y - sin * x], axis=-1)
    reach = np.stack([length / 2, np.zeros_like(length)], axis=-1)
    low, high = (place - reach).min(axis=0), (place + reach).max(axis=0)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 0.5)
    unit_x, unit_y = np.moveaxis((place - middle) / half, -1, 0)
    weight = np.minimum(length / pieces.thickness[alike], MAX_WEIGHT)
    factors = _fit(unit_x, unit_y, np.tan(leaning[alike]), weight)
    turned = _turning(factors, unit_x, unit_y, float(half[0] / half[1]))
    # `turned` is the change of slope per unit of x, and the text is two units wide: double its root mean square.
    turn = 2 * np.sqrt(np.sum(weight * turned**2) / np.sum(weight))
    return LineField(float(np.degrees(turn)), len(x), page, middle, half, factors)


def _fit(x: Values, y: Values, slope: Values, weight: Values) -> Values:
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    trust = np.ones_like(slope)
    for _ in range(FIT_ROUNDS):
        root = np.sqrt(weight * trust)
        factors = np.linalg.lstsq(terms * root[:, None], slope * root, rcond=1e-6)[0]
        off = np.abs(slope - terms @ factors)
        # Pieces off by more than two standard deviations, each estimated as 1.48 times the median, get less weight.
        trust = 1 / np.maximum(1.0, off / (2 * (1.48 * np.median(off) + 1e-3)))
    return cast(Values, factors)


def _slopes(factors: Values, x: Values, y: Values) -> Values:
    one, by_x, by_y, by_xx, by_xy, by_yy = factors
    return cast(Values, one + by_x * x + by_y * y + by_xx * x * x + by_xy * x * y + by_yy * y * y)


def _turning(factors: Values, x: Values, y: Values, aspect: float) -> Values:
    """The rate of change of a line's slope with x, at each point; `aspect` is the length of an x unit in y units."""
    _, by_x, by_y, by_xx, by_xy, by_yy = factors
    # y changes along a sloped line, so add the slope's change with y. For straight lines that converge, the sum is 0.
    climb = aspect * _slopes(factors, x, y)
    return cast(Values, by_x + 2 * by_xx * x + by_xy * y + climb * (by_y + by_xy * x + 2 * by_yy * y))


MAX_SAMPLES: Final = 60_000  # sampled text pixels: directions are exact to a tenth of a degree on any page
PIECE_LENGTH: Final = 6.0  # length of a piece, in thicknesses of its line; shorter pieces have no clear direction
MIN_ASPECT: Final = 2.5  # smallest length / thickness of a piece with a clear direction
MAX_PIECES: Final = 32  # most pieces of one line
MIN_PIXELS: Final = 30  # fewest pixels of a piece
_NO_TEXT: Final[Pixels] = np.zeros((1, 1), np.uint8)


class LastMask:
    """Holds the text mask of the detector's latest pass over a page."""

    def __init__(self) -> None:
        self.mask = _NO_TEXT  # (h, w) uint8, 0 for background

    def pieces(self, width: int, height: int) -> Pieces:
        """The pieces of the mask's lines, in pixels of the width x height image. Call it once: it drops the mask."""
        mask, self.mask = self.mask, _NO_TEXT
        across, down = width / mask.shape[1], height / mask.shape[0]
        # Lengths need only one scale, because the mask's horizontal and vertical scales are nearly equal.
        mean, pieces = (across + down) / 2, find_pieces(mask)
        direction = np.arctan2(np.sin(pieces.direction) * down, np.cos(pieces.direction) * across)
        return Pieces(pieces.x * across, pieces.y * down, direction, pieces.length * mean, pieces.thickness * mean)


def find_pieces(mask: Pixels) -> Pieces:
    """Cut the lines in a mask (h, w) into pieces, and return those with a clear direction; 0 is background."""
    labels = cv2.connectedComponents(mask, connectivity=4, ltype=cv2.CV_32S)[1]
    places = np.flatnonzero(mask)
    step = 1 + len(places) // MAX_SAMPLES
    places = places[::step]
    y, x = np.divmod(places, mask.shape[1])
    return _cut(labels.ravel()[places].astype(np.intp), x.astype(np.float64), y.astype(np.float64), step)


def _cut(labels: NDArray[np.intp], x: Values, y: Values, step: int) -> Pieces:
    """Cut each line (label) into pieces; a sampled pixel stands for `step` pixels."""
    count, middle_x, middle_y, direction, length = _moments(labels, x, y, int(labels.max(initial=0)) + 1)
    thickness = np.maximum(step * count / length, 1.0)
    parts = np.clip(length / (PIECE_LENGTH * thickness), 1, MAX_PIECES).astype(np.intp)
    first = np.concatenate([[0], np.cumsum(parts)[:-1]])
    cos, sin = np.cos(direction), np.sin(direction)
    along = (x - middle_x[labels]) * cos[labels] + (y - middle_y[labels]) * sin[labels]
    part = np.clip((along / length[labels] + 0.5) * parts[labels], 0, parts[labels] - 1).astype(np.intp)
    count, middle_x, middle_y, direction, length = _moments(first[labels] + part, x, y, int(parts.sum()))
    kept = (length >= MIN_ASPECT * step * count / length) & (step * count >= MIN_PIXELS)
    placed = (middle_x + 0.5, middle_y + 0.5, direction, length, np.repeat(thickness, parts))
    return Pieces(*(values[kept] for values in placed))


def _moments(group: NDArray[np.intp], x: Values, y: Values, groups: int) -> tuple[Values, ...]:
    """Pixel count, centre x and y, direction in radians, and length of each group of pixels."""
    count = np.bincount(group, minlength=groups).astype(np.float64)
    most = np.maximum(count, 1.0)

    def mean(values: Values) -> Values:
        return np.bincount(group, values, groups) / most

    mean_x, mean_y = mean(x), mean(y)
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, yy, xy = mean(dx * dx), mean(dy * dy), mean(dx * dy)
    # The variance along a bar of length l is l² / 12.
    length = np.sqrt(12 * ((xx + yy) / 2 + np.hypot((xx - yy) / 2, xy))) + 1e-9
    return count, mean_x, mean_y, np.arctan2(2 * xy, xx - yy) / 2, length
