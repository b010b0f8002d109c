"""Draws a page's image as a JPEG, with a frame around each line and masked parts in black."""

from typing import cast

import cv2
import numpy as np

from ocrsvc.results import Box, Check, Page, Pixels, no_check

# Red, green, blue, purple, in BGR.
COLOURS = ((0, 0, 255), (0, 128, 0), (255, 0, 0), (128, 0, 128))
FRAME_PX = 2
JPEG_QUALITY = 75


def draw_page(pixels: Pixels, page: Page, check: Check = no_check) -> bytes:
    """Draw a JPEG of the page with coloured frames around its lines, and masked parts in black.

    Overwrites `pixels`, (H, W) gray or (H, W, 3) BGR, unless a conversion of colour or size makes a copy.
    """
    canvas = _canvas(pixels, page)
    for part in page.masked or ():
        check()
        _black_out(canvas, part.box)
    for number, line in enumerate(page.lines):
        check()
        corners = np.array(line.box, np.float32).round().astype(np.int32)
        cv2.polylines(canvas, [corners], isClosed=True, color=COLOURS[number % len(COLOURS)], thickness=FRAME_PX)
    check()
    _, encoded = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return encoded.tobytes()


def _black_out(canvas: Pixels, box: Box) -> None:
    """Fill a box in black, and a margin around it, because edges of letters are blurred."""
    corners = np.array(box, np.float32).round().astype(np.int32)
    cv2.fillPoly(canvas, [corners], color=(0, 0, 0))
    cv2.polylines(canvas, [corners], isClosed=True, color=(0, 0, 0), thickness=3)


def drawing_bytes(pixels: Pixels, page: Page) -> int:
    """Peak memory of `draw_page` in bytes: the copy of the pixels, if one is made, and twice the JPEG."""
    canvas_bytes = 0 if pixels.shape == (page.height, page.width, 3) else 4
    return page.width * page.height * (canvas_bytes + 2)


def _canvas(pixels: Pixels, page: Page) -> Pixels:
    if pixels.shape[:2] != (page.height, page.width):
        pixels = cast(Pixels, cv2.resize(pixels, (page.width, page.height), interpolation=cv2.INTER_AREA))
    return cast(Pixels, cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR)) if pixels.ndim == 2 else pixels
