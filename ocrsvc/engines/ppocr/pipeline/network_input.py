"""Converts pixels to the input of both models: a tensor, or pixels where the model makes the tensor itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

Triple = tuple[float, float, float]
Shades = NDArray[np.float32]  # (256,) the value of each shade
HEIGHT_PX: Final = 48  # of a line, as most recognizers are fed it
HALF: Final = (0.5, 0.5, 0.5)

_SHADES: Final = np.arange(256, dtype=np.float32)
# What the formulas of the two paths give for each value, to the last bit; looked up, they cost a third.
GRAY_VALUES: Final = _SHADES * np.float32(1 / 127.5) - np.float32(1)
COLOUR_VALUES: Final = (_SHADES - np.float32(127.5)) * np.float32(1 / 127.5)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """What a model takes."""

    mean: Triple = HALF  # of blue, green and red: (shade / 255 - mean) / std is a value of the tensor
    std: Triple = HALF
    height_px: int = HEIGHT_PX  # of a line, for a recognizer


USUAL: Final = InputFormat()  # that of the built-in models


def to_tensor(pixels: Pixels, taken: InputFormat = USUAL) -> NDArray[np.float32]:
    """(H, W) gray or (H, W, 3) BGR uint8 to (1, 3, H, W) float32, as the model takes it; gray fills all channels."""
    tensor = np.empty((1, 3, *pixels.shape[:2]), np.float32)
    gray, *colours = _values(taken.mean, taken.std)
    if pixels.ndim == 3:
        for plane, channel, values in zip(tensor[0], cv2.split(pixels), colours, strict=True):
            cv2.LUT(channel, values, dst=plane)
    elif gray is not None:
        cv2.LUT(pixels, gray, dst=tensor[0, 0])
        tensor[0, 1:] = tensor[0, 0]
    else:
        for plane, values in zip(tensor[0], colours, strict=True):
            cv2.LUT(pixels, values, dst=plane)
    return tensor


@cache
def _values(mean: Triple, std: Triple) -> tuple[Shades | None, Shades, Shades, Shades]:
    """The values of shades of gray, where they are the same in all channels, and those of blue, green and red."""
    if (mean, std) == (HALF, HALF):
        return GRAY_VALUES, COLOUR_VALUES, COLOUR_VALUES, COLOUR_VALUES
    blue, green, red = (((_SHADES / 255 - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True))
    return None, blue, green, red


class TakesInput(Protocol):
    """A model; `takes_pixels` where its input is (1, H, W, 3) BGR uint8."""

    @property
    def takes_pixels(self) -> bool: ...  # noqa: D102  described above

    @property
    def input_format(self) -> InputFormat: ...  # noqa: D102  what its tensors hold


def model_input(model: TakesInput, pixels: Pixels) -> NDArray[Any]:
    """(H, W) gray or (H, W, 3) BGR uint8 as the model takes them."""
    if not model.takes_pixels:
        return to_tensor(pixels, model.input_format)
    return np.asarray(pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR))[None]


def blank_input(model: TakesInput, height: int, width: int) -> NDArray[Any]:
    """Of a page that says nothing, for a first run."""
    return model_input(model, np.zeros((height, width, 3), np.uint8))


def at_usual_height(crop: Pixels) -> Pixels:
    """A line's crop with HEIGHT_PX rows, as its ink is looked at, whatever height the recognizer takes."""
    if crop.shape[0] == HEIGHT_PX:
        return crop
    return cast(Pixels, cv2.resize(crop, (crop.shape[1], HEIGHT_PX), interpolation=cv2.INTER_AREA))
