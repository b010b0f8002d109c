"""Resizes pages to the detector's input and crops lines on the GPU; results are within one gray level of OpenCV's.

Resizing is separable: an output pixel is a weighted sum of a few neighbours along y, then along x. The small tables of
weights are computed in memory and applied on the GPU. All lines of a batch are cropped at once, each as
`imaging.geometry.crop` does: the line's homography maps each crop pixel to a point between four pixels of the page. A
line much larger than its crop is sampled at its own size and then averaged, with several samples per pixel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocrsvc.engines.ppocr.gpu.arrays import Array, ArrayBackend
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat, find_noisy_ground
from ocrsvc.imaging.geometry import Quad

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResamplingWeights:
    """For each output pixel along N axes, the indices of its source pixels and their weights."""

    places: NDArray[np.int64]  # (N, count, k) indices of source pixels
    weights: NDArray[np.float32]  # (N, count, k); the k weights of a pixel sum to 1


def area_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """INTER_AREA weights that shrink N axes from `sources` to `targets` pixels, padded to `count` entries per axis."""
    source = np.asarray(sources, np.float64)[:, None]
    scale = source / np.asarray(targets, np.float64)[:, None]
    low = np.arange(count) * scale
    places = np.floor(low)[..., None] + np.arange(source_pixels_for(scale).max(), dtype=np.float64)
    covered = np.minimum(places + 1, (low + scale)[..., None]) - np.maximum(places, low[..., None])
    return _clipped(places, np.clip(covered, 0, None) / scale[..., None], source)


def source_pixels_for(scale: ArrayLike) -> NDArray[np.int64]:
    """Number of source pixels that an output pixel `scale` source pixels wide can touch; 1 for scale 1."""
    return np.where(np.equal(scale, 1), 1, np.ceil(scale) + 1).astype(np.int64)


def linear_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """Weights of INTER_LINEAR between the two nearest pixel centres. Arguments as for `area_weights`."""
    source = np.asarray(sources, np.float64)[:, None]
    scale = source / np.asarray(targets, np.float64)[:, None]
    at = np.clip((np.arange(count) + 0.5) * scale - 0.5, 0, source - 1)
    return _between(np.floor(at), at - np.floor(at), source)


def mixed_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """Weights of INTER_AREA as OpenCV computes them if it enlarges one of the axes. Arguments as for `area_weights`."""
    source = np.asarray(sources, np.float64)[:, None]
    target = np.asarray(targets, np.float64)[:, None]
    index = np.arange(count, dtype=np.float64)
    # Not source / target: because of rounding, that would step to the next source pixel earlier than OpenCV.
    first = np.floor(index * (1 / (target / source)))
    share = (index + 1) - (first + 1) * (target / source)
    return _between(first, np.where(share <= 0, 0, share - np.floor(share)), source)


def _between(first: Values, share: Values, source: Values) -> ResamplingWeights:
    return _clipped(np.stack([first, first + 1], axis=-1), np.stack([1 - share, share], axis=-1), source)


def _clipped(places: Values, weights: Values, source: Values) -> ResamplingWeights:
    return ResamplingWeights(np.clip(places, 0, source[..., None] - 1).astype(np.int64), weights.astype(np.float32))


FIXED: Final = 2048  # the value 1 in OpenCV's fixed-point arithmetic


def detector_input(
    xp: Any,
    page: Array,
    size: tuple[int, int],
    padded: tuple[int, int],
    *,
    shrink: bool,
    taken: InputFormat = USUAL,
    window: tuple[slice, slice] = (slice(None), slice(None)),
) -> Array:
    """Convert a (H, W[, 3]) uint8 page to the model's (1, 3, h', w') float32; gray is copied to all channels.

    Resizes the page to `size`, (w, h), by INTER_AREA if `shrink`, else INTER_LINEAR, and pads the rows and columns in
    `window` to `padded`, (w', h'), by repeating the last row and column.
    """
    levels = resize(xp, page, size, shrink=shrink)[window]
    for axis, (side, whole) in enumerate(zip(levels.shape[:2], padded[::-1], strict=True)):
        if whole > side:
            levels = xp.take(levels, xp.asarray(np.minimum(np.arange(whole), side - 1)), axis=axis)
    planes = levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)
    tensor = xp.empty((1, 3, padded[1], padded[0]), np.float32)
    factor, offset = scaling(xp, taken)
    tensor[0] = planes * factor[:, None, None] - offset[:, None, None]
    return tensor


def scaling(xp: Any, input_format: InputFormat) -> tuple[Array, Array]:
    """(3,) float32 factor and offset for blue, green and red: the model's input is pixel * factor - offset."""
    mean, std = np.array(input_format.mean), np.array(input_format.std)
    return xp.asarray((1 / (255 * std)).astype(np.float32)), xp.asarray((mean / std).astype(np.float32))


