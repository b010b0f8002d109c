"""Resizes a page on the GPU to the detector's input, as OpenCV does it, to within a gray level.

A resize is separable: each output pixel is a weighted sum of a few neighbours along y, then along x. The tables of
weights are small and made in memory; they may be applied on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocrsvc.engines.ppocr.gpu.arrays import Array
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat


@dataclass(frozen=True, slots=True)
class ResamplingWeights:
    """The neighbours of each of `count` output pixels, for each of N axes."""

    places: NDArray[np.int64]  # (N, count, k) int64, pixels of the source
    weights: NDArray[np.float32]  # (N, count, k) float32; each row sums to 1


def area_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """INTER_AREA on axes of (N,) `sources` that become `targets` <= sources pixels: means over what a pixel covers.

    Output pixels up to `count` that lie beyond an axis's target mean nothing.
    """
    source = np.asarray(sources, np.float64)[:, None]
    scale = source / np.asarray(targets, np.float64)[:, None]
    low = np.arange(count) * scale
    places = np.floor(low)[..., None] + np.arange(source_pixels_for(scale).max(), dtype=np.float64)
    covered = np.minimum(places + 1, (low + scale)[..., None]) - np.maximum(places, low[..., None])
    return _clipped(places, np.clip(covered, 0, None) / scale[..., None], source)


def source_pixels_for(scale: ArrayLike) -> NDArray[np.int64]:
    """Pixels that a pixel of that many pixels' size can touch; one, where nothing is resized."""
    return np.where(np.equal(scale, 1), 1, np.ceil(scale) + 1).astype(np.int64)


def linear_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """INTER_LINEAR: between the two nearest pixel centres. Arguments as for `area_weights`."""
    source = np.asarray(sources, np.float64)[:, None]
    scale = source / np.asarray(targets, np.float64)[:, None]
    at = np.clip((np.arange(count) + 0.5) * scale - 0.5, 0, source - 1)
    return _between(np.floor(at), at - np.floor(at), source)


def mixed_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """INTER_AREA where the other axis, or this one, is enlarged: steps with narrow ramps. Arguments as there."""
    source = np.asarray(sources, np.float64)[:, None]
    target = np.asarray(targets, np.float64)[:, None]
    index = np.arange(count, dtype=np.float64)
    # Not source / target, which may be larger by a bit and would step to the next pixel where OpenCV does not yet.
    first = np.floor(index * (1 / (target / source)))
    share = (index + 1) - (first + 1) * (target / source)
    return _between(first, np.where(share <= 0, 0, share - np.floor(share)), source)


def _between(first: NDArray[np.float64], share: NDArray[np.float64], source: NDArray[np.float64]) -> ResamplingWeights:
    return _clipped(np.stack([first, first + 1], axis=-1), np.stack([1 - share, share], axis=-1), source)


def _clipped(
    places: NDArray[np.float64], weights: NDArray[np.float64], source: NDArray[np.float64]
) -> ResamplingWeights:
    return ResamplingWeights(np.clip(places, 0, source[..., None] - 1).astype(np.int64), weights.astype(np.float32))


FIXED: Final = 2048  # one, in OpenCV's fixed point


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

    The page is resized to `size`, (w, h), by INTER_AREA to `shrink` and else INTER_LINEAR, and lies at the top left of
    `padded`, (w', h'), with its last row and column repeated.
    """
    levels = resize(xp, page, size, shrink=shrink)
    for axis, (side, whole) in enumerate(zip(levels.shape[:2], padded[::-1], strict=True)):
        if whole > side:
            levels = xp.take(levels, xp.asarray(np.minimum(np.arange(whole), side - 1)), axis=axis)
    planes = levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)
    tensor = xp.empty((1, 3, padded[1], padded[0]), np.float32)
    factor, offset = scaling(xp, taken)
    tensor[0] = planes * factor[:, None, None] - offset[:, None, None]
    return tensor


def scaling(xp: Any, taken: InputFormat) -> tuple[Array, Array]:
    """(3,) float32 each, of blue, green and red: shade * factor - offset is a value of the tensor."""
    mean, std = np.array(taken.mean), np.array(taken.std)
    return xp.asarray((1 / (255 * std)).astype(np.float32)), xp.asarray((mean / std).astype(np.float32))


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
