"""Corrects line boxes for perspective: measures how the lines converge, and turns rectangles into trapezoids.

On a sign, a wall or a sheet seen from the side, lines converge, letters shrink along each line, and vertical strokes
are not perpendicular to it. The minimum-area rectangle around such a line shears its letters. The angles of lines that
meet in one point grow with the distance from the middle line. That rate is fitted over the whole page by iteratively
reweighted least squares (P. Huber, "Robust Statistics", 1981); each line's trapezoid follows from it. A page without
convergence keeps its rectangles unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.text_contour import Outline, is_curved

Values = NDArray[np.float64]

MIN_LINES: Final = 6  # fewest lines with a clear direction from which convergence is measured
MIN_ASPECT: Final = 4.0  # smallest length / thickness of a line that is used for measuring
MIN_CORRECTED_ASPECT: Final = 2.0  # smallest length / thickness of a line that is corrected
# Largest angle between a line and the page's direction; lines with a larger one are not corrected.
MAX_ANGLE: Final = float(np.radians(35))
# Perspective is corrected only if letter size changes across the text by at least this share. Of 275 corpus images
# seven exceed 0.05, all of them photographs or product pictures.
MIN_CONVERGENCE: Final = 0.1
MAX_UNEXPLAINED: Final = 1 / 3  # largest share of the spread of directions that the fit may leave unexplained
# Least ratio of a line's thickness at its thinner end to that in its middle; below, the line is unreadable.
MIN_SIZE: Final = 0.3
_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class _Axes:
    """N quads, described as lines along their longer sides."""

    quads: Values
    middles: Values  # (N, 2), in pixels from the middle of the page's text
    angles: Values  # (N,) directions in radians, within a quarter turn of `main`
    lengths: Values  # (N,) in pixels
    thicknesses: Values
    main: float  # direction of most of the text, in radians


# Direction of the text's middle line in radians; and rate in radians per pixel: a line's direction changes by its
# distance below the middle line times the rate, and the letters' size changes by the rate per pixel to the right.
_Convergence = tuple[float, float]


def follow_perspective(outlines: Sequence[Outline], width: int, height: int) -> list[Outline]:
    """Replace straight outlines by trapezoids if the lines of the page converge; the order is kept."""
    straight = [number for number, outline in enumerate(outlines) if not is_curved(outline)]
    if len(straight) < MIN_LINES:
        return list(outlines)
    axes = _axes(np.array([outlines[number] for number in straight], np.float64))
    alike = np.abs(axes.angles - axes.main) < MAX_ANGLE
    convergence = _fit(axes, alike & (axes.lengths > MIN_ASPECT * axes.thicknesses))
    if convergence is None:
        return list(outlines)
    trapezoids = np.clip(_trapezoids(axes, convergence), 0, (width, height)).astype(np.float32)
    followed = dict(zip(straight, trapezoids, strict=True))
    changed = {straight[n] for n in np.flatnonzero(alike & (axes.lengths > MIN_CORRECTED_ASPECT * axes.thicknesses))}
    return [followed[number] if number in changed else outline for number, outline in enumerate(outlines)]


def _axes(quads: Values) -> _Axes:
    right = (quads[:, 1] + quads[:, 2] - quads[:, 0] - quads[:, 3]) / 2
    down = (quads[:, 2] + quads[:, 3] - quads[:, 0] - quads[:, 1]) / 2
    widths, heights = np.hypot(*right.T), np.hypot(*down.T)
    longer = np.where((heights > widths)[:, None], down, right)
    lengths, thicknesses = np.maximum(widths, heights), np.maximum(np.minimum(widths, heights), 1.0)
    angles = np.arctan2(longer[:, 1], longer[:, 0])
    weights = np.where(lengths > MIN_ASPECT * thicknesses, lengths, 0.0)
    # Average doubled angles, for which a direction and its opposite are equal.
    main = float(np.arctan2(weights @ np.sin(2 * angles), weights @ np.cos(2 * angles)) / 2)
    angles = main + (angles - main + np.pi / 2) % np.pi - np.pi / 2
    middles = quads.mean(axis=1)
    return _Axes(quads, middles - (middles.min(axis=0) + middles.max(axis=0)) / 2, angles, lengths, thicknesses, main)


def _fit(axes: _Axes, used: NDArray[np.bool_]) -> _Convergence | None:
    """Fit the lines' convergence; None if lines are too few, nearly parallel, or do not meet in one point."""
    if used.sum() < MIN_LINES:
        return None
    angles, weights = axes.angles[used], axes.lengths[used]
    angle, rate = float(np.average(angles, weights=weights)), 0.0
    for _ in range(_ROUNDS):
        along, below = _turned(axes.middles[used], angle)
        # Where each line, extended, crosses the perpendicular through the text's middle (tan x = x for small angles).
        places = below - (angles - angle) * along
        left = angles - angle - rate * places
        limit = 2 * np.median(np.abs(left)) + 1e-4
        trust = weights * np.minimum(1, limit / np.maximum(np.abs(left), 1e-9))
        place, mean = np.average(places, weights=trust), np.average(angles, weights=trust)
        rate = float(trust @ ((places - place) * (angles - mean)) / max(trust @ (places - place) ** 2, 1e-9))
        angle = float(mean - rate * place)
    left_share = np.sqrt(trust @ (angles - angle - rate * places) ** 2 / max(trust @ (angles - mean) ** 2, 1e-12))
    width = np.ptp(along) + np.median(weights)
    if left_share > MAX_UNEXPLAINED or abs(rate) * width < MIN_CONVERGENCE:
        return None
    return angle, rate


def _turned(points: Values, angle: float) -> tuple[Values, Values]:
    """Convert points (N, 2) to coordinates along a direction and across it, each (N,)."""
    cos, sin = np.cos(angle), np.sin(angle)
    return points[:, 0] * cos + points[:, 1] * sin, points[:, 1] * cos - points[:, 0] * sin


def _trapezoids(axes: _Axes, convergence: _Convergence) -> Values:
    """Trapezoids (N, 4, 2) of the lines: ends perpendicular to the middle line, thickness changed by `convergence`."""
    along = np.stack([np.cos(axes.angles), np.sin(axes.angles)], axis=-1)
    across = np.stack([-along[:, 1], along[:, 0]], axis=-1)
    angle, rate = convergence
    upright = np.array([-np.sin(angle), np.cos(angle)])
    middles = axes.quads.mean(axis=1)
    offsets = axes.quads - middles[:, None]
    ends = np.sign((offsets * along[:, None]).sum(axis=2))
    sides = np.sign((offsets * across[:, None]).sum(axis=2))
    rates = rate / np.maximum(MIN_SIZE, 1 + rate * _turned(axes.middles, angle)[0])
    sizes = np.maximum(MIN_SIZE, 1 + ends * (rates * axes.lengths / 2)[:, None])
    halves = axes.thicknesses / 2 / np.maximum(MIN_SIZE, across @ upright)
    quads: Values = (
        middles[:, None]
        + (ends * (axes.lengths / 2)[:, None])[..., None] * along[:, None]
        + (sides * sizes * halves[:, None])[..., None] * upright
    )
    return quads
