"""How does a page look with its lines framed?"""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np

from ocrsvc.records import Page, Pixels

RED, GREEN, BLUE, PURPLE = (0, 0, 255), (0, 128, 0), (255, 0, 0), (128, 0, 128)
COLOURS = (RED, GREEN, BLUE, PURPLE)
FRAME_PX = 2
JPEG_QUALITY = 75


def draw_page(pixels: Pixels, page: Page) -> bytes:
    """A JPEG of the image with a frame around each line, in turns red, green, blue and purple.

    Args:
        pixels: (H, W) gray or (H, W, 3) BGR image that the page was read from; left as it is. Shrunk to the page's
            width and height where it is larger.
        page: Boxes in pixels of the picture that comes back.
    """
    canvas = _canvas(pixels, page.width, page.height)
    for number, line in enumerate(page.lines):
        corners = np.array(line.box, np.float32).round().astype(np.int32)
        cv2.polylines(canvas, [corners], isClosed=True, color=COLOURS[number % len(COLOURS)], thickness=FRAME_PX)
    _, encoded = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return encoded.tobytes()


def _canvas(pixels: Pixels, width: int, height: int) -> Pixels:
    """A copy in colour, width x height pixels."""
    if pixels.shape[:2] != (height, width):
        pixels = cast(Pixels, cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA))
    return cast(Pixels, cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR)) if pixels.ndim == 2 else pixels.copy()
