"""Finds pieces of lines and their directions in the detector's mask of text, to learn whether the lines bend.

Each connected part of the mask is cut along its length into pieces, and each piece has a direction: that of its largest
second moment. So both long lines and the short numbers of a table say how the lines of a page run; see line_field.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.line_field import Pieces, Values
from ocrsvc.records import Pixels

MOST_SAMPLES: Final = 60_000
"""Pixels of text that are looked at: as many give a direction to a tenth of a degree, whatever the page's size."""

PIECE: Final = 6.0  # lengths of a piece in thicknesses of its line: shorter ones have no direction
SLENDER: Final = 2.5  # length over thickness from which a piece has a direction
MOST_PIECES: Final = 32  # of one line
LEAST_PIXELS: Final = 30  # of a piece


class LastMask:
    """The mask of the detector's latest pass over a page."""

    def __init__(self) -> None:
        self._mask: Pixels | None = None

    def keep(self, mask: Pixels) -> None:
        """Keep this one; (h, w) uint8, 0 where there is no text."""
        self._mask = mask

    def pieces(self, width: int, height: int) -> Pieces:
        """The pieces of its lines, in pixels of the image that it stands for; the mask is no longer kept then."""
        mask, self._mask = self._mask, None
        if mask is None:
            mask = np.zeros((1, 1), np.uint8)
        return _scaled(find_pieces(mask), width / mask.shape[1], height / mask.shape[0])


@dataclass(frozen=True, slots=True)
class _Moments:
    """Of each of N groups of pixels: its pixels, its centre, the direction of its length in radians, and its length."""

    count: Values
    x: Values
    y: Values
    direction: Values
    length: Values


def find_pieces(mask: Pixels) -> Pieces:
    """The pieces of lines that have a direction.

    Linear in the mask's pixels; what is done with numpy takes 10 to 20 ms at most.

    Args:
        mask: (h, w) uint8, 0 where there is no text.
    """
    labels = cv2.connectedComponents(mask, connectivity=4, ltype=cv2.CV_32S)[1]
    places = np.flatnonzero(mask)
    step = 1 + len(places) // MOST_SAMPLES
    places = places[::step]
    y, x = np.divmod(places, mask.shape[1])
    return _cut(labels.ravel()[places].astype(np.intp), x.astype(np.float64), y.astype(np.float64), step)


def _cut(labels: NDArray[np.intp], x: Values, y: Values, step: int) -> Pieces:
    """Cut lines into pieces; every pixel stands for `step`."""
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
    placed = (pieces.x + 0.5, pieces.y + 0.5, pieces.direction, pieces.length, np.repeat(thickness, parts))
    return Pieces(*(values[kept] for values in placed))


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


def _scaled(pieces: Pieces, across: float, down: float) -> Pieces:
    """Pieces of a map in pixels of the image, whose scales hardly differ."""
    mean = (across + down) / 2
    direction = np.arctan2(np.sin(pieces.direction) * down, np.cos(pieces.direction) * across)
    return Pieces(pieces.x * across, pieces.y * down, direction, pieces.length * mean, pieces.thickness * mean)
