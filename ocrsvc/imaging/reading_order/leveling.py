"""Where lines would lie on a page that was not turned a little, or seen from the side, when it was photographed.

The slopes of the lines give the slant at each place: a plane is fitted to them, because in a page seen from the side
lines converge. That the vertical sides lean as well changes no order, and photographed pages are straight by then.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEAST_LINES = 8  # fewer say nothing of a slant that changes over the page
LONG = 3.0  # length of lines whose slope counts, in heights
SURE = 4.0  # times its standard error, from which a change of slant over the page is believed


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
        points = _flattened(points, count)
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
