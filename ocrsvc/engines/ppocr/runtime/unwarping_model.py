"""The model that finds how a curved page lies in its picture: UVDoc, on the CPU.

F. Verhoeven, T. Magne and O. Sorkine-Hornung, "UVDoc: Neural Grid-based Document Unwarping" (SIGGRAPH Asia 2023). Its
weights are package data of this package, in weights/, with their licence.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.on_demand_model import OnDemandModel
from ocrsvc.records import Check, Pixels, no_check

_FILE: Final = Path(__file__).parents[1] / "weights" / "uvdoc.onnx"
_INPUT_PX: Final = (488, 712)  # width and height
_SESSION_OPTIONS: Final = {"session.disable_quant_qdq": "1"}
"""Kernels are made floats when the model is opened, not at every run."""


class UnwarpingModel:
    """The model, opened when it is first needed; safe to share between threads, which take turns.

    Most processes never meet a curved page, so none pays the 75 MB that it holds once it is open. One run at a time
    keeps what runs need besides (30 MB) from growing with the number of threads.
    """

    def __init__(self) -> None:
        self._model = OnDemandModel(_FILE, "unwarp", _SESSION_OPTIONS)

    def find_grid(self, pixels: Pixels, check: Check = no_check) -> NDArray[np.float32]:
        """Where points that lie evenly on the flat page are in its picture.

        Args:
            pixels: (H, W[, 3]) uint8, blue, green, red.
            check: Called before the run, and while it waits for its turn.

        Returns:
            (45, 31, 2) float32, x and y in pixels of the picture; the page's top left corner first, row by row. They
            may lie outside the picture.
        """
        found = self._model.run(_to_tensor(pixels), check)[0]
        height, width = pixels.shape[:2]
        return cast("NDArray[np.float32]", (np.moveaxis(found, 0, -1) + 1) / 2 * np.array([width, height], np.float32))


@cache
def unwarping_model() -> UnwarpingModel:
    """That of this process, which several engines share."""
    return UnwarpingModel()


def _to_tensor(pixels: Pixels) -> NDArray[np.float32]:
    """(1, 3, 712, 488) float32, 0 to 1, red, green, blue."""
    smaller = cv2.resize(pixels, _INPUT_PX, interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(smaller, cv2.COLOR_GRAY2RGB if pixels.ndim == 2 else cv2.COLOR_BGR2RGB)
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0)[None], np.float32) / np.float32(255)
