"""Reads curved and folded pages flattened: decides by the lines' bend, flattens, and puts the boxes back.

The evidence that a page needs it comes from the detector's map (mask_pieces.py) and costs next to nothing. Where lines
bend, a model finds how the page lies (page_grid.py), lines are found once more on the flat picture, and that one is
read if its lines bend clearly less and no text was lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.line_field import LastMask, LineField, fit_field
from ocrsvc.engines.ppocr.pipeline.page import PageReader, read_page
from ocrsvc.engines.ppocr.pipeline.page_grid import MOST_SIDE_PX, PageGrid, make_grid
from ocrsvc.imaging.geometry import Quads, map_boxes, upright_boxes
from ocrsvc.imaging.outline import Outline, extent
from ocrsvc.records import Check, Page, Pixels, ReadTask

LEAST_TURN_DEG: Final = 2.5
"""A line's turn across the page from which the page is taken to be curved. On the corpus's tuning half no flat page of
40 pieces or more reaches 1.8, and curved pages begin to lose rows at about 3."""

LEAST_PIECES: Final = 50
"""Pieces of lines without which a turn is not believed: labels of wares, set every which way, have 20 to 40."""

BENT_ROWS_DEG: Final = 1.0  # of turn, from which rows are straightened before they are put into order
LESS: Final = 0.5  # of the turn, which may be left when the page is flat
KEPT: Final = 0.97  # of the lines by their lengths, which must lie on the flat page
FOUND: Final = 0.9  # of the lines' lengths in heights, which must be found again
MOST_PIXELS: Final = 16_000_000

FindGrid = Callable[[Pixels, Check], NDArray[np.float32]]
"""(rows, columns, 2): where points that lie evenly on the flat page are in a picture (H, W[, 3]), in its pixels."""


OpenPage = Callable[[ReadTask, LastMask | None], PageReader]
"""A reader of a task's image, which has the mask kept when it finds lines, if there is something to keep it."""


@dataclass(frozen=True, slots=True)
class _FoundPage:
    """A page whose lines are found."""

    task: ReadTask
    reader: PageReader
    outlines: list[Outline]
    field: LineField | None

    @property
    def turn_deg(self) -> float:
        """By how much its lines turn; 0 for too little text to tell."""
        return self.field.turn_deg if self.field is not None and self.field.pieces >= LEAST_PIECES else 0.0


def read_unwarped(task: ReadTask, open_page: OpenPage, find_grid: FindGrid) -> Page:
    """Read one image whose lines are to be found, flattened where they bend; only then `find_grid` is called."""
    found = _find(task, open_page)
    pixels = task.image.pixels
    if found.turn_deg < LEAST_TURN_DEG or max(pixels.shape[:2]) > MOST_SIDE_PX:
        return _read(found)
    grid = make_grid(find_grid(pixels, task.check), min(MOST_PIXELS, pixels.shape[0] * pixels.shape[1]))
    if not _keeps_lines(grid, found.outlines):
        return _read(found)
    flat = _find(replace(task, image=replace(task.image, pixels=grid.flatten(pixels))), open_page)
    # Few pieces are a weak proof that lines bend, and no proof at all that they do not.
    left_deg = flat.field.turn_deg if flat.field is not None else math.inf
    if left_deg > LESS * found.turn_deg or _letters(flat.outlines) < FOUND * _letters(found.outlines):
        return _read(found)
    return _put_back(_read(flat), grid, task)


def _read(found: _FoundPage) -> Page:
    """Read the page as it is; what bend there is matters to the order only, which a model of it undoes well enough."""
    straighten = found.field.straighten if found.field is not None and found.turn_deg >= BENT_ROWS_DEG else None
    return read_page(found.task, found.reader, straighten, found.outlines)


def _find(task: ReadTask, open_page: OpenPage) -> _FoundPage:
    mask = LastMask()
    reader = open_page(task, mask)
    outlines = reader.find()
    task.check()
    return _FoundPage(task, reader, outlines, fit_field(mask.pieces(task.image.width, task.image.height)))


def _keeps_lines(grid: PageGrid, outlines: Sequence[Outline]) -> bool:
    """Whether the lines lie on the page that the grid takes from the picture."""
    lengths = np.array([max(extent(outline)) for outline in outlines])
    inside = grid.holds(np.array([outline.mean(axis=0) for outline in outlines], np.float32))
    return bool(lengths[inside].sum() >= KEPT * lengths.sum())


def _letters(outlines: Sequence[Outline]) -> float:
    """The lines' lengths in their heights, added up: rows that became one box count less than the rows."""
    return sum(max(of) / max(1.0, min(of)) for of in map(extent, outlines))


def _put_back(page: Page, grid: PageGrid, task: ReadTask) -> Page:
    """The page in the frame of the task's image."""
    image = task.image

    def put_back(quads: Quads) -> Quads:
        placed = np.clip(grid.put_back(quads), 0, np.array([image.width, image.height], np.float32))
        return upright_boxes(placed) if task.options.upright_boxes else placed

    return replace(page, width=image.width, height=image.height, lines=map_boxes(page.lines, put_back))
