"""How does a page on the card become the detector's input? Resized as OpenCV does it, to within a gray level."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.card.arrays import Array
from ocrsvc.engines.ppocr.card.taps import Taps, area_taps, linear_taps, mixed_taps


def detector_input(xp: Any, page: Array, size: tuple[int, int], padded: tuple[int, int], *, shrink: bool) -> Array:
    """(1, 3, h', w') float32, 0..255 becoming -1..1, of a (H, W[, 3]) uint8 page; gray fills all channels.

    Args:
        xp: The page's array module.
        page: On the card.
        size: (w, h) in pixels of the resized page.
        padded: (w', h') of the whole, with the page at the top left and 0 around it.
        shrink: INTER_AREA instead of INTER_LINEAR.
    """
    levels = resize(xp, page, size, shrink=shrink)
    planes = levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)
    scaled = planes * np.float32(1 / 127.5) - np.float32(1)
    tensor = xp.zeros((1, 3, padded[1], padded[0]), np.float32)
    tensor[0, :, : size[1], : size[0]] = scaled
    return tensor


def resize(xp: Any, page: Array, size: tuple[int, int], *, shrink: bool) -> Array:
    """(h, w[, 3]) float32 whole gray levels; arguments as there."""
    height, width = page.shape[:2]
    make = linear_taps
    if shrink:
        make = area_taps if size[1] <= height and size[0] <= width else mixed_taps
    rows = _along(xp, page, make([height], [size[1]], size[1]), 0)
    return xp.rint(_along(xp, rows, make([width], [size[0]], size[0]), 1))


def _along(xp: Any, pixels: Array, taps: Taps, axis: int) -> Array:
    """The weighted sum of each output pixel's neighbours along an axis: a gather for each of a few taps."""
    shape = [-1 if number == axis else 1 for number in range(pixels.ndim)]
    total = None
    for places, weights in zip(_columns(taps.places), _columns(taps.weights), strict=True):
        part = xp.take(pixels, xp.asarray(places), axis=axis) * xp.asarray(weights).reshape(shape)
        total = part if total is None else total + part
    return total


def _columns(table: NDArray[Any]) -> list[NDArray[Any]]:
    """The (count,) columns of a table (1, count, k)."""
    return [np.ascontiguousarray(table[0, :, tap]) for tap in range(table.shape[2])]
