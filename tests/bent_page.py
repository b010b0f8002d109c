"""A strip of pixels laid along an arc, as a line of text lies on a bottle or a bent page."""

from __future__ import annotations

import cv2
import numpy as np

from ocrsvc.results import Pixels


def bend(strip: Pixels, radius: float, size: tuple[int, int]) -> Pixels:
    """A white (width, height) page with the (h, w[, 3]) strip along the top of a circle around its lower middle.

    Args:
        strip: Not longer than half the circle.
        radius: Of the strip's middle row, in pixels.
        size: Of the page; the strip's middle lies `radius` above the middle of its lower edge.
    """
    width, height = size
    rows, columns = np.indices((height, width), np.float32)
    right, up = columns - np.float32(width / 2), np.float32(height) - rows
    x = np.arctan2(right, up) * np.float32(radius) + np.float32(strip.shape[1] / 2 - 0.5)
    y = np.float32(radius + strip.shape[0] / 2 - 0.5) - np.hypot(right, up)
    bent = cv2.remap(strip, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(255, 255, 255))
    return np.asarray(bent, np.uint8)
