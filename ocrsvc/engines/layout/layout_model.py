"""The model that finds the regions of a page: PP-PicoDet of PaddleOCR's PP-Structure, trained on CDLA, on the CPU.

Its weights are package data of this package, in weights/, with their licence; benchmarks/layout_model.py made the file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, cast, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.layout.picodet import STRIDES_PX, decode
from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.imaging.geometry import turn
from ocrsvc.imaging.regions import FoundRegion
from ocrsvc.records import Check, Pixels, RegionType

TYPES: Final[tuple[RegionType, ...]] = get_args(RegionType)
"""In the order of the model's classes."""

_FILE: Final = Path(__file__).parent / "weights" / "cdla.onnx"
_INPUT_PX: Final = (608, 800)  # width and height
_MEANS: Final = np.array([0.485, 0.456, 0.406], np.float32)  # red, green, blue, of ImageNet
_DEVIATIONS: Final = np.array([0.229, 0.224, 0.225], np.float32)


class LayoutModel:
    """The model, opened when it is first needed; safe to share between threads, which take turns."""

    def __init__(self) -> None:
        self._model = OnDemandModel(_FILE, "layout")

    def find(self, pixels: Pixels, degrees: int, check: Check) -> list[FoundRegion]:
        """The regions of a page, surest first, on the page as it is once it is upright.

        Args:
            pixels: (H, W[, 3]) uint8, blue, green, red.
            degrees: Clockwise turn (0, 90, 180, 270) that makes it upright.
            check: Called before the run, and while it waits for its turn.

        Raises:
            EngineFailed: ONNX Runtime is not installed.
        """
        outputs = self._model.run(_to_tensor(pixels, degrees), check)
        boxes, classes = decode(outputs[: len(STRIDES_PX)], outputs[len(STRIDES_PX) :], *_INPUT_PX)
        height, width = pixels.shape[:2][:: 1 if degrees % 180 == 0 else -1]
        across, down = width / _INPUT_PX[0], height / _INPUT_PX[1]
        return [
            FoundRegion(TYPES[number], confidence, (left * across, top * down, right * across, bottom * down))
            for number, (left, top, right, bottom, confidence) in zip(classes.tolist(), boxes.tolist(), strict=True)
        ]


@cache
def layout_model() -> LayoutModel:
    """That of this process, which several engines share."""
    return LayoutModel()


def _to_tensor(pixels: Pixels, degrees: int) -> NDArray[np.float32]:
    """(1, 3, 800, 608) float32, red, green, blue, normalised as ImageNet's pictures."""
    size = _INPUT_PX if degrees % 180 == 0 else _INPUT_PX[::-1]
    # Turned when it is small: a page may be large.
    smaller = turn(cast(Pixels, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)), degrees)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    normal = (colours.astype(np.float32) / np.float32(255) - _MEANS) / _DEVIATIONS
    return np.ascontiguousarray(np.moveaxis(normal, -1, 0)[None])
