"""Curved text: pages bent like a sheet on a cylinder, with the grids that flatten them, and strips along an arc."""

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.unwarp import PageGrid
from ocrsvc.results import Pixels

WIDTH, HEIGHT, MARGIN = 900, 1100, 70
TOWNS = "report of the spring market with prices for wheat barley and oats in each town"
WORDS = TOWNS.split()


def flat_page(lines: int = 24) -> tuple[Pixels, list[str]]:
    """A page of text lines, every third one a row of numbers in columns; also returns the lines' texts."""
    page: Pixels = np.full((HEIGHT, WIDTH), 245, np.uint8)
    texts = []
    for number in range(lines):
        cells = _cells(number)
        top = 100 + int(number * 40)
        for column, cell in enumerate(cells):
            left = MARGIN + column * (WIDTH - 2 * MARGIN) // len(cells)
            cv2.putText(page, cell, (left, top), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 20, 2, cv2.LINE_AA)
        texts.append(" ".join(cells))
    return page, texts


def _cells(number: int) -> list[str]:
    if number % 3:
        return [" ".join(WORDS[(number + step) % len(WORDS)] for step in range(8))]
    return [WORDS[number % len(WORDS)], *(str(100 + 37 * number + 211 * column) for column in range(5))]


def bent(page: Pixels, sag_px: float, background: int = 60) -> tuple[Pixels, PageGrid]:
    """The page with its lines sagging by `sag_px` in the middle, on a background, and the grid that flattens it."""
    height, width = page.shape[:2]
    border = int(sag_px) + 40
    y, x = np.mgrid[0 : height + 2 * border, 0 : width + 2 * border].astype(np.float32)
    from_x, from_y = x - border, y - border - _drop(x - border + 0.5, width, sag_px)
    picture = cv2.remap(page, from_x, from_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=background)
    columns, rows = np.meshgrid(np.linspace(0, width, 31), np.linspace(0, height, 45))
    points = np.stack([columns + border, rows + border + _drop(columns, width, sag_px)], axis=-1)
    shade = 0.7 + 0.3 * np.sin(np.pi * np.clip((x - border) / width, 0, 1))
    return np.asarray(picture * shade, np.uint8), PageGrid(points.astype(np.float32), width, height)


def _drop(x: NDArray[np.floating], width: int, sag_px: float) -> NDArray[np.floating]:
    return sag_px * (1 - (2 * x / width - 1) ** 2)


def bend(strip: Pixels, radius: float, size: tuple[int, int]) -> Pixels:
    """Draw the (h, w[, 3]) strip on a white (width, height) page, along a circle around the middle of the lower edge.

    `radius`, in pixels, is that of the strip's middle row; the strip must be no longer than half the circle.
    """
    width, height = size
    rows, columns = np.indices((height, width), np.float32)
    right, up = columns - np.float32(width / 2), np.float32(height) - rows
    x = np.arctan2(right, up) * np.float32(radius) + np.float32(strip.shape[1] / 2 - 0.5)
    y = np.float32(radius + strip.shape[0] / 2 - 0.5) - np.hypot(right, up)
    pixels = cv2.remap(strip, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(255, 255, 255))
    return np.asarray(pixels, np.uint8)
