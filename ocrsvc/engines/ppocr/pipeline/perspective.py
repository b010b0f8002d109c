"""Perspective of the lines of a page: where they converge, and their quads as that has them.

On a sign, a wall or a sheet that is seen from the side, lines converge, letters become smaller along each line, and
their uprights are no longer at right angles to it. The smallest rectangle around such a line shears its letters. Lines
that meet in one point have directions which grow with the distance from the line in the middle; that one number is
fitted over the whole page (robustly, by iteratively reweighted least squares: P. Huber, "Robust Statistics", 1981), and
each quad becomes the trapezoid that it says. A page without convergence keeps its rectangles, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.outline import Outline, is_curved

Values = NDArray[np.float64]

FEWEST_LINES: Final = 6  # lines with a direction, without which no convergence is believed
SLENDER: Final = 4.0  # length by thickness of a line from which it has a direction
LONG: Final = 2.0  # the same, from which it has a direction in which to be sheared
ALIKE: Final = float(np.radians(35))
"""How far a line's direction may be from the page's; the others are left as they are."""

LEAST_CONVERGENCE: Final = 0.1
"""Change of the letters' size from one side of the text to the other, from which it is followed. On 275 corpus images
it is above 0.05 for seven, all of them photographs and pictures of wares."""

MOST_LEFT: Final = 1 / 3  # of the spread of the directions, what the convergence may leave unexplained
LEAST_SIZE: Final = 0.3
"""Thickness at an end by that in the middle; a line that is nearer to where all converge is not read anyhow."""

_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class _Axes:
    """N quads as lines along their longer sides."""

    quads: Values
    middles: Values  # (N, 2), in pixels from the middle of the page's text
    angles: Values  # (N,) directions in radians, all within a quarter turn of `main`
    lengths: Values  # (N,) in pixels
    thicknesses: Values
    main: float  # the direction of most text, in radians


@dataclass(frozen=True, slots=True)
class _Convergence:
    """How lines converge: a line `y` below the one through the middle is turned by `rate` * y."""

    angle: float  # direction of the line through the middle, in radians
    rate: float  # in radians a pixel, which is the share by which letters grow a pixel to the right, too
    along: Values  # (N,) where the lines' middles lie in that direction, in pixels


def follow_perspective(outlines: Sequence[Outline], width: int, height: int) -> list[Outline]:
    """The outlines of a page in their order, straight ones as trapezoids where the lines of the page converge."""
    straight = [number for number, outline in enumerate(outlines) if not is_curved(outline)]
    if len(straight) < FEWEST_LINES:
        return list(outlines)
    axes = _axes(np.array([outlines[number] for number in straight], np.float64))
    alike = np.abs(axes.angles - axes.main) < ALIKE
    convergence = _fit(axes, alike & (axes.lengths > SLENDER * axes.thicknesses))
    if convergence is None:
        return list(outlines)
    trapezoids = np.clip(_trapezoids(axes, convergence), 0, (width, height)).astype(np.float32)
    followed = dict(zip(straight, trapezoids, strict=True))
    changed = {straight[n] for n in np.flatnonzero(alike & (axes.lengths > LONG * axes.thicknesses))}
    return [followed[number] if number in changed else outline for number, outline in enumerate(outlines)]


def _axes(quads: Values) -> _Axes:
    right = (quads[:, 1] + quads[:, 2] - quads[:, 0] - quads[:, 3]) / 2
    down = (quads[:, 2] + quads[:, 3] - quads[:, 0] - quads[:, 1]) / 2
    widths, heights = np.hypot(*right.T), np.hypot(*down.T)
    longer = np.where((heights > widths)[:, None], down, right)
    lengths, thicknesses = np.maximum(widths, heights), np.maximum(np.minimum(widths, heights), 1.0)
    angles = np.arctan2(longer[:, 1], longer[:, 0])
    # A direction and its opposite are one: their doubles are the same.
    weights = np.where(lengths > SLENDER * thicknesses, lengths, 0.0)
    main = float(np.arctan2(weights @ np.sin(2 * angles), weights @ np.cos(2 * angles)) / 2)
    angles = main + (angles - main + np.pi / 2) % np.pi - np.pi / 2
    middles = quads.mean(axis=1)
    return _Axes(quads, middles - (middles.min(axis=0) + middles.max(axis=0)) / 2, angles, lengths, thicknesses, main)


def _fit(axes: _Axes, used: NDArray[np.bool_]) -> _Convergence | None:
    """How the lines converge; None where they are too few, parallel, or turned in another way."""
    if used.sum() < FEWEST_LINES:
        return None
    angles, weights = axes.angles[used], axes.lengths[used]
    angle, rate = float(np.average(angles, weights=weights)), 0.0
    for _ in range(_ROUNDS):
        along, below = _turned(axes.middles[used], angle)
        # Along a line that is turned itself, the next one is farther away: tan is taken for the angle.
        places = below - (angles - angle) * along
        left = angles - angle - rate * places
        limit = 2 * np.median(np.abs(left)) + 1e-4
        trust = weights * np.minimum(1, limit / np.maximum(np.abs(left), 1e-9))
        place, mean = np.average(places, weights=trust), np.average(angles, weights=trust)
        rate = float(trust @ ((places - place) * (angles - mean)) / max(trust @ (places - place) ** 2, 1e-9))
        angle = float(mean - rate * place)
    left_share = np.sqrt(trust @ (angles - angle - rate * places) ** 2 / max(trust @ (angles - mean) ** 2, 1e-12))
    width = np.ptp(along) + np.median(weights)
    if left_share > MOST_LEFT or abs(rate) * width < LEAST_CONVERGENCE:
        return None
    return _Convergence(angle, rate, _turned(axes.middles, angle)[0])


def _turned(points: Values, angle: float) -> tuple[Values, Values]:
    """Coordinates (N,) of points (N, 2) along a direction and across it."""
    cos, sin = np.cos(angle), np.sin(angle)
    return points[:, 0] * cos + points[:, 1] * sin, points[:, 1] * cos - points[:, 0] * sin


def _trapezoids(axes: _Axes, convergence: _Convergence) -> Values:
    """(N, 4, 2) the quads with their ends upright on the page and as thick as the convergence has them."""
    along = np.stack([np.cos(axes.angles), np.sin(axes.angles)], axis=-1)
    across = np.stack([-along[:, 1], along[:, 0]], axis=-1)
    upright = np.array([-np.sin(convergence.angle), np.cos(convergence.angle)])
    middles = axes.quads.mean(axis=1)
    offsets = axes.quads - middles[:, None]
    ends = np.sign((offsets * along[:, None]).sum(axis=2))
    sides = np.sign((offsets * across[:, None]).sum(axis=2))
    rates = convergence.rate / np.maximum(LEAST_SIZE, 1 + convergence.rate * convergence.along)
    sizes = np.maximum(LEAST_SIZE, 1 + ends * (rates * axes.lengths / 2)[:, None])
    halves = axes.thicknesses / 2 / np.maximum(LEAST_SIZE, across @ upright)
    quads: Values = (
        middles[:, None]
        + (ends * (axes.lengths / 2)[:, None])[..., None] * along[:, None]
        + (sides * sizes * halves[:, None])[..., None] * upright
    )
    return quads
