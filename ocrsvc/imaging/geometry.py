"""Geometry of boxes and pixels: turning, shrinking, cropping lines, and mapping pages back onto their image.

Pixels, origin top left, x right, y down. Quads are float32 (4, 2), clockwise from the corner where reading starts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Barcode, Box, Cell, Character, Line, Page, Pixels, Region, Table, Word

Quad = NDArray[np.float32]
Quads = NDArray[np.float32]  # (N, 4, 2)

BOX_BATCH: Final = 4096  # boxes per numpy call of a few ms; all boxes of a large page would hold the GIL for 0.4 s
Placed = TypeVar("Placed", Table, Cell, Region, Barcode)
Floats = TypeVar("Floats", np.float32, np.float64)

_TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


def turn(pixels: Pixels, degrees: int) -> Pixels:
    """Turn (H, W[, 3]) pixels clockwise by 0, 90, 180 or 270 degrees."""
    return cast(Pixels, cv2.rotate(pixels, _TURNS[degrees])) if degrees else pixels


def turn_points(points: NDArray[Floats], degrees: int, width: int, height: int) -> NDArray[Floats]:
    """Map points (..., 2) of a width x height image to the image turned clockwise by `degrees`."""
    x, y = points[..., 0], points[..., 1]
    turned = {0: (x, y), 90: (height - y, x), 180: (width - x, height - y), 270: (y, width - x)}[degrees]
    return np.stack(turned, axis=-1)


def shrink(pixels: Pixels, max_side: int) -> tuple[Pixels, float]:
    """Shrink an image so that its longest side is at most `max_side` px; never enlarges. Returns pixels and scale."""
    longest = max(pixels.shape[:2])
    if longest <= max_side:
        return pixels, 1.0
    scale = max_side / longest
    height, width = (max(1, int(side * scale + 0.5)) for side in pixels.shape[:2])
    return cast(Pixels, cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)), scale


def restore_page(page: Page, degrees: int, width: int, height: int) -> Page:
    """Map a page read on a turned and shrunk copy back to coordinates of the width x height image."""
    if not degrees and (page.width, page.height) == (width, height):
        return page
    turned_width, turned_height = (height, width) if degrees in (90, 270) else (width, height)
    scale = np.array([turned_width / page.width, turned_height / page.height], np.float32)

    def move(quads: Quads) -> Quads:
        return turn_points(quads * scale, -degrees % 360, turned_width, turned_height)

    return replace(_map_page(page, move), width=width, height=height, angle=(page.angle + degrees) % 360)


def move_page(page: Page, x: int, y: int, width: int, height: int) -> Page:
    """Map a page read in a region at (x, y) back to coordinates of the width x height image."""
    shift = np.array([x, y], np.float32)
    return replace(_map_page(page, lambda quads: quads + shift), width=width, height=height)


def _map_page(page: Page, move: Callable[[Quads], Quads]) -> Page:
    def put(placed: Placed) -> Placed:
        return replace(placed, box=as_box(move(np.array(placed.box, np.float32))))

    tables = tuple(replace(put(table), cells=tuple(map(put, table.cells))) for table in page.tables)
    regions, barcodes = tuple(map(put, page.regions)), tuple(map(put, page.barcodes))
    return replace(page, lines=map_boxes(page.lines, move), tables=tables, regions=regions, barcodes=barcodes)


def map_boxes(lines: Sequence[Line], move: Callable[[Quads], Quads]) -> tuple[Line, ...]:
    """Map the boxes of lines, words and characters; `move` maps at most BOX_BATCH boxes per call."""
    words = [word for line in lines for word in line.words or ()]
    boxed: list[Line | Word | Character] = [*lines, *words, *[each for word in words for each in word.characters]]
    batches = (boxed[begin : begin + BOX_BATCH] for begin in range(0, len(boxed), BOX_BATCH))
    boxes = [box for batch in batches for box in as_boxes(move(np.array([each.box for each in batch], np.float32)))]
    word_boxes, character_boxes = iter(boxes[len(lines) :]), iter(boxes[len(lines) + len(words) :])

    def place(word: Word) -> Word:
        characters = tuple(replace(character, box=next(character_boxes)) for character in word.characters)
        return replace(word, box=next(word_boxes), characters=characters)

    return tuple(
        replace(line, box=box, words=line.words and tuple(map(place, line.words)))
        for line, box in zip(lines, boxes, strict=False)
    )


def as_box(quad: Quad) -> Box:
    """Convert a (4, 2) array to a Box of plain floats."""
    return as_boxes(quad[None])[0]


def as_boxes(quads: Quads) -> list[Box]:
    """Convert an (N, 4, 2) array to Boxes of plain floats."""
    return [((ax, ay), (bx, by), (cx, cy), (dx, dy)) for (ax, ay), (bx, by), (cx, cy), (dx, dy) in quads.tolist()]


def upright_boxes(quads: Quads) -> Quads:
    """The upright bounding rectangles (..., 4, 2) of quads, each with the same first corner as its quad."""
    frames = np.concatenate([quads.min(axis=-2), quads.max(axis=-2)], axis=-1)
    upright = frames[..., [0, 1, 2, 1, 2, 3, 0, 3]].reshape(quads.shape)
    begins = headings(quads)[..., None] // 90
    return cast(Quads, np.take_along_axis(upright, ((np.arange(4) + begins) % 4)[..., None], axis=-2))


def headings(quads: Quads) -> NDArray[np.intp]:
    """Reading direction of quads (..., 4, 2) in clockwise degrees (0, 90, 180, 270); 0 is left to right."""
    dx, dy = (quads[..., 1, :] - quads[..., 0, :]).T
    return np.where(np.abs(dx) >= np.abs(dy), np.where(dx >= 0, 0, 180), np.where(dy > 0, 90, 270))


def sides(quad: Quad) -> tuple[float, float]:
    """Lengths in pixels along the reading direction (mean of top and bottom) and across it (mean of left and right)."""
    edges = quad[[1, 2, 3, 0]] - quad
    top, right, bottom, left = np.hypot(edges[:, 0], edges[:, 1]).tolist()
    return (top + bottom) / 2, (left + right) / 2


def crop(pixels: Pixels, quad: Quad, width: int, height: int) -> Pixels:
    """Cut the quad out of (H, W[, 3]) pixels and straighten it to `height` x `width` pixels."""
    length, across = sides(quad)
    # A warp reads only four pixels per output pixel and could skip strokes: warp large quads unshrunk, then average.
    is_large = across > 2 * height or length > 2 * width
    wide, high = (max(1, round(length)), max(1, round(across))) if is_large else (width, height)
    matrix = cv2.getPerspectiveTransform(quad, np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float32))
    how, border = cv2.INTER_LINEAR, cv2.BORDER_REPLICATE
    cropped = cv2.warpPerspective(pixels, matrix, (wide, high), flags=how, borderMode=border)
    return cast(Pixels, cv2.resize(cropped, (width, height), interpolation=cv2.INTER_AREA) if is_large else cropped)
