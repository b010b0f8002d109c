"""Where lines would lie on a page that was not turned a little, or seen from the side, when it was photographed.

The slopes of the lines give the slant at each place: a plane is fitted to them, because in a page seen from the side
lines converge. Left and right edges of lines below each other give the direction of the page's vertical sides: of many
directions that one is taken in which the edges fall together best, as in W. Postl, "Detection of linear oblique
structures and skew scan in digitized documents" (1986).
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEAST_LINES = 8  # fewer say nothing of a slant that changes over the page
LONG = 3.0  # length of lines whose slope counts, in heights
SURE = 4.0  # times its standard error, from which a change of slant over the page is believed
SHEARS = np.linspace(-0.06, 0.06, 7)  # leaning of the vertical sides, in pixels a pixel
FANNINGS = np.linspace(-0.12, 0.12, 13)  # the same at the edge of the text, less that in its middle
FINER = np.array([-0.01, -0.005, 0.0, 0.005, 0.01])
LEAST_SIZE = 0.004  # line height as a share of half the page
MOST_EDGES = 300  # lines whose edges are looked at
GAIN = 1.25  # how much better edges must fall together before sides are taken to lean


def level_quads(quads: NDArray[np.float32], others: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """The corners on the level page of lines that run from left to right, (N, 4, 2) in pixels, the scale kept.

    Behind them come the corners (M, 4, 2) of others, which say nothing of how the page lies.
    """
    count = len(quads)
    quads = quads if others is None else np.concatenate([quads, others])
    if count < 2:
        return quads
    points = _turned(quads.astype(np.float64), count)
    if count >= LEAST_LINES:
        points = _upright(_flattened(points, count), count)
    return points.astype(np.float32)


def _turned(quads: Numbers, count: int) -> Numbers:
    """Undo the median slant of the longer half of the first `count` lines."""
    reading = quads[:count, 1] - quads[:count, 0]
    lengths = np.hypot(reading[:, 0], reading[:, 1])
    slants = np.arctan2(reading[:, 1], reading[:, 0])
    slant = float(np.median(slants[np.argsort(-lengths)[: max(1, count // 2)]]))
    cos, sin = np.cos(slant), np.sin(slant)
    return cast(Numbers, quads @ np.array([[cos, -sin], [sin, cos]]))


def _flattened(quads: Numbers, count: int) -> Numbers:
    """Undo slants that change over the page; along a line of slope a + b x + c y, y is an exponential of x."""
    middle = quads[:count].mean(axis=(0, 1))
    quads = quads - middle
    a, b, c = _slope_plane(quads[:count])
    x, y = quads[..., 0], quads[..., 1]
    if c:
        slope = (a + b * x + c * y + b / c) * np.exp(-c * x) - b / c
        y = (slope - a) / c
    return cast(Numbers, np.stack([x, y], axis=-1) + middle)


def _slope_plane(quads: Numbers) -> tuple[float, float, float]:
    """(a, b, c) of slopes a + b x + c y, by least squares over long lines; zeros where the change is not sure."""
    reading = (quads[:, 1] - quads[:, 0] + quads[:, 2] - quads[:, 3]) / 2
    height = np.abs(quads[:, 3, 1] - quads[:, 0, 1])
    long = (reading[:, 0] > LONG * height) & (np.abs(reading[:, 1]) < 0.2 * np.abs(reading[:, 0]))
    if long.sum() < LEAST_LINES:
        return 0.0, 0.0, 0.0
    slope, centre = reading[long, 1] / reading[long, 0], quads[long].mean(axis=1)
    weight = reading[long, 0] / height[long]
    plane = np.column_stack([np.ones(len(slope)), centre])
    fit, error = np.zeros(3), np.ones(3)
    for _ in range(3):
        weighted = plane * weight[:, None]
        inverse = np.linalg.pinv(weighted.T @ weighted)
        fit = inverse @ (weighted.T @ (slope * weight))
        rest = np.abs(slope - plane @ fit) * weight
        scale = max(1e-9, 1.5 * float(np.median(rest)))
        error = scale * np.sqrt(np.diag(inverse))
        # Lines that do not fit, as those of a label stuck on askew, count less (Huber's weights).
        weight = weight * np.sqrt(np.minimum(1, 2 * scale / np.maximum(rest, 1e-9)))
    if abs(fit[2]) < SURE * error[2]:
        return 0.0, 0.0, 0.0
    return float(fit[0]), float(fit[1]), float(fit[2])


def _upright(quads: Numbers, count: int) -> Numbers:
    """Undo the leaning of the page's vertical sides, where edges fall together better then."""
    middle = quads[:count].mean(axis=(0, 1))
    scale = max(1.0, float(np.abs(quads[:count] - middle).max()))
    points = (quads - middle) / scale
    lines = points[: count : 1 + count // MOST_EDGES]
    edges = np.stack([lines[:, [0, 3]].mean(axis=1), lines[:, [1, 2]].mean(axis=1)])
    size = max(LEAST_SIZE, float(np.median(np.abs(lines[:, 3, 1] - lines[:, 0, 1]))))
    flat = _togetherness(edges, np.zeros(1), np.zeros(1), size)[0]
    shears, fannings = (grid.ravel() for grid in np.meshgrid(SHEARS, FANNINGS))
    for _ in range(2):
        sharpness = _togetherness(edges, shears, fannings, size)
        best = int(np.argmax(sharpness))
        found = sharpness[best], shears[best], fannings[best]
        shears, fannings = (grid.ravel() for grid in np.meshgrid(found[1] + FINER, found[2] + FINER))
    if found[0] < GAIN * flat:
        return quads
    points[..., 0] = _straightened(points, *found[1:])
    return cast(Numbers, points * scale + middle)


def _straightened(points: Numbers, shear: Numbers, fanning: Numbers) -> Numbers:
    """x of points (..., 2) around 0, when vertical sides have the slope shear + fanning x (in x for each y)."""
    fanning = np.where(np.abs(fanning) > 1e-6, fanning, 1e-6)
    return (points[..., 0] + shear / fanning) * np.exp(-fanning * points[..., 1]) - shear / fanning


def _togetherness(edges: Numbers, shears: Numbers, fannings: Numbers, size: float) -> Numbers:
    """How well edges (2, N, 2) fall together for each of (M,) leanings: squares of a histogram in line heights.

    Edges lie from -1 to 1; each is shared between its two nearest bins.
    """
    leaning = (..., *[None] * 2)
    x = _straightened(edges[None], shears[leaning], fannings[leaning])
    bins = int(3.0 / size) + 2
    places = (x + 1.5).clip(0, 3) / size
    low = np.floor(places).astype(np.intp)
    share = places - low
    low += bins * np.arange(2 * len(shears)).reshape(-1, 2, 1)
    counts = np.zeros(2 * len(shears) * bins + 1)
    for step, part in ((0, 1 - share), (1, share)):
        counts += np.bincount((low + step).ravel(), part.ravel(), len(counts))
    return cast(Numbers, (counts[:-1].reshape(len(shears), -1) ** 2).sum(axis=1))
