"""Flattens curved and folded pages before reading, if their lines bend, and maps the boxes back.

The bend is measured on the detector's map (line_field.py), which costs next to nothing. If lines bend, a model finds
the page's shape, lines are detected again on the flattened page, and that page is read if its lines bend clearly less
and no text was lost. For each point of a regular grid on the flat page, the model returns its position in the picture
(F. Verhoeven, T. Magne and O. Sorkine-Hornung, "UVDoc: Neural Grid-based Document Unwarping", SIGGRAPH Asia 2023). Its
weights are package data, in ../weights/, with their licence.
"""

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
from ocrsvc.imaging.text_contour import Outline, extent
from ocrsvc.results import Check, Page, Pixels, ReadTask, no_check

_FILE: Final = Path(__file__).parents[1] / "weights" / "uvdoc.onnx"
_INPUT_PX: Final = (488, 712)  # width and height of the network's input
# This option converts the quantized kernels to floats when the model is opened, not in every run.
_SESSION_OPTIONS: Final = {"session.disable_quant_qdq": "1"}
# Opened on demand, because most processes never get a curved page. It takes 75 MB, and 30 MB more during a run.
UNWARPING_MODEL: Final = OnDemandModel(_FILE, "unwarp", _SESSION_OPTIONS)


def find_grid(pixels: Pixels, check: Check = no_check) -> NDArray[np.float32]:
    """(45, 31, 2) positions of a flat page's grid points in the picture (H, W[, 3]); some may lie outside of it."""
    grid = UNWARPING_MODEL.run(_to_tensor(pixels), check)[0]
    height, width = pixels.shape[:2]
    return cast("NDArray[np.float32]", (np.moveaxis(grid, 0, -1) + 1) / 2 * np.array([width, height], np.float32))


def _to_tensor(pixels: Pixels) -> NDArray[np.float32]:
    """The network's input: (1, 3, 712, 488) float32 RGB, 0 to 1."""
    smaller = cv2.resize(pixels, _INPUT_PX, interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0)[None], np.float32) / np.float32(255)


Points = NDArray[np.float32]

MAX_SIDE_PX: Final = 32_766  # largest side, of picture and flat page, that OpenCV's remap accepts
STRIP_ROWS: Final = 128  # rows that are resampled at once, because their source coordinates take eight bytes per pixel
# The flat page's width and height are this quantile of the lengths of the grid's rows and columns.
LENGTH_QUANTILE: Final = 0.9
EDGE_POINTS: Final = 9  # points on each long edge of a box, to measure how far its line bends out of the box


@dataclass(frozen=True, slots=True, eq=False)
class PageGrid:
    """Maps points of a flat page to the picture of the curved page."""

    points: Points  # (rows, columns, 2), in pixels of the picture
    width: int  # width of the flat page, in pixels
    height: int

    def flatten(self, pixels: Pixels) -> Pixels:
        """Flatten a picture (H, W[, 3]) to the flat page (height, width[, 3]) uint8."""
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
        """Map points (..., 2) from the flat page to the picture."""
        steps = np.array([self.points.shape[1] - 1, self.points.shape[0] - 1], np.float32)
        at = np.clip(points / np.array([self.width, self.height], np.float32), 0, 1) * steps
        first = np.minimum(at.astype(np.intp), steps.astype(np.intp) - 1)
        x, y = np.moveaxis(at - first, -1, 0)[..., None]
        column, row = first[..., 0], first[..., 1]
        upper = self.points[row, column] * (1 - x) + self.points[row, column + 1] * x
        lower = self.points[row + 1, column] * (1 - x) + self.points[row + 1, column + 1] * x
        return cast(Points, (upper * (1 - y) + lower * y).astype(np.float32))

    def put_back(self, quads: Points) -> Points:
        """Map boxes (N, 4, 2) to the picture; their long edges move outwards, so that they enclose the curved lines."""
        top, bottom = self.locate(_edge(quads[:, 0], quads[:, 1])), self.locate(_edge(quads[:, 3], quads[:, 2]))
        left, right = _direction(bottom[:, 0], top[:, 0]), _direction(bottom[:, -1], top[:, -1])
        above, below = _beyond(top, left + right), _beyond(bottom, -left - right)
        corners = [top[:, 0] + above * left, top[:, -1] + above * right]
        corners += [bottom[:, -1] - below * right, bottom[:, 0] - below * left]
        return np.stack(corners, axis=1).astype(np.float32)

    def holds(self, points: Points) -> NDArray[np.bool_]:
        """Which points (N, 2) of the picture lie on the page."""
        grid = self.points
        outline = np.concatenate([grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2:0:-1, 0]])
        inside = [cv2.pointPolygonTest(outline, (float(x), float(y)), measureDist=False) >= 0 for x, y in points]
        return np.array(inside, bool)


def make_grid(points: Points, max_pixels: int) -> PageGrid:
    """Make the grid of a flat page with the size of the page in the picture, but at most `max_pixels`."""
    width, height = (_length(points, axis) for axis in (1, 0))
    scale = min(1.0, math.sqrt(max_pixels / (width * height)), MAX_SIDE_PX / max(width, height))
    return PageGrid(points, max(1, int(width * scale)), max(1, int(height * scale)))


def _length(points: Points, axis: int) -> float:
    steps = np.diff(points, axis=axis)
    return max(1.0, float(np.quantile(np.hypot(steps[..., 0], steps[..., 1]).sum(axis=axis), LENGTH_QUANTILE)))


def _weights(known: int, wanted: int) -> Points:
    """(wanted, known) weights that interpolate `wanted` pixel centres from `known` evenly spaced points."""
    at = (np.arange(wanted) + 0.5) / wanted * (known - 1)
    first = np.minimum(at.astype(np.intp), known - 2)
    weights = np.zeros((wanted, known), np.float32)
    rows = np.arange(wanted)
    weights[rows, first], weights[rows, first + 1] = 1 - (at - first), at - first
    return weights


