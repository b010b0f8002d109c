"""Finds the regions of a page with PP-PicoDet of PaddleOCR's PP-Structure, trained on CDLA, on the CPU.

Its weights and their licence are in weights/; benchmarks/layout_model.py made the file. Head and decoding: G. Yu et
al., "PP-PicoDet: A Better Real-Time Object Detector on Mobile Devices" (2021), after X. Li et al., "Generalized Focal
Loss" (2020): the distance of a box's side from a point is a distribution over REACH + 1 whole strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.layout.regions import FoundRegion
from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.imaging.geometry import turn
from ocrsvc.results import Check, Pixels, RegionType

STRIDES_PX: Final = (8, 16, 32, 64)
REACH: Final = 7
CONFIDENT: Final = 0.4  # as in the configurations of PaddleOCR and RapidLayout
SAME: Final = 0.5  # intersection over union above which two boxes are the same region
MOST: Final = 300  # candidates that are compared with each other, most confident first
Floats = NDArray[np.float32]


def decode(
    scores: Sequence[Floats], sides: Sequence[Floats], width: int, height: int
) -> tuple[Floats, NDArray[np.intp]]:
    """Decode boxes, most confident first: (N, 5) left, top, right, bottom, confidence; (N,) classes.

    Per stride: `scores` (points, classes) in [0, 1]; `sides` (points, 4 * (REACH + 1)), distributions of the distances
    to left, top, right, bottom. `width` and `height` are the network's input size; boxes are in its pixels.
    """
    strides = [_decode_stride(*outputs, width) for outputs in zip(STRIDES_PX, scores, sides, strict=True)]
    boxes = np.concatenate([boxes for boxes, _ in strides])
    classes = np.concatenate([classes for _, classes in strides])
    order = np.argsort(-boxes[:, 4], kind="stable")[:MOST]
    kept = order[_suppress(boxes[order])]
    boxes = boxes[kept]
    boxes[:, :4] = boxes[:, :4].clip(0, [width, height, width, height])
    return boxes, classes[kept]


def _decode_stride(stride: int, scores: Floats, sides: Floats, width: int) -> tuple[Floats, NDArray[np.intp]]:
    confidences = scores.max(axis=1)
    points = np.flatnonzero(confidences > CONFIDENT)
    columns = -(-width // stride)
    middles = (np.stack([points % columns, points // columns], axis=1) + 0.5) * stride
    weights = np.exp(sides[points].reshape(-1, 4, REACH + 1).astype(np.float64))
    distances = weights @ np.arange(REACH + 1) / weights.sum(axis=2) * stride
    boxes = [middles - distances[:, :2], middles + distances[:, 2:], confidences[points, None]]
    return np.concatenate(boxes, axis=1).astype(np.float32), scores[points].argmax(axis=1)


def _suppress(boxes: Floats) -> NDArray[np.intp]:
    """Non-maximum suppression: indices of the boxes (N, 5), most confident first, to keep, whatever their classes."""
    low, high = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:4], boxes[:, 2:4])
    shared = (high - low).clip(0).prod(axis=2)
    areas = (boxes[:, 2:4] - boxes[:, :2]).prod(axis=1)
    same = shared > SAME * (areas[:, None] + areas - shared)
    kept = np.ones(len(boxes), bool)
    for number in range(len(boxes)):
        if kept[number]:
            kept[number + 1 :] &= ~same[number, number + 1 :]
    return cast("NDArray[np.intp]", np.flatnonzero(kept))


TYPES: Final[tuple[RegionType, ...]] = get_args(RegionType)  # in the order of the model's classes
_FILE: Final = Path(__file__).parent / "weights" / "cdla.onnx"
_INPUT_PX: Final = (608, 800)  # width and height
_MEANS: Final = np.array([0.485, 0.456, 0.406], np.float32)  # red, green, blue, of ImageNet
_DEVIATIONS: Final = np.array([0.229, 0.224, 0.225], np.float32)

LAYOUT_MODEL: Final = OnDemandModel(_FILE, "layout")


def find_regions(pixels: Pixels, degrees: int, check: Check) -> list[FoundRegion]:
    """Regions of a page, most confident first, on the page turned clockwise by `degrees`. Raises EngineFailed."""
    outputs = LAYOUT_MODEL.run(_to_tensor(pixels, degrees), check)
    boxes, classes = decode(outputs[: len(STRIDES_PX)], outputs[len(STRIDES_PX) :], *_INPUT_PX)
    height, width = pixels.shape[:2][:: 1 if degrees % 180 == 0 else -1]
    across, down = width / _INPUT_PX[0], height / _INPUT_PX[1]
    return [
        FoundRegion(TYPES[number], confidence, (left * across, top * down, right * across, bottom * down))
        for number, (left, top, right, bottom, confidence) in zip(classes.tolist(), boxes.tolist(), strict=True)
    ]


def _to_tensor(pixels: Pixels, degrees: int) -> NDArray[np.float32]:
    """(1, 3, 800, 608) float32, RGB, normalised as for ImageNet."""
    size = _INPUT_PX if degrees % 180 == 0 else _INPUT_PX[::-1]
    # Resize before turning, for a page may be large.
    smaller = turn(cast(Pixels, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)), degrees)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    normal = (colours.astype(np.float32) / np.float32(255) - _MEANS) / _DEVIATIONS
    return np.ascontiguousarray(np.moveaxis(normal, -1, 0)[None])
