"""Puts the lines of a page into reading order, column by column and row by row, without a model.

A recursive X-Y cut (G. Nagy, S. Seth, "Hierarchical representation of optically scanned documents", 1984) along white
gutters that may be shorter than the page. `columns.py` decides which gutters separate columns; others are ignored.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.reading_order.columns import HEADER, Gutter, flow, is_table, parts_columns, tall_gutters
from ocrsvc.imaging.reading_order.row_cells import BLOCK_GAP, blocks_beside, records_of, rows_with_cells, ruled_rows
from ocrsvc.imaging.reading_order.ruled_cells import ruled_blocks, with_ruled_blocks
from ocrsvc.imaging.reading_order.text_rows import Indices, TextLines, as_text_lines, median, parts_between, top_down

DEEPEST = 12  # most nested cuts
BAND = 1.5  # a region may be divided at a white stripe of this height, in line heights
WIDE_BAND = 5.0  # a region is divided at a white stripe of this height, in line heights, before any gutter
ACROSS = 0.6  # a region is divided at a ruled line that spans at least this share of its width
NEAR_RULE = 2.0  # a ruled line divides a region if no text within this many line heights reaches beyond its ends

Blocks = list[list[int]]  # groups of lines that are read one after the other, in reading order


def reading_order(
    quads: NDArray[np.float32],
    texts: Sequence[str] | None = None,
    rules: NDArray[np.float32] | None = None,
    *,
    from_right: bool = False,
) -> list[int]:
    """Indices of N lines in reading order; `from_right` reads columns and rows from right to left, as in Arabic.

    `quads` are (N, 4, 2) corners of level lines, in pixels, origin top left, clockwise from where reading starts;
    `rules` (M, 4, 2) are ruled lines from `find_rules`. Without `texts`, short lines count as numbers.
    """
    if not len(quads):
        return []
    # A right-to-left page is mirrored, and then read like a left-to-right one.
    mirror = np.array((-1 if from_right else 1, 1))
    quads, rules = quads * mirror, (np.empty((0, 4, 2)) if rules is None else rules) * mirror
    frames = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
    low, high = rules.min(axis=1), rules.max(axis=1)
    middle, is_upright = (low + high) / 2, high[:, 1] - low[:, 1] > high[:, 0] - low[:, 0]
    # Ruled lines as (position, begin, end): x, top, bottom of vertical ones; y, left, right of horizontal ones.
    vertical = np.column_stack([middle[:, 0], low[:, 1], high[:, 1]])[is_upright]
    horizontal = np.column_stack([middle[:, 1], low[:, 0], high[:, 0]])[~is_upright]
    lines = as_text_lines(frames, texts, horizontal)
    blocks = ruled_blocks(lines, vertical)
    return with_ruled_blocks(lines, blocks, _in_order) if blocks else _in_order(lines, np.arange(len(quads)))


def _in_order(lines: TextLines, here: Indices) -> list[int]:
    return [line for block in _region(lines, here, DEEPEST) for line in block]


def _region(lines: TextLines, here: Indices, deeper: int) -> Blocks:
    """The blocks of a region, cut first at ruled lines and white stripes across it, then at its tallest gutter."""
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
    """Divide the lines `here`, from top to bottom, at each horizontal ruled line across them."""
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
    """The blocks of a page part without ruled lines, cut at its tallest gutter between columns or at white stripes."""
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
    """Whether the lines left and right of a gutter are cards or table cells, which must be read row by row."""
    if flow(lines, gutter.left, gutter.right):
        return False
    if records_of(lines, beside):
        return True
    rows = parts_between(lines, beside, BLOCK_GAP)
    if len(rows) > 1 and all(blocks_beside(lines, row) for row in rows):
        return True
    bands = parts_between(lines, beside, HEADER)
    sides = ([np.intersect1d(band, side) for side in (gutter.left, gutter.right)] for band in bands)
    return len(bands) > 1 and any(is_table(lines, *of_band) for of_band in sides)


def _joined(lines: TextLines, bands: list[Indices], beside: Indices) -> list[Indices]:
    """Merge the bands (groups of lines, top to bottom) that a gutter crosses; `beside` are the lines on its sides."""
    tops = [lines.top[band[0]] for band in bands]
    first = int(np.searchsorted(tops, lines.top[beside].min(), "right")) - 1
    last = int(np.searchsorted(tops, lines.top[beside].max(), "right"))
    return [*bands[:first], np.concatenate(bands[first:last]), *bands[last:]]
