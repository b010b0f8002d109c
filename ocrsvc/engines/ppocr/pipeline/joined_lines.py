"""Splits lines that the detector joined across the gutter between two columns.

A line is split where it has a wide blank that ends at the left edge of other nearby lines. A space between two words is
rarely that wide and rarely at a column's edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.outline import Outline, cut, ends, extent, is_curved, parts_of
from ocrsvc.imaging.reading_order.leveling import level_quads
from ocrsvc.results import Pixels

MIN_GUTTER: Final = 0.9  # width of a gutter in line heights; spaces between words have a third of it
EDGE_TOLERANCE: Final = 0.4  # tolerance of a column's left edge, in line heights
MAX_DISTANCE: Final = 10.0  # vertical distance of nearby lines, in line heights
MIN_BESIDE: Final = 2.0  # length of text on each side of a gutter, in line heights
MIN_LINES: Final = 3  # lines that begin at the edge, joined ones included
MARGIN: Final = 0.1  # white that a part keeps at its end, in line heights
INK_CONTRAST: Final = 0.3  # contrast of a pixel column with ink, as a share of the line's strongest
MAX_LINES: Final = 1000  # pages with more lines are not split
MAX_CUTS: Final = 200  # lines examined per page

Numbers = NDArray[np.float64]


def split_joined_lines(pixels: Pixels, outlines: Sequence[Outline]) -> list[Outline]:
    """Split the lines that cross a gutter; pixels are (H, W[, 3])."""
    if not 1 < len(outlines) <= MAX_LINES:
        return list(outlines)
    level = level_quads(np.array([ends(outline) for outline in outlines], np.float32)).astype(np.float64)
    left, right = level[:, :, 0].min(axis=1), level[:, :, 0].max(axis=1)
    middle, height = level[:, :, 1].mean(axis=1), np.ptp(level[:, :, 1], axis=1)
    size = float(np.median(height))
    inside = (left > left[:, None] + MIN_BESIDE * size) & (left < right[:, None] - MIN_BESIDE * size)
    inside &= np.abs(middle - middle[:, None]) < MAX_DISTANCE * size
    joined = {
        line: _whites(pixels, outlines[line], float(left[line]), float(right[line]), size)
        for line in np.flatnonzero(inside.any(axis=1))[:MAX_CUTS].tolist()
        if not is_curved(outlines[line])
    }
    begins = np.concatenate([left, *(white[:, 1] for white in joined.values())])
    heights = np.concatenate([middle, *(np.full(len(white), middle[line]) for line, white in joined.items())])
    parted: list[Outline] = []
    for line, outline in enumerate(outlines):
        cuts = []
        for white in joined.get(line, np.empty((0, 2))):
            is_near = np.abs(heights - middle[line]) < MAX_DISTANCE * size
            alike = (np.abs(begins - white[1]) < EDGE_TOLERANCE * size) & is_near
            if alike.sum() >= MIN_LINES and alike[: len(left)].any():
                cuts.append((white - left[line]) / (right[line] - left[line]))
        parted += _parts(outline, cuts, MARGIN * size / (right[line] - left[line])) if cuts else [outline]
    return parted


def _whites(pixels: Pixels, outline: Outline, left: float, right: float, size: float) -> Numbers:
    """(N, 2) left and right ends of the wide blanks of a line, in coordinates of the levelled page."""
    width, height = (max(1, round(side)) for side in extent(outline))
    crop = cut(pixels, outline, width, height)
    rows = crop[height // 6 : height - height // 6]
    columns = rows.reshape(len(rows), width, -1)
    contrast = (columns.max(axis=0).astype(np.int16) - columns.min(axis=0)).max(axis=-1)
    inked = np.flatnonzero(contrast > INK_CONTRAST * contrast.max())
    wide = np.flatnonzero(np.diff(inked) > MIN_GUTTER * size)
    return left + (right - left) / width * np.stack([inked[wide] + 1.0, inked[wide + 1]], axis=1)


def _parts(outline: Outline, whites: Sequence[Numbers], margin: float) -> list[Outline]:
    """Cut an outline at blanks given as shares of its length."""
    begins = [0.0, *(float(white[1]) - margin for white in whites)]
    stops = [*(float(white[0]) + margin for white in whites), 1.0]
    places = np.array([[begin, 0.0, stop, 1.0] for begin, stop in zip(begins, stops, strict=True)])
    return list(parts_of(outline, places))
