"""Converts pixels to the input of both models: a tensor, or pixels where the model makes the tensor itself."""

from __future__ import annotations

from typing import Any, Final, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

HEIGHT_PX: Final = 48
"""Of a line, as the recognizer is fed it."""

_SHADES: Final = np.arange(256, dtype=np.float32)
# What the formulas of the two paths give for each value, to the last bit; looked up, they cost a third.
GRAY_VALUES: Final = _SHADES * np.float32(1 / 127.5) - np.float32(1)
COLOUR_VALUES: Final = (_SHADES - np.float32(127.5)) * np.float32(1 / 127.5)


def to_tensor(pixels: Pixels) -> NDArray[np.float32]:
    """(H, W) gray or (H, W, 3) BGR uint8 to (1, 3, H, W) float32; 0..255 becomes -1..1, gray fills all channels."""
    tensor = np.empty((1, 3, *pixels.shape[:2]), np.float32)
    if pixels.ndim == 2:
        cv2.LUT(pixels, GRAY_VALUES, dst=tensor[0, 0])
        tensor[0, 1:] = tensor[0, 0]
    else:
        for plane, channel in zip(tensor[0], cv2.split(pixels), strict=True):
            cv2.LUT(channel, COLOUR_VALUES, dst=plane)
    return tensor


class TakesInput(Protocol):
    """A model; `takes_pixels` where its input is (1, H, W, 3) BGR uint8."""

    @property
    def takes_pixels(self) -> bool: ...  # noqa: D102  described above


def model_input(model: TakesInput, pixels: Pixels) -> NDArray[Any]:
    """(H, W) gray or (H, W, 3) BGR uint8 as the model takes them."""
    if not model.takes_pixels:
        return to_tensor(pixels)
    return np.asarray(pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR))[None]


def blank_input(model: TakesInput, height: int, width: int) -> NDArray[Any]:
    """Of a page that says nothing, for a first run."""
    return model_input(model, np.zeros((height, width, 3), np.uint8))
