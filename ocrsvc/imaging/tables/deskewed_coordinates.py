"""Coordinates of a deskewed working copy of a page, upright and shrunk: rows of text are level there."""

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import turn_points
from ocrsvc.results import Pixels

WORKING_SIDE_PX: Final = (
    2400  # longest side of the copy: 290 dpi of A4, where a hairline is still visible; 6 MB in gray
)
LEVEL_DEGREES: Final = 0.05  # largest slant that is ignored: it moves no pixel of the copy by more than two

Points = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DeskewedCoordinates:
    """Maps an image to its copy of `width` x `height` pixels and back.

    `matrix` (2, 3) maps the image to the copy; without `is_turned` it only scales by `scale`, at most 1.
    """

    width: int
    height: int
    scale: float
    matrix: NDArray[np.float64]
    is_turned: bool

    def to_level(self, points: Points) -> Points:
        """Map points (..., 2) of the image to the copy."""
        return np.asarray(points @ self.matrix[:, :2].T + self.matrix[:, 2], np.float32)

    def to_image(self, points: Points) -> Points:
        """Map points (..., 2) of the copy to the image."""
        return np.asarray((points - self.matrix[:, 2]) @ np.linalg.inv(self.matrix[:, :2]).T, np.float32)

    def warp(self, pixels: Pixels) -> Pixels:
        """Make the copy of the image's pixels, gray: (height, width) uint8."""
        height, width = pixels.shape[:2]
        if self.scale < 1:
            size = _scaled(width, height, self.scale)
            pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
        gray = np.asarray(pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY), np.uint8)
        if not self.is_turned:
            return gray
        matrix = self.matrix @ np.diag([width / gray.shape[1], height / gray.shape[0], 1])
        size, border = (self.width, self.height), cv2.BORDER_REPLICATE
        return np.asarray(cv2.warpAffine(gray, matrix, size, flags=cv2.INTER_LINEAR, borderMode=border), np.uint8)


def deskewed_coordinates(width: int, height: int, angle: int, quads: Points) -> DeskewedCoordinates:
    """The mapping that levels text, by the quads (N, 4, 2) of lines that mostly run level after a turn by `angle`."""
    scale = min(1.0, WORKING_SIDE_PX / max(width, height))
    # The median slant of the longer half of the lines, in clockwise degrees off the axes, in (-45, 45].
    level = turn_points(quads, angle, width, height)
    reading = (level[:, 1] - level[:, 0]).astype(np.float64)
    longest = np.argsort(-np.hypot(*reading.T), kind="stable")[: max(1, len(quads) // 2)]
    angles = np.degrees(np.arctan2(reading[longest, 1], reading[longest, 0]))
    slant = float(np.median(-((45 - angles) % 90 - 45)))
    if abs(slant) < LEVEL_DEGREES and not angle:
        matrix = np.array([[scale, 0, 0], [0, scale, 0]], np.float64)
        return DeskewedCoordinates(*_scaled(width, height, scale), scale, matrix, is_turned=False)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    # The images of three points give the turn; the rotation about the origin and the shift follow.
    turned = turn_points(corners[[0, 1, 3]], angle, width, height).astype(np.float64)
    turn = np.stack([(turned[1] - turned[0]) / width, (turned[2] - turned[0]) / height], axis=1)
    cos, sin = np.cos(np.radians(slant)), np.sin(np.radians(slant))
    rotation = scale * np.array([[cos, sin], [-sin, cos]]) @ turn
    moved = corners @ rotation.T
    matrix = np.concatenate([rotation, -moved.min(axis=0)[:, None]], axis=1)
    new_width, new_height = np.maximum(1, np.ceil(np.ptp(moved, axis=0)).astype(int)).tolist()
    return DeskewedCoordinates(new_width, new_height, scale, matrix, is_turned=True)


def _scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    return max(1, round(width * scale)), max(1, round(height * scale))