def _edge(start: Points, end: Points) -> Points:
    """(N, EDGE_POINTS, 2) evenly spaced points from `start` to `end`."""
    share = np.linspace(0, 1, EDGE_POINTS, dtype=np.float32)[:, None]
    return cast(Points, start[:, None] * (1 - share) + end[:, None] * share)


def _direction(start: Points, end: Points) -> Points:
    """(N, 2) unit vectors from `start` to `end`."""
    way = end - start
    return cast(Points, way / np.maximum(np.hypot(way[:, :1], way[:, 1:]), 1e-6))


def _beyond(edge: Points, outwards: Points) -> Points:
    """(N, 1) pixels by which each edge (N, EDGE_POINTS, 2) bends outwards from its chord."""
    along = edge[:, -1] - edge[:, 0]
    normal = np.stack([along[:, 1], -along[:, 0]], axis=1)
    normal /= np.maximum(np.hypot(normal[:, :1], normal[:, 1:]), 1e-6)
    normal *= np.where(np.sum(normal * outwards, axis=1, keepdims=True) < 0, -1, 1)
    over = np.einsum("nkp,np->nk", edge - edge[:, :1], normal)
    return cast(Points, np.maximum(over.max(axis=1, keepdims=True), 0))


# If lines bend by at least this, the page is curved. On the corpus's tuning half no flat page with 40 pieces or more
# reaches 1.8, and curved pages begin to lose rows at about 3.
MIN_TURN_DEG: Final = 2.5
# From fewer pieces of lines, the bend is unreliable: product labels with text in all directions have 20 to 40.
MIN_PIECES: Final = 50
BENT_ROWS_DEG: Final = 1.0  # if lines bend by at least this, boxes are straightened before the reading order is found
MAX_TURN_LEFT: Final = 0.5  # largest share of the lines' bend that may remain on the flattened page
MIN_KEPT: Final = 0.97  # smallest share of the lines, by length, that the flat page must contain
MIN_FOUND: Final = 0.9  # smallest share of the text length, in line heights, that must be detected on the flat page
MAX_PIXELS: Final = 16_000_000

# Like `find_grid`; the result has the shape (rows, columns, 2).
FindGrid = Callable[[Pixels, Check], NDArray[np.float32]]


# Opens a reader of a task's image; if a LastMask is given, the reader stores the detector's mask in it.
OpenPage = Callable[[ReadTask, LastMask | None], PageReader]


@dataclass(frozen=True, slots=True)
class _FoundPage:
    task: ReadTask
    reader: PageReader
    outlines: list[Outline]
    field: LineField | None

    @property
    def turn_deg(self) -> float:
        """How much the lines bend, in degrees; 0 if there is too little text to measure it."""
        return self.field.turn_deg if self.field is not None and self.field.pieces >= MIN_PIECES else 0.0


def read_unwarped(task: ReadTask, open_page: OpenPage, find_grid: FindGrid) -> Page:
    """Detect the lines of an image; read it, flattened if they bend. `find_grid` is called only if they bend."""
    found = _find(task, open_page)
    pixels = task.image.pixels
    if found.turn_deg < MIN_TURN_DEG or max(pixels.shape[:2]) > MAX_SIDE_PX:
        return _read(found)
    grid = make_grid(find_grid(pixels, task.check), min(MAX_PIXELS, pixels.shape[0] * pixels.shape[1]))
    # If the grid misses too many lines, do not flatten: their text would be lost.
    lengths = np.array([max(extent(outline)) for outline in found.outlines])
    inside = grid.holds(np.array([outline.mean(axis=0) for outline in found.outlines], np.float32))
    if lengths[inside].sum() < MIN_KEPT * lengths.sum():
        return _read(found)
    flat = _find(replace(task, image=replace(task.image, pixels=grid.flatten(pixels))), open_page)
    # Here fewer pieces of lines than MIN_PIECES suffice: even a few may show that the flattened lines still bend.
    left_deg = flat.field.turn_deg if flat.field is not None else math.inf
    loses_text = _text_length(flat.outlines) < MIN_FOUND * _text_length(found.outlines)
    if left_deg > MAX_TURN_LEFT * found.turn_deg or loses_text:
        return _read(found)
    return _put_back(_read(flat), grid, task)


def _read(found: _FoundPage) -> Page:
    """Read the page in the picture or the flattened page. Lines that still bend are straightened only to order them."""
    straighten = found.field.straighten if found.field is not None and found.turn_deg >= BENT_ROWS_DEG else None
    return read_page(found.task, found.reader, straighten, found.outlines)


def _find(task: ReadTask, open_page: OpenPage) -> _FoundPage:
    mask = LastMask()
    reader = open_page(task, mask)
    outlines = reader.find()
    task.check()
    return _FoundPage(task, reader, outlines, fit_field(mask.pieces(task.image.width, task.image.height)))


def _text_length(outlines: Sequence[Outline]) -> float:
    """Amount of text: sum of each line's length divided by its height, so that merged rows count as less text."""
    return sum(max(size) / max(1.0, min(size)) for size in map(extent, outlines))


def _put_back(page: Page, grid: PageGrid, task: ReadTask) -> Page:
    image = task.image

    def put_back(quads: Quads) -> Quads:
        placed = np.clip(grid.put_back(quads), 0, np.array([image.width, image.height], np.float32))
        return upright_boxes(placed) if task.options.upright_boxes else placed

    return replace(page, width=image.width, height=image.height, lines=map_boxes(page.lines, put_back))
