"""Prepares pixels for both models: the tensor, or pixels where the model makes it; and levels the grounds of lines.

What JPEG or a scanner's grain leaves between two words is a few levels of gray. The recognizer takes it for something
that stands there and reads no space, on a plain ground it reads one. Whether a line's ground is noisy is judged by the
line itself: noise is many pixels just beside the ground's tone and few a little further from it, where the soft edges
of letters are as frequent as near it. A line without noise, or on a picture, stays as it is. docs/design/spaces.md has
the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Pixels

Triple = tuple[float, float, float]
Shades = NDArray[np.float32]  # (256,) the value of each shade
Counts = NDArray[np.integer]
HEIGHT_PX: Final = 48  # of a line, as most recognizers are fed it
HALF: Final = (0.5, 0.5, 0.5)
_LEVELS: Final = 256

_SHADES: Final = np.arange(_LEVELS, dtype=np.float32)
# What the formulas of the two paths give for each value, to the last bit; looked up, they cost a third.
GRAY_VALUES: Final = _SHADES * np.float32(1 / 127.5) - np.float32(1)
COLOUR_VALUES: Final = (_SHADES - np.float32(127.5)) * np.float32(1 / 127.5)

REACH: Final = 0.1  # of the line's contrast, how far noise may lie from the ground
MOST_BEYOND: Final = 0.2
"""Pixels in the next REACH, for each noisy one, up to which these are noise and no soft edges or texture."""
MOST_SOFT: Final = 0.09
"""Pixels in the next REACH, for each of the ground: more belong to blurred letters, which levelling takes from."""
LEAST_CONTRAST: Final = 80  # levels between ground and ink: fainter strokes are hardly more than noise
STRONGEST: Final = 0.02  # the share of pixels, at each end of the tones, that is not looked at for the contrast
TONE: Final = 2  # levels beside each other that count together in looking for the ground, on each side of one


@dataclass(frozen=True, slots=True)
class InputFormat:
    """What a model takes."""

    mean: Triple = HALF  # of blue, green and red: (shade / 255 - mean) / std is a value of the tensor
    std: Triple = HALF
    height_px: int = HEIGHT_PX  # of a line, for a recognizer


USUAL: Final = InputFormat()  # that of the built-in models


class TakesInput(Protocol):
    """A model; `takes_pixels` where its input is (1, H, W, 3) BGR uint8."""

    @property
    def takes_pixels(self) -> bool: ...  # noqa: D102  described above

    @property
    def input_format(self) -> InputFormat: ...  # noqa: D102  what its tensors hold


def to_tensor(pixels: Pixels, taken: InputFormat = USUAL) -> NDArray[np.float32]:
    """(H, W) gray or (H, W, 3) BGR uint8 to (1, 3, H, W) float32, as the model takes it; gray fills all channels."""
    tensor = np.empty((1, 3, *pixels.shape[:2]), np.float32)
    gray, *colours = _values(taken.mean, taken.std)
    if pixels.ndim == 2 and gray is not None:
        cv2.LUT(pixels, gray, dst=tensor[0, 0])
        tensor[0, 1:] = tensor[0, 0]
        return tensor
    channels = cv2.split(pixels) if pixels.ndim == 3 else (pixels,) * 3
    for plane, channel, values in zip(tensor[0], channels, colours, strict=True):
        cv2.LUT(channel, values, dst=plane)
    return tensor


@cache
def _values(mean: Triple, std: Triple) -> tuple[Shades | None, Shades, Shades, Shades]:
    """The values of shades of gray, where they are the same in all channels, and those of blue, green and red."""
    if (mean, std) == (HALF, HALF):
        return GRAY_VALUES, COLOUR_VALUES, COLOUR_VALUES, COLOUR_VALUES
    blue, green, red = (((_SHADES / 255 - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True))
    return None, blue, green, red


def model_input(model: TakesInput, pixels: Pixels) -> NDArray[Any]:
    """(H, W) gray or (H, W, 3) BGR uint8 as the model takes them."""
    if not model.takes_pixels:
        return to_tensor(pixels, model.input_format)
    return np.asarray(pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR))[None]


def blank_input(model: TakesInput, height: int, width: int) -> NDArray[Any]:
    """Of an empty page, for a first run."""
    return model_input(model, np.zeros((height, width, 3), np.uint8))


def at_usual_height(crop: Pixels) -> Pixels:
    """A line's crop with HEIGHT_PX rows, as its ink is looked at, whatever height the recognizer takes."""
    if crop.shape[0] == HEIGHT_PX:
        return crop
    return cast(Pixels, cv2.resize(crop, (crop.shape[1], HEIGHT_PX), interpolation=cv2.INTER_AREA))


@dataclass(frozen=True, slots=True)
class NoisyGround:
    """The ground of a line, and what is noise on it."""

    tones: NDArray[np.int64]  # (C,) its level in each channel
    reach: int  # how far noise lies from it, in levels, in each channel


def find_noisy_ground(counts: Counts) -> NoisyGround | None:
    """The ground of a line if it is noisy, by (C, 256) how many pixels have each level of each channel."""
    seen = counts[len(counts) // 2]
    total, tone = int(seen.sum()), _tone(seen)
    low, high = (int(level) for level in np.searchsorted(seen.cumsum(), (STRONGEST * total, (1 - STRONGEST) * total)))
    contrast = max(tone - low, high - tone)
    if contrast < LEAST_CONTRAST:
        return None
    reach = int(REACH * contrast)
    near, far = (int(seen[max(0, tone - most) : tone + most + 1].sum()) for most in (reach, 2 * reach))
    if far - near > MOST_SOFT * near or far - near > MOST_BEYOND * (near - int(seen[tone])):
        return None
    return NoisyGround(np.array([_tone(channel) for channel in counts], np.int64), reach)


def level_ground(crop: Pixels) -> Pixels:
    """The crop (h, w[, 3]) with what is noise on its ground in the ground's tone; itself where there is none."""
    channels = 1 if crop.ndim == 2 else crop.shape[2]
    planes = [cv2.calcHist([crop], [channel], None, [_LEVELS], [0, _LEVELS]) for channel in range(channels)]
    ground = find_noisy_ground(np.stack(planes).reshape(channels, _LEVELS).astype(np.int64))
    if ground is None:
        return crop
    low, high = (tuple(map(float, ground.tones + side * ground.reach)) for side in (-1, 1))
    # Merged from planes, colour takes a tenth of the time.
    plain = cv2.merge([np.full(crop.shape[:2], tone, np.uint8) for tone in ground.tones])
    return cast(Pixels, cv2.copyTo(plain, cv2.inRange(crop, low, high), crop.copy()))


def _tone(counts: Counts) -> int:
    """The most frequent level where levels are most frequent."""
    middle = int(np.convolve(counts, np.ones(2 * TONE + 1), "same").argmax())
    first = max(0, middle - TONE)
    return first + int(counts[first : middle + TONE + 1].argmax())
