"""Finds line boxes by differentiable binarization (DB): chooses the detector's scales, and turns its map into boxes.

Algorithm: M. Liao et al., "Real-time Scene Text Detection with Differentiable Binarization" (AAAI 2020), in PP-OCR's
form. The polygon offset needs no polygon library here: a rectangle grown by a distance on all sides is a rectangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Detection
from ocrsvc.engines.ppocr.pipeline.contours import (
    LEVELS,
    MAX_SCANNED_PART_AREA,
    MIN_SHAPE_PX,
    Contour,
    Division,
    are_rows,
    curved_outline,
    fills_rectangle,
    split_parts,
    within_scan_limit,
)
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.perspective import follow_perspective
from ocrsvc.imaging.geometry import Quad
from ocrsvc.imaging.text_contour import Outline, extent, is_curved
from ocrsvc.results import Pixels

# Thresholds of PP-OCRv6's own configuration, except its unclip ratio of 1.4: with 1.5 the same text is read with fewer
# pixel columns. See docs/design/recognition.md.
MAP_THRESHOLD: Final = 0.2
BOX_THRESHOLD: Final = 0.45
UNCLIP_RATIO: Final = 1.5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds by which a detector's probability map becomes lines."""

    of_map: float = MAP_THRESHOLD  # minimum probability of a text pixel
    of_box: float = BOX_THRESHOLD  # minimum mean probability of a line
    # distance by which a shape is grown, in units of its area / perimeter
    unclip_ratio: float = UNCLIP_RATIO

    @classmethod
    def of(cls, part: Detection | None) -> Thresholds:
        """The thresholds of a model's description; USUAL's for those that it omits."""
        stated = (part.map_threshold, part.box_threshold, part.unclip_ratio) if part is not None else (None,) * 3
        return cls(stated[0] or MAP_THRESHOLD, stated[1] or BOX_THRESHOLD, stated[2] or UNCLIP_RATIO)


USUAL: Final = Thresholds()

STRIDE = 32  # the network's input sides must be multiples of this
COARSE_PX = 960  # longest side of the input in the first pass
FINE_PX = 2048  # longest side of the input in the second pass, which follows if the text is too small
MAX_FINE_PIXELS = 1536 * 1536  # pixels of the second pass, without margin; the model takes 116 bytes for each
MAX_ENLARGEMENT = 2.5
READABLE_PX = 20.0  # height of a line in the network's input above which more resolution finds no more text
SECOND_PASS_GAIN = 1.3  # smallest enlargement for which a second pass is worth its time
SMALL_TEXT_SHARE = 0.25  # quantile of the line heights that decides on a second pass
SMALL_IMAGE_PX = 640
STRIP_ASPECT = 4.0  # aspect ratio from which an image counts as a strip
MAX_BOXES = 3000
THICK_RATIO = 1.5  # a contour thicker than this, in median thicknesses of the page, may be two rows
UNCLAIMED_SHARE = 0.1  # if more than this share of the map's text is outside all lines, a finer pass follows
UNCLAIMED_GAIN = 2.0  # scale of the finer pass for text outside all lines, relative to the first pass
FAINT_TEXT = 0.01  # probability above which a finer pass may find text; a blank page stays far below
AREA_MARGIN_PX = 24  # margin around all text, in pixels of the second pass, which leaves out the rest of the page
MIN_SPECKS = 3  # fewest specks that count as tiny lines; they must also be SMALL_TEXT_SHARE of all shapes

ProbabilityMap = NDArray[np.float32]
Area = tuple[float, float, float, float]  # left, top, right and bottom, as shares of the page's width and height
WHOLE_PAGE: Final[Area] = (0.0, 0.0, 1.0, 1.0)
Window = tuple[slice, slice]  # rows and columns of a page at a pass's scale


@dataclass(frozen=True, slots=True)
class FoundLines:
    """The lines that one pass of the detector found."""

    outlines: list[Outline]  # in pixels of the image; see imaging.text_contour
    unclaimed: float  # share of the map's text area that is outside all lines, from 0 to 1
    specks: int = 0  # number of shapes on the map that are long enough for a line but too thin
    area: Area = WHOLE_PAGE  # the part of the page that may have text


