"""Levels the lines of a page that was photographed slightly turned or from the side.

A plane fitted to the slopes of the lines gives the slant at each place, because lines of a page seen from the side
converge. Leaning vertical sides do not change the order, and photographed pages are already straightened.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEAST_LINES = 8  # fewest lines to estimate a slant that changes over the page
LONG = 3.0  # least length, in heights, of lines whose slope counts
SURE = 4.0  # least change of slant over the page, in standard errors


def level_quads(quads: NDArray[np.float32], others: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """The corners (N, 4, 2) of left-to-right lines on the level page, in pixels of the same scale.

    `others` (M, 4, 2) are levelled too, without influence on the slant, and follow behind.
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
    """Undo slants that change over the page; along a line of slope a + b x + c y, y is exponential in x."""
    middle = quads[:count].mean(axis=(0, 1))
    quads = quads - middle
    a, b, c = _slope_plane(quads[:count])
    x, y = quads[..., 0], quads[..., 1]
    if c:
        slope = (a + b * x + c * y + b / c) * np.exp(-c * x) - b / c
        y = (slope - a) / c
    return cast(Numbers, np.stack([x, y], axis=-1) + middle)


def _slope_plane(quads: Numbers) -> tuple[float, float, float]:
    """Fit slopes a + b x + c y by least squares over long lines; zeros where the change is not significant."""
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
        # Outliers, such as the lines of a crooked label, count less (Huber's weights).
        weight = weight * np.sqrt(np.minimum(1, 2 * scale / np.maximum(rest, 1e-9)))
    if abs(fit[2]) < SURE * error[2]:
        return 0.0, 0.0, 0.0
    return float(fit[0]), float(fit[1]), float(fit[2])
