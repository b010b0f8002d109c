"""The field of directions of a page's lines: fitted to pieces of lines, and followed across the page.

A polynomial in x and y is fitted to the slopes of the pieces by iteratively reweighted least squares (P. Huber, "Robust
Statistics"). Perspective makes lines converge and none turn; so it is the field's change along a line that says whether
lines bend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

ALIKE: Final = np.radians(30)  # from the page's direction; what differs more is not running text
LEAST_PIECES: Final = 8  # to which a field is fitted: it has six factors
MOST_WEIGHT: Final = 8.0  # of a piece, in thicknesses
ROUNDS: Final = 4  # of the fit
STEPS: Final = 16  # from the middle of the text to its sides


@dataclass(frozen=True, slots=True)
class Pieces:
    """N pieces of lines, each about as long as a word; all (N,), in pixels and radians.

    Attributes:
        x, y: Their centres.
        direction: Of their length, of no sign: an angle and its opposite are the same.
        length: Of each.
        thickness: Of the line that each is a piece of.
    """

    x: Values
    y: Values
    direction: Values
    length: Values
    thickness: Values


@dataclass(frozen=True, slots=True, eq=False)
class LineField:
    """The directions of lines all over a page.

    Attributes:
        turn_deg: By how much a line turns on its way from one side of the text to the other, root mean square.
        pieces: Of how many pieces that was learnt.
    """

    turn_deg: float
    pieces: int
    _page: float  # direction of the page, in radians
    _middle: Values  # of the text, in the page's direction, and half its size
    _half: Values
    _factors: Values

    def straighten(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Where places of the page would be if its lines went straight on from the middle of the text.

        Args:
            points: (..., 2) in pixels.

        Returns:
            The same places, moved across the lines alone: to where the line through each crosses the text's middle.
        """
        turn = _rotation(self._page)
        place = (points @ turn - self._middle) / self._half
        x, y = place[..., 0], place[..., 1]
        step = x / STEPS
        aspect = self._half[0] / self._half[1]
        at = x
        for _ in range(STEPS):
            # The midpoint method; beyond the text a line keeps the direction that it has at its edge.
            half_way = y - step / 2 * aspect * self._slope(at, y)
            y = y - step * aspect * self._slope(at - step / 2, half_way)
            at = at - step
        straight = np.stack([x, y], axis=-1) * self._half + self._middle
        return cast("NDArray[np.float32]", (straight @ turn.T).astype(np.float32))

    def _slope(self, x: Values, y: Values) -> Values:
        return _slopes(self._factors, np.clip(x, -1, 1), np.clip(y, -1, 1))


def _rotation(angle: float) -> Values:
    """(2, 2): points (..., 2) times it are in a frame that is turned by so many radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


def fit_field(pieces: Pieces) -> LineField | None:
    """The field of the pieces that go about the page's way; None for too few of them."""
    page = float(np.angle(np.sum(pieces.length * np.exp(2j * pieces.direction)))) / 2
    leaning = (pieces.direction - page + np.pi / 2) % np.pi - np.pi / 2
    alike = np.abs(leaning) < ALIKE
    if np.count_nonzero(alike) < LEAST_PIECES:
        return None
    cos, sin = np.cos(page), np.sin(page)
    x, y, length = pieces.x[alike], pieces.y[alike], pieces.length[alike]
    place = np.stack([cos * x + sin * y, cos * y - sin * x], axis=-1)
    reach = np.stack([length / 2, np.zeros_like(length)], axis=-1)
    low, high = (place - reach).min(axis=0), (place + reach).max(axis=0)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 0.5)
    unit_x, unit_y = np.moveaxis((place - middle) / half, -1, 0)
    weight = np.minimum(length / pieces.thickness[alike], MOST_WEIGHT)
    factors = _fit(unit_x, unit_y, np.tan(leaning[alike]), weight)
    turned = _turning(factors, unit_x, unit_y, float(half[0] / half[1]))
    # The text is two units wide.
    turn = 2 * np.sqrt(np.sum(weight * turned**2) / np.sum(weight))
    return LineField(float(np.degrees(turn)), len(x), page, middle, half, factors)


def _fit(x: Values, y: Values, slope: Values, weight: Values) -> Values:
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    trust = np.ones_like(slope)
    for _ in range(ROUNDS):
        root = np.sqrt(weight * trust)
        factors = np.linalg.lstsq(terms * root[:, None], slope * root, rcond=1e-6)[0]
        off = np.abs(slope - terms @ factors)
        # What is off by more than two standard deviations counts less. 1.48 medians are one of them.
        trust = 1 / np.maximum(1.0, off / (2 * (1.48 * np.median(off) + 1e-3)))
    return cast(Values, factors)


def _slopes(factors: Values, x: Values, y: Values) -> Values:
    one, by_x, by_y, by_xx, by_xy, by_yy = factors
    return cast(Values, one + by_x * x + by_y * y + by_xx * x * x + by_xy * x * y + by_yy * y * y)


def _turning(factors: Values, x: Values, y: Values, aspect: float) -> Values:
    """By how much the slope of a line changes for each unit of x, at each place; a unit of y is `aspect` times less."""
    _, by_x, by_y, by_xx, by_xy, by_yy = factors
    # A line climbs while it goes, so the field's change across it counts too: lines that converge do not bend.
    climb = aspect * _slopes(factors, x, y)
    return cast(Values, by_x + 2 * by_xx * x + by_xy * y + climb * (by_y + by_xy * x + 2 * by_yy * y))