def find_lines(
    pixels: Pixels,
    run: Callable[[Pixels], ProbabilityMap],
    thresholds: Thresholds = USUAL,
    last_mask: LastMask | None = None,
) -> list[Outline]:
    """Find the lines of an image, in no particular order.

    The first pass is coarse and measures the height of the text. A second pass with more resolution follows if the
    smaller lines are too small for the network, or if the map shows text that forms no lines: faint, crowded text is a
    cloud on the map, and lines of a few pixels are specks. The second pass leaves out margins in which the first one
    sees nothing. `pixels` are (H, W[, 3]) uint8. `run` runs the model: its input is (h, w[, 3]) uint8 with sides that
    are multiples of STRIDE, its result (h, w) probabilities. Outlines are in pixels of the image; the outline of a line
    that is more horizontal than vertical begins at its top left corner. The text mask is put into `last_mask`.
    """
    height, width = pixels.shape[:2]

    def run_pass(scale: float, area: Area) -> FoundLines:
        size, way = input_size(height, width, scale), cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        window = input_window(size, area)
        inside = run(cast(Pixels, cv2.resize(pixels, size, interpolation=way))[window])
        probabilities = np.zeros(size[::-1], np.float32)
        probabilities[window] = inside
        if last_mask is not None:
            last_mask.mask = (probabilities > thresholds.of_map).view(np.uint8)
        return lines_from_map(probabilities, width, height, thresholds)

    return detect_in_passes(height, width, run_pass)


def detect_in_passes(height: int, width: int, run_pass: Callable[[float, Area], FoundLines]) -> list[Outline]:
    """The lines of a height x width image; calls `run_pass` with a scale and an area once or twice, as `find_lines`."""
    scale = first_scale(height, width)
    found = run_pass(scale, WHOLE_PAGE)
    left, top, right, bottom = found.area
    finest = math.sqrt(MAX_FINE_PIXELS / (height * width * (right - left) * (bottom - top)))
    finer = min(second_scale(found, scale, longest_side(height, width)), finest)
    last = run_pass(finer, found.area) if finer >= scale * SECOND_PASS_GAIN else found
    return follow_perspective(last.outlines, width, height)


def longest_side(height: int, width: int) -> float:
    """The longer side in pixels; for a strip, the longer side of a STRIP_ASPECT : 1 page of the same area."""
    return min(max(height, width), math.sqrt(STRIP_ASPECT * height * width))


def first_scale(height: int, width: int) -> float:
    """The scale of the first pass: large images are shrunk to COARSE_PX, small ones enlarged to SMALL_IMAGE_PX."""
    longest = longest_side(height, width)
    if longest < SMALL_IMAGE_PX:
        return min(MAX_ENLARGEMENT, SMALL_IMAGE_PX / longest)
    return min(1.0, COARSE_PX / longest)


def second_scale(found: FoundLines, scale: float, longest: float) -> float:
    """The scale of a second pass that makes the found text readable; `longest`, the `longest_side`, limits it."""
    wanted = UNCLAIMED_GAIN if found.unclaimed > UNCLAIMED_SHARE else 1.0
    if found.specks >= max(MIN_SPECKS, SMALL_TEXT_SHARE * (found.specks + len(found.outlines))):
        wanted = READABLE_PX / MIN_SHAPE_PX
    if found.outlines:
        heights = sorted(min(extent(outline)) * scale for outline in found.outlines)
        wanted = max(wanted, READABLE_PX / heights[int(len(heights) * SMALL_TEXT_SHARE)])
    return min(scale * wanted, MAX_ENLARGEMENT, max(FINE_PX / longest, scale))


def input_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """(width, height) of the network's input for an image at a scale: multiples of STRIDE."""
    across, down = (max(STRIDE, round(side * scale / STRIDE) * STRIDE) for side in (width, height))
    return across, down