def resize(xp: Any, page: Array, size: tuple[int, int], *, shrink: bool) -> Array:
    """Resize a page to (h, w[, 3]) float32, rounded to whole gray levels; arguments as for `detector_input`."""
    height, width = page.shape[:2]
    if shrink:
        make = area_weights if size[1] <= height and size[0] <= width else mixed_weights
        rows = sum(_parts(xp, page, make([height], [size[1]], size[1]), 0, np.float32))
        return xp.rint(sum(_parts(xp, rows, make([width], [size[0]], size[0]), 1, np.float32)))
    # Fixed-point arithmetic, as in OpenCV, whose truncation makes one pixel in eight darker by one gray level.
    columns = sum(_parts(xp, page, linear_weights([width], [size[0]], size[0]), 1, np.int32))
    upper, lower = _parts(xp, columns >> 4, linear_weights([height], [size[1]], size[1]), 0, np.int32)
    return (((upper >> 16) + (lower >> 16) + 2) >> 2).astype(np.float32)


def _parts(xp: Any, pixels: Array, table: ResamplingWeights, axis: int, kind: type) -> list[Array]:
    """The terms of the weighted sum along an axis: the k-th is each output pixel's k-th source times its weight."""
    shape = [-1 if number == axis else 1 for number in range(pixels.ndim)]
    weights = table.weights if kind is np.float32 else np.rint(table.weights * np.float32(FIXED)).astype(kind)
    columns = zip(table.places[0].T.copy(), weights[0].T.copy(), strict=True)
    return [xp.take(pixels, xp.asarray(at), axis=axis) * xp.asarray(share).reshape(shape) for at, share in columns]


Sizes = NDArray[np.int64]

_LEVELS: Final = 256


def crop_lines(
    backend: ArrayBackend, page: Array, quads: Sequence[Quad], widths: Sequence[int], padded: int, taken: InputFormat
) -> Array:
    """Crop lines of a page on the GPU to the recognizer's input (N, 3, height, padded) float32, 0 after each line."""
    xp, height = backend.xp, taken.height_px
    factor, offset = scaling(xp, taken)
    lines = xp.zeros((len(quads), 3, height, padded), np.float32)
    for group in _groups(np.stack(quads), np.asarray(widths, np.int64), padded, height):
        inside = xp.arange(padded) < xp.asarray(group.widths)[:, None]
        levels = _with_level_grounds(backend, _cut(xp, page, group), inside)
        scaled = xp.where(inside[:, None, :, None], levels * factor - offset, np.float32(0))
        lines[xp.asarray(group.rows)] = scaled.transpose(0, 3, 1, 2)
    return lines


def _with_level_grounds(backend: ArrayBackend, levels: Array, inside: Array) -> Array:
    """Remove background noise from lines (n, height, padded, channels), as `network_input.level_ground` does."""
    xp, (count, _, _, channels) = backend.xp, levels.shape
    # Histogram of each line: a counter per gray level, and one for pixels of the padding, which is ignored.
    counters = xp.where(inside[:, None, :, None], levels, np.float32(_LEVELS)).astype(np.int64)
    counters = counters + ((_LEVELS + 1) * xp.arange(count * channels)).reshape(count, 1, 1, channels)
    counts = backend.download(xp.bincount(counters.ravel(), minlength=count * channels * (_LEVELS + 1)))
    grounds = [find_noisy_ground(of_line[:, :_LEVELS]) for of_line in counts.reshape(count, channels, -1)]
    noisy = [(row, ground) for row, ground in enumerate(grounds) if ground is not None]
    if not noisy:
        return levels
    rows = xp.asarray(np.array([row for row, _ in noisy]))
    tones = backend.upload(np.array([tones for _, (tones, _) in noisy], np.float32))[:, None, None, :]
    reach = backend.upload(np.array([reach for _, (_, reach) in noisy], np.float32))[:, None, None, None]
    lines = levels[rows]
    near = (xp.abs(lines - tones) <= reach).all(axis=3, keepdims=True)
    levels[rows] = xp.where(near, tones, lines)
    return levels


def samples(quads: Sequence[Quad], widths: Sequence[int], height: int) -> Sizes:
    """(N,) number of samples per crop pixel: 1, or more if the line on the page is much larger than its crop."""
    crop_widths = np.asarray(widths, np.int64)
    own_widths, own_heights = own_sizes(np.stack(quads), crop_widths, height)
    return source_pixels_for(own_widths / crop_widths) * source_pixels_for(own_heights / height)


@dataclass(frozen=True, slots=True)
class _Group:
    """Lines of a batch that are sampled with the same number of samples per crop pixel."""

    rows: NDArray[np.int64]  # (n,) indices of the lines in the batch
    widths: Sizes  # (n,) in pixels
    matrices: NDArray[np.float64]  # (n, 9) homographies that map a line at its sampling size (`own_sizes`) to the page
    across: ResamplingWeights  # weights that shrink the line's height from the sampling size to the crop's
    along: ResamplingWeights  # weights that shrink the line's width from the sampling size to the crop's


