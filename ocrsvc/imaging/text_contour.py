"""Outlines of straight or curved text lines: corners, sizes, and cutting straightened lines out of a page.

An outline is float32 (2 k, 2) in page pixels: k points along the upper edge, k back along the lower; k = 2 if straight.
"""

from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import Quad, Quads, crop, sides
from ocrsvc.results import Pixels

Outline = NDArray[np.float32]

_UNIT: Final[Quad] = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32)


def is_curved(outline: Outline) -> bool:
    """Whether the line has more than its four corners."""
    return len(outline) > 4


def corners(outline: Outline) -> Quad:
    """Quad of a straight line, or smallest rectangle around a curved one; reading starts at the first corner."""
    if not is_curved(outline):
        return outline
    middle = len(outline) // 2
    chord = outline[middle - 1] + outline[middle] - outline[0] - outline[-1]
    clockwise = cv2.boxPoints(cv2.minAreaRect(outline)).astype(np.float32)
    edges = np.roll(clockwise, -1, axis=0) - clockwise
    along = edges @ chord / np.maximum(np.hypot(edges[:, 0], edges[:, 1]), 1e-6)
    return np.roll(clockwise, -int(np.argmax(along)), axis=0)


def ends(outline: Outline) -> Quad:
    """The quad of the four corners at the line's two ends; for a straight line this is the line's own quad."""
    middle = len(outline) // 2
    return outline[[0, middle - 1, middle, -1]]


def extent(outline: Outline) -> tuple[float, float]:
    """Length along the curve in reading direction, and height across it, in pixels."""
    sizes = [sides(quad) for quad in _pieces(outline)]
    return sum(along for along, _ in sizes), sum(across for _, across in sizes) / len(sizes)


def turned_round(outline: Outline) -> Outline:
    """The outline of the line read in the opposite direction."""
    return np.roll(outline, len(outline) // 2, axis=0)


def cut(pixels: Pixels, outline: Outline, width: int, height: int) -> Pixels:
    """Cut a line out of (H, W[, 3]) pixels, straightening its pieces with `crop`; returns `height` x `width` pixels."""
    if not is_curved(outline):
        return crop(pixels, outline, width, height)
    pieces = _pieces(outline)
    lengths = np.array([sides(quad)[0] for quad in pieces])
    ends = np.rint(lengths.cumsum() / max(float(lengths.sum()), 1e-6) * width).astype(int)
    widths = np.diff(ends, prepend=0)
    parts = [crop(pixels, quad, int(part), height) for quad, part in zip(pieces, widths, strict=True) if part > 0]
    return cast(Pixels, np.concatenate(parts, axis=1))


def parts_of(outline: Outline, parts: NDArray[np.floating]) -> Quads:
    """Map rectangles on a line's crop, made by `cut`, to quads (N, 4, 2) on the page, clipped to the outline's bounds.

    Parts are (N, 4) left, top, right and bottom as shares of the crop's width and height.
    """
    points = parts[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2).astype(np.float64)
    corners = _through_pieces(outline, points) if is_curved(outline) else _through(outline, points)
    # A quad without area has no perspective transform, so its points are not finite.
    corners[~np.isfinite(corners)] = 0.0
    framed = np.minimum(np.maximum(corners, outline.min(axis=0)), outline.max(axis=0))
    return cast(Quads, framed.reshape(-1, 4, 2).astype(np.float32))


def _through_pieces(outline: Outline, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map points (N, 2), as shares of the size of a curved line's crop, to the page."""
    pieces = _pieces(outline)
    lengths = np.array([max(sides(quad)[0], 1e-6) for quad in pieces])
    ends = lengths.cumsum() / lengths.sum()
    piece = np.minimum(np.searchsorted(ends, points[:, 0]), len(pieces) - 1)
    placed = np.empty_like(points)
    for number, quad in enumerate(pieces):
        inside = piece == number
        along = (points[inside, 0] - ends[number]) * lengths.sum() / lengths[number] + 1
        placed[inside] = _through(quad, np.stack([along, points[inside, 1]], axis=1))
    return placed


def _through(quad: Quad, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map points (N, 2) of a straight piece's crop to the page; not finite if the quad has no area."""
    matrix = cv2.getPerspectiveTransform(_UNIT, quad)
    placed = points @ matrix[:, :2].T + matrix[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return placed[:, :2] / placed[:, 2:]


def _pieces(outline: Outline) -> list[Quad]:
    last = len(outline) - 1
    return [outline[[i, i + 1, last - i - 1, last - i]] for i in range(len(outline) // 2 - 1)]
