"""Boxes of set lines as a detector gives them: in a photograph's frame, a little too large, a little off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from order_sheet import SetLine
from rapidfuzz.distance import Levenshtein

Matrix = NDArray[np.float64]
Frame = tuple[float, float, float, float]
"""Left, top, right, bottom."""

GROWN = 0.12  # how far a detector's box reaches beyond the ink, in em
SHAKEN = 0.05  # standard deviation of its sides, in em


@dataclass(frozen=True, slots=True)
class View:
    """How the sheet lies in the picture: turned by degrees (clockwise), and narrower at the top by a share."""

    slant: float = 0.0
    keystone: float = 0.0

    def matrix(self, width: float, height: float) -> Matrix:
        """The (3, 3) homography from the sheet to the picture."""
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        # A page seen from the side is nearer on one side too: the right edge shrinks half as much as the top edge.
        inset = np.array([[1, 0], [-1, 0.5], [0, -0.5], [0, 0]]) * self.keystone * width / 2
        seen = (corners + inset).astype(np.float32)
        tilted = cv2.getPerspectiveTransform(corners, seen)
        turned = np.vstack([cv2.getRotationMatrix2D((width / 2, height / 2), -self.slant, 1.0), [0, 0, 1]])
        return cast(Matrix, turned @ tilted)


def quads_of(lines: Sequence[SetLine], matrix: Matrix, shake: random.Random | None) -> NDArray[np.float32]:
    """(N, 4, 2) corners of the lines in the picture, clockwise from where reading starts; `shake` moves their sides."""
    quads = []
    for line in lines:
        offsets = [GROWN + (shake.gauss(0, SHAKEN) if shake else 0.0) for _ in range(4)]
        left, top, right, bottom = (offset * line.size for offset in offsets)
        height = line.size * len(line.text) if line.vertical else line.size
        frame = (line.left - left, line.top - top, line.left + line.width + right, line.top + height + bottom)
        corners = [(frame[0], frame[1]), (frame[2], frame[1]), (frame[2], frame[3]), (frame[0], frame[3])]
        quads.append(corners[1:] + corners[:1] if line.vertical else corners)
    points = np.array(quads, np.float32).reshape(-1, 1, 2)
    return cast("NDArray[np.float32]", cv2.perspectiveTransform(points, matrix).reshape(-1, 4, 2))


def quads_around(frames: Sequence[Frame]) -> NDArray[np.float32]:
    """(N, 4, 2) corners of upright lines."""
    quads = [[[left, top], [right, top], [right, bottom], [left, bottom]] for left, top, right, bottom in frames]
    return np.array(quads, np.float32).reshape(-1, 4, 2)


def rules_of(rules: Sequence[tuple[float, float, float, float]], matrix: Matrix) -> NDArray[np.float32]:
    """(M, 4, 2) corners of rules in the picture: from one end to the other and back."""
    points = np.array([[rule[:2], rule[2:], rule[2:], rule[:2]] for rule in rules], np.float32).reshape(-1, 1, 2)
    seen = cv2.perspectiveTransform(points, matrix) if len(points) else points
    return cast("NDArray[np.float32]", seen.reshape(-1, 4, 2))


def order_cer(truth: Sequence[str], read: Sequence[str]) -> float:
    """Edit distance of the texts without white space, as a share of the true one's length."""
    one, other = ("".join("".join(lines).split()) for lines in (truth, read))
    return Levenshtein.distance(one, other) / max(1, len(one))
