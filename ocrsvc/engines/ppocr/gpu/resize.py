"""Resizes a page on the GPU to the detector's input, as OpenCV does it, to within a gray level."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.arrays import Array
from ocrsvc.engines.ppocr.gpu.resampling_weights import ResamplingWeights, area_weights, linear_weights, mixed_weights
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat

FIXED: Final = 2048
"""One, in OpenCV's fixed point."""


def detector_input(
    xp: Any,
    page: Array,
    size: tuple[int, int],
    padded: tuple[int, int],
    *,
    shrink: bool,
    taken: InputFormat = USUAL,
) -> Array:
    """(1, 3, h', w') float32, as the model takes it, of a (H, W[, 3]) uint8 page; gray fills all channels.

    Args:
        xp: The page's array module.
        page: On the GPU.
        size: (w, h) in pixels of the resized page.
        padded: (w', h') of the whole, with the page at the top left and its last row and column repeated.
        shrink: INTER_AREA instead of INTER_LINEAR.
        taken: What the model takes.
    """
    levels = _pad(xp, resize(xp, page, size, shrink=shrink), padded)
    planes = levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)
    tensor = xp.empty((1, 3, padded[1], padded[0]), np.float32)
    factor, offset = scaling(xp, taken)
    tensor[0] = planes * factor[:, None, None] - offset[:, None, None]
    return tensor


def scaling(xp: Any, taken: InputFormat) -> tuple[Array, Array]:
    """(3,) float32 each, of blue, green and red: shade * factor - offset is a value of the tensor."""
    mean, std = np.array(taken.mean), np.array(taken.std)
    return xp.asarray((1 / (255 * std)).astype(np.float32)), xp.asarray((mean / std).astype(np.float32))


def _pad(xp: Any, levels: Array, padded: tuple[int, int]) -> Array:
    """(h', w'[, 3]): the last row and column repeated."""
    for axis, (side, whole) in enumerate(zip(levels.shape[:2], padded[::-1], strict=True)):
        if whole > side:
            levels = xp.take(levels, xp.asarray(np.minimum(np.arange(whole), side - 1)), axis=axis)
    return levels


def resize(xp: Any, page: Array, size: tuple[int, int], *, shrink: bool) -> Array:
    """(h, w[, 3]) float32 whole gray levels; arguments as there."""
    return _shrink(xp, page, size) if shrink else _enlarge(xp, page, size)


def _shrink(xp: Any, page: Array, size: tuple[int, int]) -> Array:
    """Weighted sums of each output pixel's neighbours, first of rows and then of columns."""
    height, width = page.shape[:2]
    make = area_weights if size[1] <= height and size[0] <= width else mixed_weights
    rows = sum(_parts(xp, page, make([height], [size[1]], size[1]), 0, np.float32))
    return xp.rint(sum(_parts(xp, rows, make([width], [size[0]], size[0]), 1, np.float32)))


def _enlarge(xp: Any, page: Array, size: tuple[int, int]) -> Array:
    """Between neighbours in OpenCV's own fixed point, whose cut-off bits make one pixel in eight a level darker."""
    height, width = page.shape[:2]
    columns = sum(_parts(xp, page, linear_weights([width], [size[0]], size[0]), 1, np.int32))
    upper, lower = _parts(xp, columns >> 4, linear_weights([height], [size[1]], size[1]), 0, np.int32)
    return (((upper >> 16) + (lower >> 16) + 2) >> 2).astype(np.float32)


def _parts(xp: Any, pixels: Array, table: ResamplingWeights, axis: int, kind: type) -> list[Array]:
    """What each of a few neighbours along an axis gives to the output: a gather and a product for each of them."""
    shape = [-1 if number == axis else 1 for number in range(pixels.ndim)]
    weights = table.weights if kind is np.float32 else np.rint(table.weights * np.float32(FIXED)).astype(kind)
    return [
        xp.take(pixels, xp.asarray(places), axis=axis) * xp.asarray(share).reshape(shape)
        for places, share in zip(_columns(table.places), _columns(weights), strict=True)
    ]


def _columns(table: NDArray[Any]) -> list[NDArray[Any]]:
    """The (count,) columns of a table (1, count, k)."""
    return [np.ascontiguousarray(table[0, :, column]) for column in range(table.shape[2])]
