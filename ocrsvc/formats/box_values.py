"""Converts the boxes and confidences of a page's lines to numbers, all lines at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Character, Line, Word

Boxed = Line | Word | Character

Boxes = NDArray[np.float64]
"""(N, 4, 2): four corners x, y, clockwise from where reading starts, in pixels of the image as displayed."""


def to_boxes(lines: Sequence[Boxed]) -> Boxes:
    """The corners of the lines, or of words or characters."""
    return np.array([line.box for line in lines], np.float64).reshape(-1, 4, 2)


def whole(boxes: Boxes) -> NDArray[np.int64]:
    """The nearest whole numbers."""
    return np.rint(boxes).astype(np.int64)


def to_frames(boxes: Boxes) -> Boxes:
    """The upright frame around each box, (N, 4): left, top, right, bottom."""
    return np.hstack([boxes.min(axis=1), boxes.max(axis=1)])


def to_scores(lines: Sequence[Boxed], digits: int = 5) -> list[float]:
    """The confidence of each line, word or character, in [0, 1]."""
    return cast(list[float], np.array([line.confidence for line in lines]).round(digits).tolist())
