"""Finds the regions of a page with PP-PicoDet of PaddleOCR's PP-Structure, trained on CDLA, and assigns lines to them.

The model runs on the CPU. Its weights, made by benchmarks/layout_model.py, and their licence are in weights/. The
network's head and decoding follow G. Yu et al., "PP-PicoDet: A Better Real-Time Object Detector on Mobile Devices"
(2021), after X. Li et al., "Generalized Focal Loss" (2020): for each side of a box, the output is a distribution of its
distance from a point, over 0 to REACH strides. Lines keep their geometric order, as docs/design/layout.md explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Final, cast, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.imaging.geometry import as_box, turn, turn_points
from ocrsvc.results import Box, Check, Page, Pixels, Region, RegionType

STRIDES_PX: Final = (8, 16, 32, 64)
REACH: Final = 7
CONFIDENT: Final = 0.4  # minimum confidence, as in the configurations of PaddleOCR and RapidLayout
SAME: Final = 0.5  # intersection over union above which two boxes are the same region
MOST: Final = 300  # only this many boxes, the most confident, enter non-maximum suppression, whose time is quadratic
TYPES: Final[tuple[RegionType, ...]] = get_args(RegionType)  # in the order of the model's classes
_FILE: Final = Path(__file__).parent / "weights" / "cdla.onnx"
_INPUT_PX: Final = (608, 800)  # width and height of the network's input
_MEANS: Final = np.array([0.485, 0.456, 0.406], np.float32)  # ImageNet's means of red, green and blue
_DEVIATIONS: Final = np.array([0.229, 0.224, 0.225], np.float32)
LAYOUT_MODEL: Final = OnDemandModel(_FILE, "layout")
WITHIN: Final = 0.5  # smallest share of a line's area inside its region
NO_REGION: Final = -1

Floats = NDArray[np.float32]
Indices = NDArray[np.intp]
Frames = NDArray[np.float32]  # (N, 4) left, top, right, bottom of lines on the upright page


@dataclass(frozen=True, slots=True)
class FoundRegion:
    """A region that the model found: type, confidence in [0, 1], and left, top, right, bottom on the upright page."""

    type: RegionType
    confidence: float
    frame: tuple[float, float, float, float]


def decode(scores: Sequence[Floats], sides: Sequence[Floats], width: int, height: int) -> tuple[Floats, Indices]:
    """Decode the network's output into boxes (N, 5), most confident first, and their classes (N,).

    A box is left, top, right, bottom, confidence, in pixels of the network's input, `width` x `height`. Per stride,
    `scores` (points, classes) are in [0, 1], and `sides` (points, 4 * (REACH + 1)) are distributions of distances.
    """
    strides = [_decode_stride(*outputs, width) for outputs in zip(STRIDES_PX, scores, sides, strict=True)]
    boxes = np.concatenate([boxes for boxes, _ in strides])
    classes = np.concatenate([classes for _, classes in strides])
    order = np.argsort(-boxes[:, 4], kind="stable")[:MOST]
    kept = order[_suppress(boxes[order])]
    boxes = boxes[kept]
    boxes[:, :4] = boxes[:, :4].clip(0, [width, height, width, height])
    return boxes, classes[kept]


def _decode_stride(stride: int, scores: Floats, sides: Floats, width: int) -> tuple[Floats, Indices]:
    confidences = scores.max(axis=1)
    points = np.flatnonzero(confidences > CONFIDENT)
    columns = -(-width // stride)
    middles = (np.stack([points % columns, points // columns], axis=1) + 0.5) * stride
    weights = np.exp(sides[points].reshape(-1, 4, REACH + 1).astype(np.float64))
    distances = weights @ np.arange(REACH + 1) / weights.sum(axis=2) * stride
    boxes = [middles - distances[:, :2], middles + distances[:, 2:], confidences[points, None]]
    return np.concatenate(boxes, axis=1).astype(np.float32), scores[points].argmax(axis=1)


def _suppress(boxes: Floats) -> Indices:
    """Non-maximum suppression over all classes: indices of the boxes (N, 5), most confident first, that are kept."""
    low, high = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:4], boxes[:, 2:4])
    shared = (high - low).clip(0).prod(axis=2)
    areas = (boxes[:, 2:4] - boxes[:, :2]).prod(axis=1)
    same = shared > SAME * (areas[:, None] + areas - shared)
    kept = np.ones(len(boxes), bool)
    for number in range(len(boxes)):
        if kept[number]:
            kept[number + 1 :] &= ~same[number, number + 1 :]
    return cast(Indices, np.flatnonzero(kept))


def find_regions(pixels: Pixels, degrees: int, check: Check) -> list[FoundRegion]:
    """Regions of the page after turning it clockwise by `degrees`, most confident first. Raises EngineFailed."""
    outputs = LAYOUT_MODEL.run(_to_tensor(pixels, degrees), check)
    boxes, classes = decode(outputs[: len(STRIDES_PX)], outputs[len(STRIDES_PX) :], *_INPUT_PX)
    height, width = pixels.shape[:2][:: 1 if degrees % 180 == 0 else -1]
    across, down = width / _INPUT_PX[0], height / _INPUT_PX[1]
    return [
        FoundRegion(TYPES[number], confidence, (left * across, top * down, right * across, bottom * down))
        for number, (left, top, right, bottom, confidence) in zip(classes.tolist(), boxes.tolist(), strict=True)
    ]


def _to_tensor(pixels: Pixels, degrees: int) -> NDArray[np.float32]:
    """The network's input: (1, 3, 800, 608) float32, RGB, normalised by ImageNet's means and deviations."""
    size = _INPUT_PX if degrees % 180 == 0 else _INPUT_PX[::-1]
    # Resize before turning, because a page may be large.
    smaller = turn(cast(Pixels, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)), degrees)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    normal = (colours.astype(np.float32) / np.float32(255) - _MEANS) / _DEVIATIONS
    return np.ascontiguousarray(np.moveaxis(normal, -1, 0)[None])


Group = tuple[FoundRegion, Sequence[int]]  # a region, and indices of its lines


def assign_lines(page: Page, found: Sequence[FoundRegion]) -> tuple[Region, ...]:
    """Assign lines to regions; returns the regions in the order of their middle lines.

    Each line belongs to the most confident region that contains most of it. Consecutive lines outside all regions form
    a text region with confidence 0. `found` has the most confident first, on the page turned clockwise by its `angle`.
    """
    quads = np.array([line.box for line in page.lines], np.float32).reshape(-1, 4, 2)
    upright = turn_points(quads, page.angle, page.width, page.height)
    frames = np.concatenate([upright.min(axis=1), upright.max(axis=1)], axis=1)
    return tuple(
        Region(region.type, region.confidence, _box_of(page, region.frame), tuple(lines))
        for region, lines in _grouped(frames, found)
    )


def _grouped(frames: Frames, found: Sequence[FoundRegion]) -> list[Group]:
    """The regions in reading order, each with its lines; text regions are added around lines outside all regions."""
    lines_of: dict[tuple[int, int], list[int]] = {}
    owners, run = _owners(frames, found), 0
    for number, owner in enumerate(owners):
        run += number > 0 and owner != owners[number - 1]
        lines_of.setdefault((owner, run if owner == NO_REGION else 0), []).append(number)
    groups: list[Group] = []
    for (owner, _), lines in sorted(lines_of.items(), key=lambda item: median_low(item[1])):
        left, top = frames[lines, :2].min(axis=0).tolist()
        right, bottom = frames[lines, 2:].max(axis=0).tolist()
        around = FoundRegion("text", 0.0, (left, top, right, bottom))
        groups.append((found[owner] if owner != NO_REGION else around, lines))
    for region in (region for number, region in enumerate(found) if (number, 0) not in lines_of):
        groups.insert(_place_of(region, groups), (region, ()))
    return groups


def _owners(frames: Frames, found: Sequence[FoundRegion]) -> list[int]:
    """For each line of the upright page, the index of its region; NO_REGION if no region contains most of the line."""
    if not found:
        return [NO_REGION] * len(frames)
    regions = np.array([region.frame for region in found], np.float32)
    low, high = np.maximum(frames[:, None, :2], regions[:, :2]), np.minimum(frames[:, None, 2:], regions[:, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    holds = (shared >= WITHIN * (frames[:, 2:] - frames[:, :2]).prod(axis=1)[:, None]) & (shared > 0)
    return [int(owner) for owner in np.where(holds.any(axis=1), holds.argmax(axis=1), NO_REGION)]


def _place_of(region: FoundRegion, groups: Sequence[Group]) -> int:
    """Index at which to insert a region without lines: after the last region above it, 0 if there is none."""
    left, top, right, bottom = region.frame
    place = 0
    for number, (other, _) in enumerate(groups, 1):
        other_left, _, other_right, other_bottom = other.frame
        if other_bottom <= (top + bottom) / 2 and other_left < right and left < other_right:
            place = number
    return place


def _box_of(page: Page, frame: Sequence[float]) -> Box:
    """Convert a frame on the upright page to a box in the page's image."""
    left, top, right, bottom = frame
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)
    width, height = (page.height, page.width) if page.angle in (90, 270) else (page.width, page.height)
    return as_box(turn_points(corners, -page.angle % 360, width, height))
