"""A page turned upright, levelled and shrunk to a working size, and the way back to the pixels of its image.

Rows of text are level there, so that what stands beside or below each other is found by comparing single coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import turn_points
from ocrsvc.records import Pixels

WORKING_SIDE_PX: Final = 2400
"""Longest side of the working copy: 290 dots an inch of A4, where a hairline still leaves a mark; 6 MB in gray."""

LEVEL_DEGREES: Final = 0.05
"""Slant that moves nothing by more than two pixels across a working copy; such a page is not turned."""

Points = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LevelFrame:
    """Where the pixels of an image lie once its text is level.

    Attributes:
        width, height: Pixels of the levelled copy.
        scale: Its pixels for each pixel of the image, at most 1.
        matrix: (2, 3) float64, from the image to the levelled copy.
        is_turned: False where only the scale differs.
    """

    width: int
    height: int
    scale: float
    matrix: NDArray[np.float64]
    is_turned: bool

    def to_level(self, points: Points) -> Points:
        """Points (..., 2) of the image, in the levelled copy."""
        return cast(Points, (points @ self.matrix[:, :2].T + self.matrix[:, 2]).astype(np.float32))

    def to_image(self, points: Points) -> Points:
        """Points (..., 2) of the levelled copy, in the image."""
        back = np.linalg.inv(self.matrix[:, :2])
        return cast(Points, ((points - self.matrix[:, 2]) @ back.T).astype(np.float32))

    def warp(self, pixels: Pixels) -> Pixels:
        """The levelled copy of the image's pixels, gray: (height, width) uint8."""
        height, width = pixels.shape[:2]
        if self.scale < 1:
            size = max(1, round(width * self.scale)), max(1, round(height * self.scale))
            pixels = cast(Pixels, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))
        gray = cast(Pixels, pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))
        if not self.is_turned:
            return gray
        shrunk = np.array([[width / gray.shape[1], 0, 0], [0, height / gray.shape[0], 0], [0, 0, 1]])
        matrix, size = self.matrix @ shrunk, (self.width, self.height)
        return cast(Pixels, cv2.warpAffine(gray, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def make_level_frame(width: int, height: int, angle: int, quads: Points) -> LevelFrame:
    """The frame in which the text of a page is level.

    Args:
        width, height: Pixels of the image.
        angle: Clockwise turn (0, 90, 180, 270) after which most of the text runs from left to right.
        quads: (N, 4, 2) the lines, clockwise from where reading starts.
    """
    scale = min(1.0, WORKING_SIDE_PX / max(width, height))
    slant = measure_slant(turn_points(quads, angle, width, height))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    if abs(slant) < LEVEL_DEGREES and not angle:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        return LevelFrame(*size, scale, np.array([[scale, 0, 0], [0, scale, 0]], np.float64), is_turned=False)
    # Where three points land gives the turn; the rotation about the origin and the shift follow.
    turned = turn_points(corners[[0, 1, 3]], angle, width, height).astype(np.float64)
    turn = np.stack([(turned[1] - turned[0]) / width, (turned[2] - turned[0]) / height], axis=1)
    cos, sin = np.cos(np.radians(slant)), np.sin(np.radians(slant))
    rotation = scale * np.array([[cos, sin], [-sin, cos]]) @ turn
    moved = corners @ rotation.T
    matrix = np.concatenate([rotation, -moved.min(axis=0)[:, None]], axis=1)
    level_width, level_height = np.maximum(1, np.ceil(moved.max(axis=0) - moved.min(axis=0)).astype(int)).tolist()
    return LevelFrame(level_width, level_height, scale, matrix, is_turned=True)


def measure_slant(quads: Points) -> float:
    """Degrees, clockwise, in (-45, 45], by which the longer half of lines (N, 4, 2) are off the level or upright."""
    if not len(quads):
        return 0.0
    reading = (quads[:, 1] - quads[:, 0]).astype(np.float64)
    lengths = np.hypot(reading[:, 0], reading[:, 1])
    longest = np.argsort(-lengths, kind="stable")[: max(1, len(quads) // 2)]
    angles = np.degrees(np.arctan2(reading[longest, 1], reading[longest, 0]))
    return float(np.median(-((45 - angles) % 90 - 45)))
