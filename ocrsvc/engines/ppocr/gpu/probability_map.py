"""Packs the detector's probability map into one byte a pixel for the copy from the GPU: text mask and probability.

Contours are followed in memory, which needs the mask; a box is judged by the mean probability within its rectangle. The
mask is decided on the GPU, in single precision, and is the CPU's bit by bit. The probability goes along in the other
seven bits, so one copy of a quarter of the map's bytes carries both; rounding moves a mean by 1/254 at most, and by far
less in fact, because nearly all probabilities are nearly 0 or 1. Means over rectangles on the GPU would need the
contours there first: a second copy in each direction for a difference that hardly ever crosses the threshold (0.4).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.arrays import Array
from ocrsvc.records import Pixels

CERTAIN: Final = 127
"""What stands for a probability of 1."""


def threshold(xp: Any, probabilities: Array, least: float) -> Array:
    """(h, w) bool of a (h, w) float32 map: above `least`, dilated by 2 x 2 down and to the right."""
    text = probabilities > np.float32(least)
    # Never in place: what is read must not be what is written, and cupy does not watch over that.
    down = xp.concatenate([text[:1], text[1:] | text[:-1]], axis=0)
    return xp.concatenate([down[:, :1], down[:, 1:] | down[:, :-1]], axis=1)


def pack_map(xp: Any, probabilities: Array, least: float) -> Array:
    """(h, w) uint8: the mask in the highest bit, the probability in steps of 1 / CERTAIN in the others."""
    likely = xp.rint(xp.clip(probabilities, 0, 1) * np.float32(CERTAIN)).astype(np.uint8)
    return likely | (threshold(xp, probabilities, least).astype(np.uint8) << np.uint8(7))


def unpack_map(packed: NDArray[np.uint8]) -> tuple[Pixels, Pixels]:
    """The mask (0 or 1) and the probabilities (0 to CERTAIN) of a packed map; both (h, w) uint8, in memory."""
    return packed >> np.uint8(7), packed & np.uint8(CERTAIN)
