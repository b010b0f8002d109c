"""Where the lines of a page are: differentiable binarization (DB), before and after the model.

Algorithm: M. Liao et al., "Real-time Scene Text Detection with Differentiable Binarization" (AAAI 2020), in the form
that PP-OCR uses. Its polygon offset is done in closed form here: growing a rectangle by a distance d on all sides gives
a rectangle again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.tensors import to_tensor
from ocrsvc.imaging.geometry import Quad, sides
from ocrsvc.records import Pixels

STRIDE = 32  # the network's input sides must be multiples of this
COARSE_PX = 960  # longest side of the first look
FINE_PX = 2048  # longest side of the second look, if the first one finds the text too small
ENLARGE_MOST = 2.5
READABLE_PX = 24.0  # height of a box in the network's input from which finer input finds no more
WORTH_ANOTHER_LOOK = 1.3
SMALL_TEXT_SHARE = 0.25
SMALL_IMAGE_PX = 640
STRIP = 4.0
MAP_THRESHOLD = 0.3
BOX_THRESHOLD = 0.4
UNCLIP_RATIO = 1.6
SMALLEST_PX = 3
MOST_BOXES = 3000

ProbabilityMap = NDArray[np.float32]
Contour = NDArray[np.int32]


def find_quads(pixels: Pixels, run: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> list[Quad]:
    """Find the lines of an image, in no particular order.

    The first look is coarse and learns how tall the text is; only if its smaller lines are too small for the network a
    second look follows, at the resolution that they need (enlarged, where the image itself is small).

    Args:
        pixels: (H, W) or (H, W, 3) uint8.
        run: The model: (1, 3, h, w) float32 in, (1, 1, h, w) probabilities out.

    Returns:
        Quads in the pixels of the image, clockwise from the top left corner.
    """
    height, width = pixels.shape[:2]
    return look_closely(height, width, lambda scale: _look(pixels, run, scale))


def look_closely(height: int, width: int, look: Callable[[float], list[Quad]]) -> list[Quad]:
    """The quads of an image of that size in pixels, from `look` at one scale or two, as `find_quads` says."""
    scale = first_scale(height, width)
    quads = look(scale)
    finer = scale_for_text(quads, scale, longest_side(height, width))
    return look(finer) if finer >= scale * WORTH_ANOTHER_LOOK else quads


def longest_side(height: int, width: int) -> float:
    """The longest side, in pixels; of a strip, that of the page of STRIP : 1 which has as many pixels.

    A long screenshot that were shrunk by its own length would be left a few pixels wide.
    """
    return min(max(height, width), math.sqrt(STRIP * height * width))


def first_scale(height: int, width: int) -> float:
    """The scale of the first look: large images are shrunk to COARSE_PX, small ones enlarged to SMALL_IMAGE_PX."""
    longest = longest_side(height, width)
    return min(1.0, COARSE_PX / longest) if longest >= SMALL_IMAGE_PX else min(ENLARGE_MOST, SMALL_IMAGE_PX / longest)


def scale_for_text(quads: list[Quad], scale: float, longest: float) -> float:
    """The scale at which the smaller lines reach READABLE_PX, within what the image and the limits allow."""
    if not quads:
        return scale
    heights = sorted(min(sides(quad)) * scale for quad in quads)
    small = heights[int(len(heights) * SMALL_TEXT_SHARE)]
    return min(scale * max(1.0, READABLE_PX / small), ENLARGE_MOST, max(FINE_PX / longest, scale))


def _look(pixels: Pixels, run: Callable[[NDArray[np.float32]], NDArray[np.float32]], scale: float) -> list[Quad]:
    height, width = pixels.shape[:2]
    return quads_from_map(run(to_tensor(_resize(pixels, scale)))[0, 0], width, height)


def _resize(pixels: Pixels, scale: float) -> Pixels:
    height, width = pixels.shape[:2]
    size = input_size(height, width, scale)
    return cast(Pixels, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR))


def input_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """(width, height) of the network's input for an image at a scale: multiples of STRIDE."""
    return _to_stride(width * scale), _to_stride(height * scale)


def quads_from_map(probabilities: ProbabilityMap, width: int, height: int) -> list[Quad]:
    """Turn an (h, w) probability map into quads in the pixels of the width x height image it stands for."""
    mask = cv2.dilate((probabilities > MAP_THRESHOLD).astype(np.uint8), np.ones((2, 2), np.uint8))
    return quads_from_mask(cast(Pixels, mask), probabilities, width, height)


def quads_from_mask(
    mask: Pixels, probabilities: NDArray[Any], width: int, height: int, *, certain: float = 1.0
) -> list[Quad]:
    """As `quads_from_map`, where the map is known already to be (1) or not to be (0) text.

    Args:
        mask: (h, w) uint8, dilated.
        probabilities: (h, w) float32 or uint8.
        width, height: Pixels of the image.
        certain: What stands for a probability of 1.
    """
    contours = cast("list[Contour]", cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0])
    scale = np.array([width / probabilities.shape[1], height / probabilities.shape[0]], np.float32)
    limit = np.array([width, height], np.float32)
    quads = (_quad_of(contour, probabilities, BOX_THRESHOLD * certain) for contour in contours[:MOST_BOXES])
    placed = (np.clip(quad * scale, 0, limit).astype(np.float32) for quad in quads if quad is not None)
    return [quad for quad in placed if _is_large_enough(quad)]


def _quad_of(contour: Contour, probabilities: NDArray[Any], least: float) -> Quad | None:
    (cx, cy), (across, along), angle = cv2.minAreaRect(contour)
    if min(across, along) < SMALLEST_PX or _score(contour, probabilities) < least:
        return None
    distance = across * along * UNCLIP_RATIO / (2 * (across + along))
    grown = ((cx, cy), (across + 2 * distance, along + 2 * distance), angle)
    return order_clockwise(cv2.boxPoints(grown).astype(np.float32))


def _score(contour: Contour, probabilities: NDArray[Any]) -> float:
    """Mean probability inside the contour's smallest rectangle."""
    corners = cv2.boxPoints(cv2.minAreaRect(contour))
    height, width = probabilities.shape
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1))
    inside = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillConvexPoly(inside, (corners - (left, top)).astype(np.int32), 1)
    return float(cv2.mean(probabilities[top : bottom + 1, left : right + 1], inside)[0])


def order_clockwise(corners: NDArray[np.float32]) -> Quad:
    """Order four corners clockwise, beginning with the upper one of the two leftmost."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    top_left, bottom_left = by_x[:2][np.argsort(by_x[:2, 1], kind="stable")]
    top_right, bottom_right = by_x[2:][np.argsort(by_x[2:, 1], kind="stable")]
    return np.array([top_left, top_right, bottom_right, bottom_left], np.float32)


def _is_large_enough(quad: Quad) -> bool:
    return bool(np.hypot(*(quad[1] - quad[0])) > SMALLEST_PX and np.hypot(*(quad[3] - quad[0])) > SMALLEST_PX)


def _to_stride(side: float) -> int:
    return max(STRIDE, round(side / STRIDE) * STRIDE)
