"""Makes boxes of PP-PicoDet's outputs: the expected value of each side's distribution, then non-maximum suppression.

The head and its decoding: G. Yu and others, "PP-PicoDet: A Better Real-Time Object Detector on Mobile Devices" (2021),
after X. Li and others, "Generalized Focal Loss" (2020): a side's distance from a point is a distribution over REACH + 1
whole strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

STRIDES_PX: Final = (8, 16, 32, 64)
REACH: Final = 7
CONFIDENT: Final = 0.4  # as PaddleOCR's and RapidLayout's own configurations
SAME: Final = 0.5  # intersection over union from which two boxes are one thing
MOST: Final = 300
"""Candidates that are compared with each other, the surest first."""

Floats = NDArray[np.float32]


def decode(
    scores: Sequence[Floats], sides: Sequence[Floats], width: int, height: int
) -> tuple[Floats, NDArray[np.intp]]:
    """The boxes that the outputs hold, surest first.

    Args:
        scores: For each stride (points, classes) in [0, 1].
        sides: For each stride (points, 4 * (REACH + 1)): distributions of the distances to left, top, right, bottom.
        width, height: Pixels of the network's input.

    Returns:
        (N, 5) left, top, right, bottom in pixels of the input, and the confidence; and (N,) the class of each.
    """
    found = [_decode_stride(*outputs, width) for outputs in zip(STRIDES_PX, scores, sides, strict=True)]
    boxes = np.concatenate([boxes for boxes, _ in found])
    classes = np.concatenate([classes for _, classes in found])
    order = np.argsort(-boxes[:, 4], kind="stable")[:MOST]
    kept = order[_suppress(boxes[order])]
    boxes = boxes[kept]
    boxes[:, :4] = boxes[:, :4].clip(0, [width, height, width, height])
    return boxes, classes[kept]


def _decode_stride(stride: int, scores: Floats, sides: Floats, width: int) -> tuple[Floats, NDArray[np.intp]]:
    confidences = scores.max(axis=1)
    points = np.flatnonzero(confidences > CONFIDENT)
    columns = -(-width // stride)
    middles = (np.stack([points % columns, points // columns], axis=1) + 0.5) * stride
    weights = np.exp(sides[points].reshape(-1, 4, REACH + 1).astype(np.float64))
    distances = weights @ np.arange(REACH + 1) / weights.sum(axis=2) * stride
    boxes = [middles - distances[:, :2], middles + distances[:, 2:], confidences[points, None]]
    return np.concatenate(boxes, axis=1).astype(np.float32), scores[points].argmax(axis=1)


def _suppress(boxes: Floats) -> NDArray[np.intp]:
    """Indices of boxes (N, 5), surest first, that are not nearly those of a surer one, whatever either is taken for."""
    low, high = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:4], boxes[:, 2:4])
    shared = (high - low).clip(0).prod(axis=2)
    areas = (boxes[:, 2:4] - boxes[:, :2]).prod(axis=1)
    same = shared > SAME * (areas[:, None] + areas - shared)
    kept = np.ones(len(boxes), bool)
    for number in range(len(boxes)):
        if kept[number]:
            kept[number + 1 :] &= ~same[number, number + 1 :]
    return cast("NDArray[np.intp]", np.flatnonzero(kept))
