"""Levels the lines of a page that was photographed slightly turned, or at an angle, so that its lines converge."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

MIN_LINES = 8  # fewest lines from which a slant that changes over the page is estimated
LONG = 3.0  # least length, in line heights, of lines whose slope counts
SURE = 4.0  # smaller changes of slant over the page, in standard errors, count as noise


def level_quads(quads: NDArray[np.float32], others: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Level the corners (N, 4, 2) of left-to-right lines; `others` get the same correction, but do not affect it."""
    count = len(quads)
    quads = quads if others is None else np.concatenate([quads, others])
    if count < 2:
        return quads
    points = quads.astype(np.float64)
    reading = points[:count, 1] - points[:count, 0]
    lengths = np.hypot(reading[:, 0], reading[:, 1])
    slants = np.arctan2(reading[:, 1], reading[:, 0])
    slant = float(np.median(slants[np.argsort(-lengths)[: max(1, count // 2)]]))
    cos, sin = np.cos(slant), np.sin(slant)
    points = points @ np.array([[cos, -sin], [sin, cos]])
    if count >= MIN_LINES:
        middle = points[:count].mean(axis=(0, 1))
        points = points - middle
        a, b, c = _slope_plane(points[:count])
        if c:
            # Lines are curves of slope a + b x + c y: replace each point's y by the y where its curve crosses x = 0.
            x, y = points[..., 0], points[..., 1]
            points[..., 1] = ((a + b * x + c * y + b / c) * np.exp(-c * x) - b / c - a) / c
        points = points + middle
    return np.asarray(points, np.float32)


def _slope_plane(quads: Numbers) -> tuple[float, float, float]:
    """Fit a + b x + c y to the slopes of long lines by least squares; all 0 if the slopes do not clearly change."""
    reading = (quads[:, 1] - quads[:, 0] + quads[:, 2] - quads[:, 3]) / 2
    height = np.abs(quads[:, 3, 1] - quads[:, 0, 1])
    long = (reading[:, 0] > LONG * height) & (np.abs(reading[:, 1]) < 0.2 * np.abs(reading[:, 0]))
    if long.sum() < MIN_LINES:
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
        # Huber's weights: outliers, such as the lines of a crooked label, count less.
        weight = weight * np.sqrt(np.minimum(1, 2 * scale / np.maximum(rest, 1e-9)))
    if abs(fit[2]) < SURE * error[2]:
        return 0.0, 0.0, 0.0
    return float(fit[0]), float(fit[1]), float(fit[2])
