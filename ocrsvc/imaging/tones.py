"""How do samples of any depth, with or without transparency, become the 8-bit gray or BGR that engines read?"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.picture import Samples
from ocrsvc.records import Pixels

FLAT_LEVELS = 48
"""Gray levels between the darkest and the lightest pixel up to which a page counts as one flat colour."""

OPAQUE = 255


def flatten(samples: Samples, *, gray: bool) -> Pixels:
    """Eight bits, no transparency: (H, W) where `samples` has one channel or `gray` asks for it, else (H, W, 3) BGR."""
    eight = _to_8_bits(samples)
    if eight.ndim == 3 and eight.shape[2] == 4:
        return _on_a_ground(eight, gray=gray)
    if eight.ndim == 3 and gray:
        return _u8(cv2.cvtColor(eight, cv2.COLOR_BGR2GRAY))
    return np.ascontiguousarray(eight)


def stretch(values: NDArray[Any]) -> Pixels:
    """8-bit gray from float or 32-bit samples, whose white no header tells.

    Up to 1 they are read as fractions, up to 255 as they are, and anything else from its darkest to its lightest value.
    """
    levels = np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)
    low, high = float(levels.min()), float(levels.max())
    if low >= 0 and high <= OPAQUE:
        low, high = 0.0, 1.0 if high <= 1 else float(OPAQUE)
    scaled = (levels - low) * (OPAQUE / max(high - low, 1e-30))
    return scaled.round().clip(0, OPAQUE).astype(np.uint8)


def _to_8_bits(samples: Samples) -> Pixels:
    if samples.dtype == np.uint16:
        return (samples >> 8).astype(np.uint8)
    return samples.astype(np.uint8, copy=False)


def _on_a_ground(bgra: Pixels, *, gray: bool) -> Pixels:
    """Composite over white; over black where white would swallow the page, as it does white letters."""
    alpha = _u8(cv2.extractChannel(bgra, 3))
    colour = _u8(cv2.cvtColor(bgra, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR))
    if int(alpha.min()) == OPAQUE:
        return colour
    if not gray:
        alpha = _u8(cv2.merge([alpha, alpha, alpha]))
    on_black = _u8(cv2.multiply(colour, alpha, scale=1 / OPAQUE))
    on_white = _u8(cv2.add(on_black, cv2.bitwise_not(alpha)))
    contrast = _contrast(on_white)
    return on_black if contrast < FLAT_LEVELS and _contrast(on_black) > 2 * contrast else on_white


def _contrast(pixels: Pixels) -> int:
    gray = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    low, high, _, _ = cv2.minMaxLoc(gray)
    return int(high - low)


def _u8(array: object) -> Pixels:
    return np.asarray(array, np.uint8)
