"""Packs the detector's probability map into one byte a pixel for the copy from the GPU: text mask and probability.

Contours are followed in memory, which needs the mask; a box is judged by the mean probability within its rectangle. The
mask is decided on the GPU, in single precision, and is the CPU's bit by bit. The probability goes along in the other
seven bits, so one copy of a quarter of the map's bytes carries both; rounding moves a mean by 1/254 at most, and by far
less in fact, because nearly all probabilities are nearly 0 or 1. Means over rectangles on the GPU would need the
contours there first: a second copy in each direction for a difference that hardly ever crosses a box's threshold.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.arrays import Array
from ocrsvc.records import Pixels

CERTAIN: Final = 127
"""What stands for a probability of 1."""


def pack_map(xp: Any, probabilities: Array, least: float) -> Array:
    """(h, w) uint8: above `least` (the highest bit), and the probability in steps of 1 / CERTAIN."""
    likely = xp.rint(xp.clip(probabilities, 0, 1) * np.float32(CERTAIN)).astype(np.uint8)
    return likely | ((probabilities > np.float32(least)).astype(np.uint8) << np.uint8(7))


def unpack_map(packed: NDArray[np.uint8]) -> tuple[Pixels, Pixels]:
    """The mask (0 or 1) and the probabilities (0 to CERTAIN) of a packed map; both (h, w) uint8, in memory."""
    return packed >> np.uint8(7), packed & np.uint8(CERTAIN)
