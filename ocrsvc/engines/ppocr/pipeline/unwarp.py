"""Reads curved and folded pages flattened: decides by the lines' bend, flattens, and puts the boxes back.

The evidence that a page needs it comes from the detector's map (line_field.py) and costs next to nothing. Where lines
bend, a model finds how the page lies, lines are found once more on the flat picture, and that one is read if its lines
bend clearly less and no text was lost.

The model's grid says, for points that lie evenly on the flat page, where they are in the picture (F. Verhoeven, T.
Magne and O. Sorkine-Hornung, "UVDoc: Neural Grid-based Document Unwarping", SIGGRAPH Asia 2023); between them it is
bilinear. Its weights are package data, in ../weights/, with their licence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask, LineField, fit_field
from ocrsvc.engines.ppocr.pipeline.page import PageReader, read_page
from ocrsvc.imaging.geometry import Quads, map_boxes, upright_boxes
from ocrsvc.imaging.outline import Outline, extent
from ocrsvc.results import Check, Page, Pixels, ReadTask, no_check

_FILE: Final = Path(__file__).parents[1] / "weights" / "uvdoc.onnx"
_INPUT_PX: Final = (488, 712)  # width and height
_SESSION_OPTIONS: Final = {"session.disable_quant_qdq": "1"}
"""Kernels are made floats when the model is opened, not at every run."""

UNWARPING_MODEL: Final = OnDemandModel(_FILE, "unwarp", _SESSION_OPTIONS)
"""Most processes never meet a curved page, so none pays the 75 MB that it holds once it is open. A run needs 30 MB."""


def find_grid(pixels: Pixels, check: Check = no_check) -> NDArray[np.float32]:
    """(45, 31, 2) float32: where points that lie evenly on the flat page are in a picture (H, W[, 3]), in pixels.

    The page's top left corner comes first, row by row; they may lie outside the picture.
    """
    found = UNWARPING_MODEL.run(_to_tensor(pixels), check)[0]
    height, width = pixels.shape[:2]
    return cast("NDArray[np.float32]", (np.moveaxis(found, 0, -1) + 1) / 2 * np.array([width, height], np.float32))


def _to_tensor(pixels: Pixels) -> NDArray[np.float32]:
    """(1, 3, 712, 488) float32, 0 to 1, red, green, blue."""
    smaller = cv2.resize(pixels, _INPUT_PX, interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0)[None], np.float32) / np.float32(255)


Points = NDArray[np.float32]

MOST_SIDE_PX: Final = 32_766  # of pictures and of flat pages: OpenCV's remap takes no longer ones
STRIP_ROWS: Final = 128
"""Rows that are resampled at a time, because each pixel needs eight bytes to say where it comes from."""

LONGEST: Final = 0.9
"""Quantile of the grid's rows and columns whose length in the picture the flat page gets as its width and height."""

EDGE_POINTS: Final = 9  # of each long edge of a box, to find how far its line bends out of the box