def _groups(quads: NDArray[np.float32], widths: Sizes, padded: int, height: int) -> Iterator[_Group]:
    """Group the lines of a batch by their number of samples per pixel, which is 1 for most lines."""
    own_widths, own_heights = own_sizes(quads, widths, height)
    matrices = homographies(quads, own_widths, own_heights)
    mixed = (own_widths < widths) | (own_heights < height)
    kinds = np.stack([mixed, source_pixels_for(own_widths / widths), source_pixels_for(own_heights / height)], axis=1)
    for kind in np.unique(kinds, axis=0):
        rows = np.flatnonzero((kinds == kind).all(axis=1))
        make = mixed_weights if kind[0] else area_weights
        across = make(own_heights[rows], np.full(len(rows), height), height)
        along = make(own_widths[rows], widths[rows], padded)
        yield _Group(rows, widths[rows], matrices[rows], across, along)


def own_sizes(quads: NDArray[np.float32], widths: Sizes, height: int) -> tuple[Sizes, Sizes]:
    """(N,) widths and heights in pixels at which lines are sampled, as in `imaging.geometry.crop`."""
    edges = np.roll(quads, -1, axis=1) - quads
    top, right, bottom, left = np.hypot(edges[..., 0], edges[..., 1]).astype(np.float64).T
    along, across = (top + bottom) / 2, (left + right) / 2
    large = (across > 2 * height) | (along > 2 * widths)
    own_widths = np.where(large, np.maximum(1, np.rint(along)), widths)
    own_heights = np.where(large, np.maximum(1, np.rint(across)), height)
    return own_widths.astype(np.int64), own_heights.astype(np.int64)


def homographies(quads: NDArray[np.float32], widths: Sizes, heights: Sizes) -> NDArray[np.float64]:
    """(N, 9) homographies, row by row, that map rectangles of width x height to the lines' quads on the page."""
    # P. Heckbert, "Fundamentals of Texture Mapping and Image Warping" (1989), 2.2.3: from the unit square to a quad.
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = (quads[:, corner].T.astype(np.float64) for corner in range(4))
    bent_x, bent_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    determinant = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    # A quad without area (determinant 0) gets no perspective; its pixels do not matter.
    divisor = np.where(determinant == 0, np.inf, determinant)
    g = (bent_x * (y3 - y2) - (x3 - x2) * bent_y) / divisor
    h = ((x1 - x2) * bent_y - bent_x * (y1 - y2)) / divisor
    one = np.ones_like(g)
    unit = np.stack([x1 - x0 + g * x1, x3 - x0 + h * x3, x0, y1 - y0 + g * y1, y3 - y0 + h * y3, y0, g, h, one], axis=1)
    return cast("NDArray[np.float64]", unit / np.stack([widths, heights, one] * 3, axis=1))


def _cut(xp: Any, page: Array, group: _Group) -> Array:
    """Crop a group of lines to (n, height, padded, channels) float32, rounded to whole gray levels."""
    matrices = xp.asarray(group.matrices)
    across, along = ([xp.asarray(part) for part in (axis.places, axis.weights)] for axis in (group.across, group.along))
    total = None
    for down, right in product(range(across[0].shape[2]), range(along[0].shape[2])):
        x, y = _places(along[0][:, None, :, right], across[0][:, :, None, down], matrices)
        weight = across[1][:, :, None, down, None] * along[1][:, None, :, right, None]
        part = _sample(xp, page, x, y) * weight
        total = part if total is None else total + part
    return xp.rint(total)


def _places(u: Array, v: Array, matrices: Array) -> tuple[Array, Array]:
    """Map columns u (n, 1, w) and rows v (n, h, 1) of lines to x and y (n, h, w) on the page."""
    a, b, c, d, e, f, g, h, i = (matrices[:, number, None, None] for number in range(9))
    depth = g * u + h * v + i
    return (a * u + b * v + c) / depth, (d * u + e * v + f) / depth


def _sample(xp: Any, page: Array, x: Array, y: Array) -> Array:
    """Interpolate the page at (x, y), rounded to whole gray levels; outside, the border is repeated."""
    height, width = page.shape[:2]
    pixels = page.reshape(height * width, -1)
    left, far_left, right = _neighbours(xp, x, width)
    top, far_top, bottom = _neighbours(xp, y, height)
    upper, lower = (
        _mix(xp.take(pixels, row * width + left, axis=0), xp.take(pixels, row * width + right, axis=0), far_left)
        for row in (top, bottom)
    )
    return xp.rint(_mix(upper, lower, far_top))


def _neighbours(xp: Any, at: Array, size: int) -> tuple[Array, Array, Array]:
    """For each position: index of the pixel before it, weight of the pixel after it, index of the pixel after it."""
    # A self-intersecting quad maps to infinity, which cannot be converted to an index.
    at = xp.clip(xp.nan_to_num(at), -1, size)
    before = xp.floor(at)
    first, second = (xp.clip(place, 0, size - 1).astype(np.int64) for place in (before, before + 1))
    return first, (at - before).astype(np.float32)[..., None], second


def _mix(one: Array, other: Array, share: Array) -> Array:
    return one * (np.float32(1) - share) + other * share
