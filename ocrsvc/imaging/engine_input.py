"""Applies `region`, `rotate` and `max_side` to an image before the engine reads it, and maps the page back."""

import re
from dataclasses import replace
from typing import Final

import numpy as np

from ocrsvc.errors import BadOption
from ocrsvc.imaging.geometry import Quads, map_boxes, move_page, restore_page, shrink, turn, turn_points
from ocrsvc.results import Image, OwnText, Page, ReadOptions, Rectangle

REGION_ACCEPTED: Final = "x,y,width,height in whole pixels, such as 10,20,300,40, with a width and height of at least 1"
_REGION: Final = re.compile("(0|[1-9][0-9]{0,8}),(0|[1-9][0-9]{0,8}),([1-9][0-9]{0,8}),([1-9][0-9]{0,8})")


def parse_region(text: str) -> Rectangle:
    """Parse a rectangle such as "10,20,300,40": x, y, width and height in pixels. Raises ValueError."""
    if match := _REGION.fullmatch(",".join(part.strip() for part in text.split(",", 4))):
        x, y, width, height = map(int, match.groups())
        return x, y, width, height
    raise ValueError(text)


class EngineInput:
    """Transforms an image for the engine, into a new array if `makes_copy`, and maps the engine's page back."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._degrees = 0 if options.rotate == "auto" else int(options.rotate)
        self.makes_copy = bool(self._degrees) or options.max_side is not None or options.region is not None
        self._size_px = self._seen_px = (0, 0)
        self._region: Rectangle | None = None

    @property
    def left(self) -> ReadOptions:
        """The read options that are left to the engine; `apply` applies the others."""
        return replace(self._options, rotate="auto" if self._options.rotate == "auto" else "0", region=None)

    def apply(self, image: Image) -> Image:
        """Crop, turn and shrink an image. Raises BadOption for a region outside the image."""
        self._size_px = image.frame or (image.width, image.height)
        if self._options.region is not None:
            self._region = clip_region(self._options.region, *self._size_px)
        kind, pixels = image.format, image.pixels
        # The caller holds no reference, so the original pixels are freed when the first copy replaces them.
        del image
        if self._region is not None:
            x, y, width, height = self._region
            across, down = pixels.shape[1] / self._size_px[0], pixels.shape[0] / self._size_px[1]
            # Keep at least one pixel, and copy: a view would keep the whole image in memory.
            left, top = min(round(x * across), pixels.shape[1] - 1), min(round(y * down), pixels.shape[0] - 1)
            right, bottom = max(left + 1, round((x + width) * across)), max(top + 1, round((y + height) * down))
            pixels = np.ascontiguousarray(pixels[top:bottom, left:right])
        pixels = turn(pixels, self._degrees)
        if self._options.max_side is not None:
            pixels, _ = shrink(pixels, self._options.max_side)
        self._seen_px = (int(pixels.shape[1]), int(pixels.shape[0]))
        return Image(pixels, kind)

    def apply_to_text(self, own: OwnText) -> OwnText:
        """Map a text layer from the image last given to `apply` to coordinates of the engine's image."""
        x, y, width, height = self._region or (0, 0, *self._size_px)
        turned = (height, width) if self._degrees in (90, 270) else (width, height)
        scale = np.array(self._seen_px, np.float32) / np.array(turned, np.float32)

        def move(quads: Quads) -> Quads:
            moved = turn_points(quads - np.array([x, y], np.float32), self._degrees, width, height)
            return np.asarray(moved * scale, np.float32)

        return replace(own, lines=map_boxes(own.lines, move), angle=(own.angle - self._degrees) % 360)

    def restore(self, page: Page) -> Page:
        """Map the engine's page back to coordinates of the image last given to `apply`."""
        if self._region is None:
            return restore_page(page, self._degrees, *self._size_px)
        x, y, width, height = self._region
        return move_page(restore_page(page, self._degrees, width, height), x, y, *self._size_px)


def clip_region(region: Rectangle, page_width: int, page_height: int) -> Rectangle:
    """The part of a rectangle that lies on a page of this size. Raises BadOption if there is none."""
    x, y, width, height = region
    if x >= page_width or y >= page_height:
        problem = f"The region {x},{y},{width},{height} lies outside the page of {page_width} x {page_height} pixels."
        raise BadOption(problem, "Give x, y, width and height in pixels of the page as displayed.")
    return x, y, min(width, page_width - x), min(height, page_height - y)
