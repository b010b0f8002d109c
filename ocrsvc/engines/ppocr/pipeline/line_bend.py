"""Measures how much the lines of a page bend, from the detector's mask of text.

Each connected part of the mask is cut along its length into pieces, and each piece has a direction: that of its largest
second moment. Over the whole page a smooth field of directions is fitted to them (a polynomial of second degree, by
iteratively reweighted least squares, as P. Huber's "Robust Statistics" has it), and what is asked of the field is how
much a line turns on its way across the page. Lines of a flat page keep their direction, however slanted the page lies
and however perspective makes them converge; lines of a curved page do not, whether they are long or, as numbers in a
table, a few letters each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

Values = NDArray[np.float64]

MOST_SAMPLES: Final = 60_000
"""Pixels of text that are looked at: as many give a direction to a tenth of a degree, whatever the page's size."""

PIECE: Final = 6.0  # lengths of a piece in thicknesses of its line: shorter ones have no direction
SLENDER: Final = 2.5  # length over thickness from which a piece has a direction
MOST_PIECES: Final = 32  # of one line
MOST_WEIGHT: Final = 8.0  # of a piece, in thicknesses
LEAST_PIXELS: Final = 30  # of a piece
ALIKE: Final = np.radians(30)  # from the page's direction; the rest is not running text
ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class LineBend:
    """How much the lines of a page bend.

    Attributes:
        turn_deg: By how much a line turns on its way from one side of the text to the other, root mean square.
        pieces: Of how many pieces that was learnt.
    """

    turn_deg: float = 0.0
    pieces: int = 0


@dataclass(frozen=True, slots=True)
class _Moments:
    """Of each of N groups of pixels: its pixels, its centre, the direction of its length in radians, and its length."""

    count: Values
    x: Values
    y: Values
    direction: Values
    length: Values


class LastMask:
    """The mask of the detector's latest pass over a page."""

    def __init__(self) -> None:
        self._mask: Pixels | None = None

    def keep(self, mask: Pixels) -> None:
        """Keep this one; (h, w) uint8, 0 where there is no text."""
        self._mask = mask

    def bend(self) -> LineBend:
        """How much its lines bend; the mask is no longer kept then."""
        mask, self._mask = self._mask, None
        return LineBend() if mask is None else measure_bend(mask)


def measure_bend(mask: Pixels) -> LineBend:
    """How much the lines of a mask bend; nothing for a page with little text.

    Linear in the mask's pixels; what is done with numpy takes 10 to 20 ms at most.

    Args:
        mask: (h, w) uint8, 0 where there is no text.
    """
    labels = cv2.connectedComponents(mask, connectivity=4, ltype=cv2.CV_32S)[1]
    places = np.flatnonzero(mask)
    step = 1 + len(places) // MOST_SAMPLES
    places = places[::step]
    y, x = np.divmod(places, mask.shape[1])
    pieces, thickness = _pieces_of(
        labels.ravel()[places].astype(np.intp), x.astype(np.float64), y.astype(np.float64), step
    )
    return _fit(pieces, thickness)


def _pieces_of(labels: NDArray[np.intp], x: Values, y: Values, step: int) -> tuple[_Moments, Values]:
    """The pieces of lines that have a direction, and how thick each one's line is; every pixel stands for `step`."""
    lines = _moments(labels, x, y, int(labels.max(initial=0)) + 1)
    thickness = np.maximum(step * lines.count / lines.length, 1.0)
    parts = np.clip(lines.length / (PIECE * thickness), 1, MOST_PIECES).astype(np.intp)
    first = np.concatenate([[0], np.cumsum(parts)[:-1]])
    cos, sin = np.cos(lines.direction), np.sin(lines.direction)
    along = (x - lines.x[labels]) * cos[labels] + (y - lines.y[labels]) * sin[labels]
    part = np.clip((along / lines.length[labels] + 0.5) * parts[labels], 0, parts[labels] - 1).astype(np.intp)
    pieces = _moments(first[labels] + part, x, y, int(parts.sum()))
    slender = pieces.length >= SLENDER * step * pieces.count / pieces.length
    kept = slender & (step * pieces.count >= LEAST_PIXELS)
    return _choose(pieces, kept), np.repeat(thickness, parts)[kept]


def _moments(group: NDArray[np.intp], x: Values, y: Values, groups: int) -> _Moments:
    count = np.bincount(group, minlength=groups).astype(np.float64)
    most = np.maximum(count, 1.0)

    def mean(values: Values) -> Values:
        return np.bincount(group, values, groups) / most

    mean_x, mean_y = mean(x), mean(y)
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, yy, xy = mean(dx * dx), mean(dy * dy), mean(dx * dy)
    # A bar of length l has the variance l² / 12 along itself.
    length = np.sqrt(12 * ((xx + yy) / 2 + np.hypot((xx - yy) / 2, xy))) + 1e-9
    return _Moments(count, mean_x, mean_y, np.arctan2(2 * xy, xx - yy) / 2, length)


def _choose(pieces: _Moments, kept: NDArray[np.bool_]) -> _Moments:
    parts = (pieces.count, pieces.x, pieces.y, pieces.direction, pieces.length)
    return _Moments(*(values[kept] for values in parts))


def _fit(pieces: _Moments, thickness: Values) -> LineBend:
    """The bend of the field of directions."""
    doubled = np.sum(pieces.length * np.exp(2j * pieces.direction))
    page = float(np.angle(doubled)) / 2
    leaning = (pieces.direction - page + np.pi / 2) % np.pi - np.pi / 2
    alike = np.abs(leaning) < ALIKE
    if np.count_nonzero(alike) < 6:
        return LineBend()
    pieces, slope = _choose(pieces, alike), np.tan(leaning[alike])
    cos, sin = np.cos(page), np.sin(page)
    half = pieces.length / 2
    x = _unit(cos * pieces.x + sin * pieces.y, half)
    y = _unit(cos * pieces.y - sin * pieces.x, np.zeros_like(half))
    weight = np.minimum(pieces.length / thickness[alike], MOST_WEIGHT)
    turned = _turning(x, y, slope, weight)
    # The text is two units wide.
    turn = 2 * np.sqrt(np.sum(weight * turned**2) / np.sum(weight))
    return LineBend(float(np.degrees(turn)), len(slope))


def _unit(values: Values, half: Values) -> Values:
    """Scaled to -1 to 1, from the least value to the greatest, each reaching as far as its half to both sides."""
    low, high = (values - half).min(), (values + half).max()
    return cast(Values, (2 * values - low - high) / max(high - low, 1.0))


def _turning(x: Values, y: Values, slope: Values, weight: Values) -> Values:
    """By how much the slope of a line changes for each unit of its way, at each piece."""
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    trust = np.ones_like(slope)
    for _ in range(ROUNDS):
        root = np.sqrt(weight * trust)
        factors = np.linalg.lstsq(terms * root[:, None], slope * root, rcond=1e-6)[0]
        off = np.abs(slope - terms @ factors)
        # Huber's weights: what is off by more than two standard deviations counts less. 1.48 medians are one of them.
        trust = 1 / np.maximum(1.0, off / (2 * (1.48 * np.median(off) + 1e-3)))
    _, by_x, by_y, by_xx, by_xy, by_yy = factors
    fitted = terms @ factors
    # A line climbs while it goes, so the field's change across it counts too: lines that converge do not bend.
    return cast(Values, by_x + 2 * by_xx * x + by_xy * y + fitted * (by_y + by_xy * x + 2 * by_yy * y))