@dataclass(frozen=True, slots=True, eq=False)
class PageGrid:
    """Where a page lies in its picture."""

    points: Points  # (rows, columns, 2) float32, pixels of the picture
    width: int  # pixels of the flat page
    height: int

    def flatten(self, pixels: Pixels) -> Pixels:
        """The flat page: (height, width[, 3]) uint8 of the picture's (H, W[, 3])."""
        across = _weights(self.points.shape[1], self.width)
        rows = np.einsum("rcp,wc->rwp", self.points, across)
        down = _weights(self.points.shape[0], self.height)
        flat = np.empty((self.height, self.width, *pixels.shape[2:]), np.uint8)
        for top in range(0, self.height, STRIP_ROWS):
            places = np.tensordot(down[top : top + STRIP_ROWS], rows, axes=1) - np.float32(0.5)
            flat[top : top + STRIP_ROWS] = cv2.remap(
                pixels, places[..., 0], places[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
        return flat

    def locate(self, points: Points) -> Points:
        """Where points (..., 2) of the flat page are in the picture."""
        steps = np.array([self.points.shape[1] - 1, self.points.shape[0] - 1], np.float32)
        at = np.clip(points / np.array([self.width, self.height], np.float32), 0, 1) * steps
        first = np.minimum(at.astype(np.intp), steps.astype(np.intp) - 1)
        x, y = np.moveaxis(at - first, -1, 0)[..., None]
        column, row = first[..., 0], first[..., 1]
        upper = self.points[row, column] * (1 - x) + self.points[row, column + 1] * x
        lower = self.points[row + 1, column] * (1 - x) + self.points[row + 1, column + 1] * x
        return cast(Points, (upper * (1 - y) + lower * y).astype(np.float32))

    def put_back(self, quads: Points) -> Points:
        """Boxes (N, 4, 2) of the flat page as boxes of the picture, which hold the strips that their lines are there.

        The corners go where the grid puts them; then each long edge moves outwards as far as its line bends.
        """
        top, bottom = self.locate(_edge(quads[:, 0], quads[:, 1])), self.locate(_edge(quads[:, 3], quads[:, 2]))
        left, right = _direction(bottom[:, 0], top[:, 0]), _direction(bottom[:, -1], top[:, -1])
        above, below = _beyond(top, left + right), _beyond(bottom, -left - right)
        corners = [top[:, 0] + above * left, top[:, -1] + above * right]
        corners += [bottom[:, -1] - below * right, bottom[:, 0] - below * left]
        return np.stack(corners, axis=1).astype(np.float32)

    def holds(self, points: Points) -> NDArray[np.bool_]:
        """Which of the points (N, 2) of the picture lie on the page."""
        grid = self.points
        outline = np.concatenate([grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2:0:-1, 0]])
        inside = [cv2.pointPolygonTest(outline, (float(x), float(y)), measureDist=False) >= 0 for x, y in points]
        return np.array(inside, bool)


def make_grid(points: Points, most_pixels: int) -> PageGrid:
    """The grid with the flat page's size: as large as in the picture, within `most_pixels` and MOST_SIDE_PX."""
    width, height = (_length(points, axis) for axis in (1, 0))
    scale = min(1.0, math.sqrt(most_pixels / (width * height)), MOST_SIDE_PX / max(width, height))
    return PageGrid(points, max(1, int(width * scale)), max(1, int(height * scale)))


def _length(points: Points, axis: int) -> float:
    steps = np.diff(points, axis=axis)
    return max(1.0, float(np.quantile(np.hypot(steps[..., 0], steps[..., 1]).sum(axis=axis), LONGEST)))


def _weights(known: int, wanted: int) -> Points:
    """(wanted, known) float32: how each of `wanted` pixels' centres lies between points at both ends and between."""
    at = (np.arange(wanted) + 0.5) / wanted * (known - 1)
    first = np.minimum(at.astype(np.intp), known - 2)
    weights = np.zeros((wanted, known), np.float32)
    rows = np.arange(wanted)
    weights[rows, first], weights[rows, first + 1] = 1 - (at - first), at - first
    return weights


def _edge(start: Points, end: Points) -> Points:
    """(N, EDGE_POINTS, 2): points along the way from one end to the other."""
    share = np.linspace(0, 1, EDGE_POINTS, dtype=np.float32)[:, None]
    return cast(Points, start[:, None] * (1 - share) + end[:, None] * share)


def _direction(start: Points, end: Points) -> Points:
    """(N, 2) of length 1."""
    way = end - start
    return cast(Points, way / np.maximum(np.hypot(way[:, :1], way[:, 1:]), 1e-6))


def _beyond(edge: Points, outwards: Points) -> Points:
    """(N, 1): how many pixels each edge (N, EDGE_POINTS, 2) bends outwards over the straight way between its ends."""
    along = edge[:, -1] - edge[:, 0]
    normal = np.stack([along[:, 1], -along[:, 0]], axis=1)
    normal /= np.maximum(np.hypot(normal[:, :1], normal[:, 1:]), 1e-6)
    normal *= np.where(np.sum(normal * outwards, axis=1, keepdims=True) < 0, -1, 1)
    over = np.einsum("nkp,np->nk", edge - edge[:, :1], normal)
    return cast(Points, np.maximum(over.max(axis=1, keepdims=True), 0))


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
    if left_deg > LESS * found.turn_deg or _text_length(flat.outlines) < FOUND * _text_length(found.outlines):
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


def _text_length(outlines: Sequence[Outline]) -> float:
    """The lines' lengths in their heights, added up: rows that became one box count less than the rows."""
    return sum(max(of) / max(1.0, min(of)) for of in map(extent, outlines))


def _put_back(page: Page, grid: PageGrid, task: ReadTask) -> Page:
    """The page in the frame of the task's image."""
    image = task.image

    def put_back(quads: Quads) -> Quads:
        placed = np.clip(grid.put_back(quads), 0, np.array([image.width, image.height], np.float32))
        return upright_boxes(placed) if task.options.upright_boxes else placed

    return replace(page, width=image.width, height=image.height, lines=map_boxes(page.lines, put_back))
