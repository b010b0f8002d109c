"""Converts samples of any depth, with or without transparency, to the 8-bit gray or BGR that engines read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.codecs.encoded_image import Samples
from ocrsvc.records import Pixels

FLAT_LEVELS = 48
"""Gray levels between the darkest and the lightest pixel up to which a page counts as one flat colour."""

OPAQUE = 255

BAND_PIXELS: Final = 1 << 18
"""Pixels that are worked on at once, so that what is made on the way does not grow with the page."""


def bands(height: int, width: int) -> Iterator[slice]:
    """The rows of a page, BAND_PIXELS at a time."""
    rows = max(1, BAND_PIXELS // max(1, width))
    return (slice(top, min(top + rows, height)) for top in range(0, height, rows))


def flatten(samples: Samples, *, gray: bool) -> Pixels:
    """Eight bits, no transparency: (H, W) where `samples` has one channel or `gray` asks for it, else (H, W, 3) BGR."""
    if samples.ndim == 3 and samples.shape[2] == 4:
        return _composite(samples, gray=gray)
    if samples.dtype == np.uint8 and (samples.ndim == 2 or not gray):
        return np.ascontiguousarray(samples, np.uint8)
    flat = _empty(samples, gray=gray)
    for rows in bands(*samples.shape[:2]):
        eight = _to_8_bits(samples[rows])
        flat[rows] = cv2.cvtColor(eight, cv2.COLOR_BGR2GRAY) if gray and eight.ndim == 3 else eight
    return flat


def stretch(values: NDArray[Any]) -> Pixels:
    """8-bit gray from (H, W) float or 32-bit samples, whose white is in no header.

    Up to 1 they are read as fractions, up to 255 as they are, and anything else from its darkest to its lightest value.
    """
    ends = [(levels.min(), levels.max()) for rows in bands(*values.shape) for levels in (_finite(values[rows]),)]
    low, high = float(min(low for low, _ in ends)), float(max(high for _, high in ends))
    if low >= 0 and high <= OPAQUE:
        low, high = 0.0, 1.0 if high <= 1 else float(OPAQUE)
    eight = np.empty(values.shape, np.uint8)
    for rows in bands(*values.shape):
        scaled = (_finite(values[rows]) - low) * (OPAQUE / max(high - low, 1e-30))
        eight[rows] = scaled.round().clip(0, OPAQUE)
    return eight


def _finite(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.nan_to_num(values.astype(np.float32), posinf=0.0, neginf=0.0)


def _empty(samples: Samples, *, gray: bool) -> Pixels:
    """Room for the flat page."""
    sides = samples.shape[:2]
    return np.empty(sides if gray or samples.ndim == 2 else (*sides, 3), np.uint8)


def _to_8_bits(samples: Samples) -> Pixels:
    if samples.dtype == np.uint16:
        return (samples >> 8).astype(np.uint8)
    return samples.astype(np.uint8, copy=False)


def _composite(bgra: Samples, *, gray: bool) -> Pixels:
    """Composite over white; over black where white would hide the page, as it does white letters."""
    flat, is_opaque = _empty(bgra, gray=gray), True
    for rows in bands(*bgra.shape[:2]):
        colour, alpha = _split_alpha(bgra[rows], gray=gray)
        if int(alpha.min()) < OPAQUE:
            is_opaque = False
            on_black = _over_black(colour, alpha)
            colour = _u8(cv2.add(on_black, cv2.bitwise_not(_with_channels_of(alpha, colour))))
        flat[rows] = colour
    if is_opaque:
        return flat
    contrast = _contrast(flat[rows] for rows in bands(*flat.shape[:2]))
    if contrast >= FLAT_LEVELS or _contrast(_bands_on_black(bgra, gray=gray)) <= 2 * contrast:
        return flat
    for rows, on_black in zip(bands(*bgra.shape[:2]), _bands_on_black(bgra, gray=gray), strict=True):
        flat[rows] = on_black
    return flat


def _bands_on_black(bgra: Samples, *, gray: bool) -> Iterator[Pixels]:
    """The page over black, band by band."""
    return (_over_black(*_split_alpha(bgra[rows], gray=gray)) for rows in bands(*bgra.shape[:2]))


def _split_alpha(bgra: Samples, *, gray: bool) -> tuple[Pixels, Pixels]:
    """Colour, gray where that is asked for, and alpha."""
    eight = _to_8_bits(bgra)
    colour = cv2.cvtColor(eight, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
    return _u8(colour), _u8(cv2.extractChannel(eight, 3))


def _over_black(colour: Pixels, alpha: Pixels) -> Pixels:
    return _u8(cv2.multiply(colour, _with_channels_of(alpha, colour), scale=1 / OPAQUE))


def _with_channels_of(alpha: Pixels, colour: Pixels) -> Pixels:
    """Alpha with as many channels as the colour has."""
    return alpha if colour.ndim == 2 else _u8(cv2.merge([alpha, alpha, alpha]))


def _contrast(parts: Iterable[Pixels]) -> int:
    """Gray levels between the darkest and the lightest pixel of a page in bands."""
    low, high = OPAQUE, 0
    for pixels in parts:
        gray = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
        darkest, lightest, _, _ = cv2.minMaxLoc(gray)
        low, high = min(low, int(darkest)), max(high, int(lightest))
    return high - low


def _u8(array: object) -> Pixels:
    return np.asarray(array, np.uint8)
