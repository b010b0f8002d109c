"""Puts the lines of a page into reading order, column after column and row by row, without a model.

A recursive X-Y cut (G. Nagy, S. Seth, "Hierarchical representation of optically scanned documents", 1984) along white
gutters that need not be as tall as the page: what stands above a gutter is read first, then the columns on both sides
of it, then what stands below. `columns.py` says which gutters part columns; everything else is read row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.reading_order.columns import HEADER, Gutter, flow, is_table, parts_columns, tall_gutters
from ocrsvc.imaging.reading_order.row_cells import BLOCK_GAP, blocks_beside, records_of, rows_with_cells, ruled_rows
from ocrsvc.imaging.reading_order.ruled_cells import ruled_blocks, with_ruled_blocks
from ocrsvc.imaging.reading_order.text_rows import (
    Indices,
    Numbers,
    TextLines,
    as_text_lines,
    median,
    parts_between,
    top_down,
)

DEEPEST = 12  # cuts in cuts
BAND = 1.5  # white stripe across a part, in line heights, along which it may be cut
WIDE_BAND = 5.0  # the same, along which it is cut before anything else
ACROSS = 0.6  # of the width of a part a rule is long that cuts it
NEAR_RULE = 2.0  # line heights from it within which nothing is outside of it

Blocks = list[list[int]]
"""Lines that are read without leaving them (a column, a table, a heading), in reading order."""


def reading_order(
    quads: NDArray[np.float32],
    texts: Sequence[str] | None = None,
    rules: NDArray[np.float32] | None = None,
    *,
    from_right: bool = False,
) -> list[int]:
    """Indices of N lines in reading order.

    `quads` are (N, 4, 2) corners of level lines, in pixels, origin top left, clockwise from where reading starts, and
    `rules` (M, 4, 2) those of ruled lines, as `find_rules` gives them. Without `texts` short lines count as numbers.
    With `from_right` columns, and the lines of a row, are read from right to left, as pages of Arabic are.
    """
    if not len(quads):
        return []
    # A page that is read from right to left is the mirror image of one that is read from left to right.
    mirror = np.array((-1 if from_right else 1, 1))
    low, high = (quads * mirror).min(axis=1), (quads * mirror).max(axis=1)
    vertical, horizontal = _by_direction((np.empty((0, 4, 2)) if rules is None else rules) * mirror)
    lines = as_text_lines(np.concatenate([low, high], axis=1), texts, horizontal)
    blocks = ruled_blocks(lines, vertical)
    return with_ruled_blocks(lines, blocks, _in_order) if blocks else _in_order(lines, np.arange(len(quads)))


def _by_direction(rules: Numbers) -> tuple[Numbers, Numbers]:
    """(M, 3) place, begin and end of the vertical ones of some rules (N, 4, 2), and of the horizontal ones."""
    low, high = rules.min(axis=1), rules.max(axis=1)
    is_upright = high[:, 1] - low[:, 1] > high[:, 0] - low[:, 0]
    middle = (low + high) / 2
    vertical = np.column_stack([middle[:, 0], low[:, 1], high[:, 1]])[is_upright]
    return vertical, np.column_stack([middle[:, 1], low[:, 0], high[:, 0]])[~is_upright]


def _in_order(lines: TextLines, here: Indices) -> list[int]:
    return [line for block in _region(lines, here, DEEPEST) for line in block]


def _region(lines: TextLines, here: Indices, deeper: int) -> Blocks:
    """The blocks of a region: first between rules and white stripes as wide as it, then along its tallest gutter."""
    ruled = _parts_between_rules(lines, here) if deeper else [here]
    if len(ruled) == 1:
        return [block for part in parts_between(lines, here, WIDE_BAND) for block in _part(lines, part, deeper)]
    blocks: Blocks = []
    for part, cells in zip(ruled, [[], *ruled_rows(lines, ruled[1:-1]), []], strict=True):
        if cells:
            blocks += [top_down(lines, cell).tolist() for cell in cells]
        else:
            blocks += _region(lines, part, deeper - 1)
    return blocks


def _parts_between_rules(lines: TextLines, here: Indices) -> list[Indices]:
    """The lines `here`, from top to bottom, cut at each horizontal rule across them."""
    if not len(lines.rules) or len(here) < 2:
        return [here]
    order = top_down(lines, here)
    size, middles = median(lines.height[here]), lines.middle[order]
    lefts, rights = lines.left[order], lines.right[order]
    cuts = []
    for place, left, right in lines.rules.tolist():
        cut = int(np.searchsorted(middles, place))
        if 0 < cut < len(order) and right - left >= ACROSS * (rights.max() - lefts.min()):
            near = np.abs(middles - place) < NEAR_RULE * size
            near[cut - 1 : cut + 1] = True
            if lefts[near].min() > left - size and rights[near].max() < right + size:
                cuts.append(cut)
    return np.split(order, sorted(set(cuts)))


def _part(lines: TextLines, here: Indices, deeper: int) -> Blocks:
    """The blocks of a part that no rule cuts: along its tallest gutter that parts columns, or its white stripes."""
    ordered = top_down(lines, here)
    gutters = tall_gutters(lines, ordered) if deeper else []
    gutter = next((gutter for gutter in gutters if parts_columns(lines, gutter)), None)
    bands = parts_between(lines, here, BAND) if deeper else [here]
    if gutter is None or _parts_rows(lines, gutter, ordered[gutter.first : gutter.last]):
        cut = [_part(lines, band, deeper - 1) for band in bands] if len(bands) > 1 else []
        if any(len(blocks) > 1 for blocks in cut):
            return [block for blocks in cut for block in blocks]
        return [[line for row in rows_with_cells(lines, here) for line in row]]
    parts = _joined(lines, bands, ordered[gutter.first : gutter.last])
    if len(parts) > 1:
        return [block for part in parts for block in _part(lines, part, deeper - 1)]
    above, below = ordered[: gutter.first], ordered[gutter.last :]
    regions = (above, gutter.left, gutter.right, below)
    return [block for region in regions for block in _region(lines, region, deeper - 1)]


def _parts_rows(lines: TextLines, gutter: Gutter, beside: Indices) -> bool:
    """Whether what is beside a gutter is rows of blocks, such as cards, or of cells, or has a table in a band of it."""
    if flow(lines, gutter.left, gutter.right):
        return False
    if records_of(lines, beside):
        return True
    rows = parts_between(lines, beside, BLOCK_GAP)
    if len(rows) > 1 and all(blocks_beside(lines, row) for row in rows):
        return True
    bands = parts_between(lines, beside, HEADER)
    sides = [(np.intersect1d(band, gutter.left), np.intersect1d(band, gutter.right)) for band in bands]
    return len(bands) > 1 and any(is_table(lines, *of_band) for of_band in sides)


def _joined(lines: TextLines, bands: list[Indices], beside: Indices) -> list[Indices]:
    """The bands, those that a gutter passes made one."""
    tops = [lines.top[band[0]] for band in bands]
    first = int(np.searchsorted(tops, lines.top[beside].min(), "right")) - 1
    last = int(np.searchsorted(tops, lines.top[beside].max(), "right"))
    return [*bands[:first], np.concatenate(bands[first:last]), *bands[last:]]