def area_of(columns: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Area:
    """The area around the columns and rows of a map that may have text; the whole page if there are none."""
    (left, right), (top, bottom) = _ends(columns), _ends(rows)
    return left, top, right, bottom


def _ends(marked: NDArray[np.bool_]) -> tuple[float, float]:
    places = np.flatnonzero(marked)
    return (float(places[0]) / len(marked), float(places[-1] + 1) / len(marked)) if len(places) else (0.0, 1.0)


def input_window(size: tuple[int, int], area: Area) -> Window:
    """The rows and columns of a page of `size`, (width, height), that contain an area and its margin.

    They begin and end at multiples of STRIDE, as the sides of the page do.
    """
    left, top, right, bottom = area
    return _window(top, bottom, size[1]), _window(left, right, size[0])


def _window(begin: float, end: float, side: int) -> slice:
    first = math.floor((begin * side - AREA_MARGIN_PX) / STRIDE) * STRIDE
    last = math.ceil((end * side + AREA_MARGIN_PX) / STRIDE) * STRIDE
    return slice(max(0, first), min(side, last))


def lines_from_map(found: ProbabilityMap, width: int, height: int, thresholds: Thresholds = USUAL) -> FoundLines:
    """Find the lines on an (h, w) probability map; outlines are in pixels of the width x height image."""
    mask = (found > thresholds.of_map).astype(np.uint8)
    lines = lines_from_mask(mask, found, width, height, thresholds=thresholds)
    return replace(lines, area=area_of(*(found.max(axis=axis) > FAINT_TEXT for axis in (0, 1))))


def lines_from_mask(
    mask: Pixels,
    probabilities: NDArray[Any],
    width: int,
    height: int,
    *,
    certain: float = 1.0,
    thresholds: Thresholds = USUAL,
) -> FoundLines:
    """Like `lines_from_map`, for a map that was already turned into a mask: 1 is text, 0 background.

    `probabilities` is the map, (h, w) float32 or uint8, and `certain` its value for probability 1. `width` and `height`
    are the image's.
    """
    every = cast("list[Contour]", cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0])
    # Keep outer contours only: OpenCV follows the contours of holes in the opposite direction.
    contours = [contour for contour in every if cv2.contourArea(contour, oriented=True) < 0][:MAX_BOXES]
    sizes = np.sort(np.array([cv2.minAreaRect(contour)[1] for contour in contours]).reshape(-1, 2), axis=1)
    large, long = (sizes >= MIN_SHAPE_PX).T
    usual = float(np.median(sizes[large, 0])) if large.any() else 0.0
    read = _MapReader(probabilities, certain, usual, thresholds)
    allowed = within_scan_limit(contours, mask.size)
    lowest = thresholds.of_map
    levels = tuple(level * certain for level in (lowest, *(level for level in LEVELS if level > lowest)))
    found = [read.lines(contour, levels if divide else ()) for contour, divide in zip(contours, allowed, strict=True)]
    outlines = [outline for outlines in found for outline in outlines][:MAX_BOXES]
    straight = np.array([outline for outline in outlines if not is_curved(outline)], np.float32).reshape(-1, 4, 2)
    scale = np.array([width / probabilities.shape[1], height / probabilities.shape[0]], np.float32)
    limit = np.array([width, height], np.float32)
    quads = np.clip(order_clockwise(straight) * scale, 0, limit)
    curved = [np.clip(outline * scale, 0, limit) for outline in outlines if is_curved(outline)]
    areas = np.array([cv2.contourArea(contour) for contour in contours])
    lost = np.array([not lines for lines in found], bool)
    unclaimed = float(areas[lost].sum() / areas.sum()) if areas.any() else 0.0
    return FoundLines([*quads[_are_large_enough(quads)], *curved], unclaimed, int((long & ~large).sum()))


