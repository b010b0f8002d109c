"""Converts pixels to the input of detector and recognizer, and removes noise from the background of lines.

JPEG or a scanner's grain leaves a few levels of gray between two words. The recognizer takes them for content and reads
no space there; on a plain background it does read the space. Noise shows in the line's own histogram: many pixels near
the background's level, and few a little further away. Soft edges of letters would cause many of both. Lines without
noise, or on a picture, stay unchanged. Figures: docs/design/recognition.md.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.results import Pixels

Triple = tuple[float, float, float]
Shades = NDArray[np.float32]  # (256,) the network's input value for each gray level
Counts = NDArray[np.integer]
HEIGHT_PX: Final = 48  # line height that most recognizers expect
HALF: Final = (0.5, 0.5, 0.5)
_LEVELS: Final = 256

_SHADES: Final = np.arange(_LEVELS, dtype=np.float32)
# Lookup tables for gray and colour: bit-identical to the formulas, in a third of the time.
GRAY_VALUES: Final = _SHADES * np.float32(1 / 127.5) - np.float32(1)
COLOUR_VALUES: Final = (_SHADES - np.float32(127.5)) * np.float32(1 / 127.5)

NOISE_REACH: Final = 0.1  # largest difference of noise from the background, as a share of the line's contrast
# Pixels between 1 and 2 NOISE_REACH from the background's level, divided by noisy pixels (nearer, but not at it). Above
# this ratio the background has edges or texture, and its noise is not removed.
MAX_BEYOND: Final = 0.2
# Pixels between 1 and 2 NOISE_REACH from the background's level, divided by all nearer pixels. Above this ratio the
# line's letters are blurred, and its noise is not removed.
MAX_SOFT: Final = 0.09
MIN_CONTRAST: Final = 80  # gray levels between background and ink; fainter strokes hardly differ from noise
TAIL_SHARE: Final = 0.02  # share of the pixels at each end of the histogram that is ignored when contrast is measured
TONE_WINDOW: Final = 2  # number of levels on each side that are added to a level's count to find the background


@dataclass(frozen=True, slots=True)
class InputFormat:
    """How a model's input values are computed from pixels, and the line height that a recognizer expects."""

    mean: Triple = HALF  # for blue, green and red; the network's input value is (pixel / 255 - mean) / std
    std: Triple = HALF
    height_px: int = HEIGHT_PX  # line height, for a recognizer only


USUAL: Final = InputFormat()  # input format of the built-in models


class TakesInput(Protocol):
    """A model with its input format; `takes_pixels` if its input is pixels, (1, H, W, 3) BGR uint8."""

    @property
    def takes_pixels(self) -> bool: ...  # noqa: D102  described above

    @property
    def input_format(self) -> InputFormat: ...  # noqa: D102  see InputFormat


def to_tensor(pixels: Pixels, input_format: InputFormat = USUAL) -> NDArray[np.float32]:
    """Convert (H, W) gray or (H, W, 3) BGR uint8 to (1, 3, H, W) float32; gray is copied to all channels."""
    tensor = np.empty((1, 3, *pixels.shape[:2]), np.float32)
    gray, *colours = _values(input_format.mean, input_format.std)
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
    """Lookup tables for gray (None if mean or std differs by channel), blue, green and red."""
    if (mean, std) == (HALF, HALF):
        return GRAY_VALUES, COLOUR_VALUES, COLOUR_VALUES, COLOUR_VALUES
    blue, green, red = (((_SHADES / 255 - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True))
    return None, blue, green, red


def model_input(model: TakesInput, pixels: Pixels) -> NDArray[Any]:
    """Convert (H, W) gray or (H, W, 3) BGR uint8 to the model's input: pixels or a tensor."""
    if not model.takes_pixels:
        return to_tensor(pixels, model.input_format)
    return np.asarray(pixels if pixels.ndim == 3 else cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR))[None]


def blank_input(model: TakesInput, height: int, width: int) -> NDArray[Any]:
    """The model's input for an empty page, for a warm-up run."""
    return model_input(model, np.zeros((height, width, 3), np.uint8))


def at_usual_height(crop: Pixels) -> Pixels:
    """Resize a line's crop to a height of HEIGHT_PX, to measure its ink."""
    if crop.shape[0] == HEIGHT_PX:
        return crop
    return cast(Pixels, cv2.resize(crop, (crop.shape[1], HEIGHT_PX), interpolation=cv2.INTER_AREA))


def find_noisy_ground(counts: Counts) -> tuple[NDArray[np.int64], int] | None:
    """Gray levels (C,) of a noisy background, and the noise's largest distance from them; None if it is not noisy."""
    seen = counts[len(counts) // 2]
    total, tone = int(seen.sum()), _tone(seen)
    low, high = (int(level) for level in np.searchsorted(seen.cumsum(), (TAIL_SHARE * total, (1 - TAIL_SHARE) * total)))
    contrast = max(tone - low, high - tone)
    if contrast < MIN_CONTRAST:
        return None
    reach = int(NOISE_REACH * contrast)
    near, far = (int(seen[max(0, tone - away) : tone + away + 1].sum()) for away in (reach, 2 * reach))
    if far - near > MAX_SOFT * near or far - near > MAX_BEYOND * (near - int(seen[tone])):
        return None
    return np.array([_tone(channel) for channel in counts], np.int64), reach


def level_ground(crop: Pixels) -> Pixels:
    """Remove background noise from a crop (h, w[, 3]); returns the crop itself if there is no noise."""
    channels = 1 if crop.ndim == 2 else crop.shape[2]
    planes = [cv2.calcHist([crop], [channel], None, [_LEVELS], [0, _LEVELS]) for channel in range(channels)]
    ground = find_noisy_ground(np.stack(planes).reshape(channels, _LEVELS).astype(np.int64))
    if ground is None:
        return crop
    tones, reach = ground
    low, high = (tuple(map(float, tones + side * reach)) for side in (-1, 1))
    # Merging planes takes a tenth of the time that filling a colour image takes.
    plain = cv2.merge([np.full(crop.shape[:2], tone, np.uint8) for tone in tones])
    return cast(Pixels, cv2.copyTo(plain, cv2.inRange(crop, low, high), crop.copy()))


def _tone(counts: Counts) -> int:
    """The background's gray level: the most frequent one in the densest window of a histogram (see TONE_WINDOW)."""
    middle = int(np.convolve(counts, np.ones(2 * TONE_WINDOW + 1), "same").argmax())
    first = max(0, middle - TONE_WINDOW)
    return first + int(counts[first : middle + TONE_WINDOW + 1].argmax())
