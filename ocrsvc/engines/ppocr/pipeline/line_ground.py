"""Levels the ground of a line that compression or a scanner's grain made uneven: the recognizer loses spaces on it.

What JPEG leaves between two words is a few levels of gray. The recognizer takes it for something that stands there and
reads no space, on a plain ground it reads one. Whether a line's ground is noisy is judged by the line itself: noise is
many pixels just beside the ground's tone and few a little further from it, where the soft edges of letters are as
frequent as near it. A line without noise, or on a picture, stays as it is. docs/design/spaces.md has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

REACH: Final = 0.1  # of the line's contrast, how far noise may lie from the ground
MOST_BEYOND: Final = 0.2
"""Pixels in the next REACH, for each noisy one, up to which these are noise and no soft edges or texture."""
MOST_SOFT: Final = 0.09
"""Pixels in the next REACH, for each of the ground: more belong to blurred letters, which levelling takes from."""
LEAST_CONTRAST: Final = 80  # levels between ground and ink: fainter strokes are hardly more than noise
STRONGEST: Final = 0.02  # the share of pixels, at each end of the tones, that is not looked at for the contrast
TONE: Final = 2  # levels beside each other that count together in looking for the ground, on each side of one
_LEVELS: Final = 256
Counts = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class NoisyGround:
    """The ground of a line, and what is noise on it."""

    tones: NDArray[np.int64]  # (C,) its level in each channel
    reach: int  # how far noise lies from it, in levels, in each channel


def find_noisy_ground(counts: Counts) -> NoisyGround | None:
    """The ground of a line if it is noisy, by (C, 256) how many pixels have each level of each channel.

    Of three channels green tells the noise, as it is most of what is seen.
    """
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
