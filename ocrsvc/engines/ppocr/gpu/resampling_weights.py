"""Tables of resampling weights: which source pixels make each output pixel, and with which weight, as in OpenCV.

A resize is separable: each output pixel is a weighted sum of a few neighbours along y, then along x. These tables are
small and made in memory; they may be applied on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class ResamplingWeights:
    """The neighbours of each of `count` output pixels, for each of N axes.

    Attributes:
        places: (N, count, k) int64, pixels of the source.
        weights: (N, count, k) float32; each row sums to 1.
    """

    places: NDArray[np.int64]
    weights: NDArray[np.float32]


def area_weights(sources: ArrayLike, targets: ArrayLike, count: int) -> ResamplingWeights:
    """INTER_AREA on axes of `sources` pixels that become `targets` <= sources: the mean over what a pixel covers.

    Args:
        sources, targets: (N,) pixels.
        count: Output pixels in the table; those beyond an axis's target mean nothing.
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