@dataclass(frozen=True, slots=True)
class _MapReader:
    probabilities: NDArray[Any]  # the map, (h, w)
    certain: float  # value on the map that stands for a probability of 1
    usual: float  # median thickness of the map's contours, in pixels of the map
    thresholds: Thresholds

    def lines(self, contour: Contour, levels: tuple[float, ...]) -> list[Outline]:
        """The lines in a contour: usually one, none in a speck. It may be split at the probabilities `levels`."""
        around = cv2.minAreaRect(contour)
        across, along = around[1]
        if min(across, along) < MIN_SHAPE_PX:
            return []
        least, unclip_ratio = self.thresholds.of_box * self.certain, self.thresholds.unclip_ratio
        likely = _score(cv2.boxPoints(around), self.probabilities) >= least
        is_rectangle = likely and fills_rectangle(contour, across, along)
        *_, width, height = cv2.boundingRect(contour)
        is_tall = height > width
        if levels and (not is_rectangle or min(across, along) > THICK_RATIO * self.usual or is_tall):
            rows = split_parts(contour, self.probabilities, levels, are_rows)
            if rows[0]:
                return self._all_lines(contour, rows)
        if is_rectangle:
            return [_grown(around, unclip_ratio)]
        curved = curved_outline(contour, self.probabilities, least, unclip_ratio)
        if curved is not None:
            return [curved]
        if likely or not levels:
            return [_grown(around, unclip_ratio)] if likely else []
        return self._all_lines(contour, split_parts(contour, self.probabilities, levels))

    def _all_lines(self, contour: Contour, division: Division) -> list[Outline]:
        (parts, levels), (*_, width, height) = division, cv2.boundingRect(contour)
        allowed = within_scan_limit(parts, width * height, MAX_SCANNED_PART_AREA)
        each = zip(parts, allowed, strict=True)
        return [line for part, divide in each for line in self.lines(part, levels if divide else ())]


def _grown(around: tuple[Sequence[float], Sequence[float], float], unclip_ratio: float) -> Quad:
    """The corners, in any order, of a rectangle that is grown by the unclip distance."""
    middle, (across, along), angle = around
    distance = across * along * unclip_ratio / (2 * (across + along))
    return cast(Quad, cv2.boxPoints((middle, (across + 2 * distance, along + 2 * distance), angle)))


def _score(corners: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """Mean probability inside a rectangle. Python numbers are faster here than arrays of four points."""
    xs, ys = corners.T.tolist()
    bottom, right = (side - 1 for side in probabilities.shape)
    left, top = (min(max(math.floor(min(ends)), 0), most) for ends, most in ((xs, right), (ys, bottom)))
    right, bottom = (min(max(math.ceil(max(ends)), 0), most) for ends, most in ((xs, right), (ys, bottom)))
    inside = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    shape = np.array([(int(x - left), int(y - top)) for x, y in zip(xs, ys, strict=True)], np.int32)
    cv2.fillConvexPoly(inside, shape, 1)
    return float(cv2.mean(probabilities[top : bottom + 1, left : right + 1], inside)[0])


def order_clockwise(corners: NDArray[np.float32]) -> Quad:
    """Order corners (..., 4, 2) clockwise, beginning with the upper one of the two leftmost."""
    by_x = _sorted_by(corners, 0)
    lefts, rights = _sorted_by(by_x[..., :2, :], 1), _sorted_by(by_x[..., 2:, :], 1)
    return np.stack([lefts[..., 0, :], rights[..., 0, :], rights[..., 1, :], lefts[..., 1, :]], axis=-2)


def _sorted_by(points: NDArray[np.float32], column: int) -> NDArray[np.float32]:
    order = np.argsort(points[..., column], axis=-1, kind="stable")
    return np.take_along_axis(points, order[..., None], axis=-2)


def _are_large_enough(quads: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(N,) whether both sides of each quad (N, 4, 2) are longer than MIN_SHAPE_PX."""
    along, across = quads[:, 1] - quads[:, 0], quads[:, 3] - quads[:, 0]
    lengths = np.hypot(along[:, 0], along[:, 1]), np.hypot(across[:, 0], across[:, 1])
    return cast("NDArray[np.bool_]", (lengths[0] > MIN_SHAPE_PX) & (lengths[1] > MIN_SHAPE_PX))
