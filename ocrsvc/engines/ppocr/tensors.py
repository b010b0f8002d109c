"""Pixels to network input: what both models are fed."""

from __future__ import annotations

from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.records import Pixels

HEIGHT_PX: Final = 48
"""Of a line, as the recogniser is fed it."""


def to_tensor(pixels: Pixels) -> NDArray[np.float32]:
    """(H, W) gray or (H, W, 3) BGR uint8 to (1, 3, H, W) float32; 0..255 becomes -1..1, gray fills all channels."""
    if pixels.ndim == 2:
        plane = pixels.astype(np.float32) * np.float32(1 / 127.5) - np.float32(1)
        return np.repeat(plane[None, None], 3, axis=1)
    return cast("NDArray[np.float32]", cv2.dnn.blobFromImage(pixels, 1 / 127.5, mean=(127.5, 127.5, 127.5)))
