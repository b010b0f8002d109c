"""Puts the lines of a page into reading order, column after column and row by row, without a model.

A recursive X-Y cut (G. Nagy, S. Seth, "Hierarchical representation of optically scanned documents", 1984) along white
gutters that need not be as tall as the page: what stands above a gutter is read first, then the columns on both sides
of it, then what stands below. `columns.py` says which gutters part columns; everything else is read row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.reading_order.blocks_beside import BLOCK_GAP, blocks_beside
from ocrsvc.imaging.reading_order.columns import parts_columns, reads_across
from ocrsvc.imaging.reading_order.gutters import HEADER, Gutter, tall_gutters
from ocrsvc.imaging.reading_order.row_cells import rows_with_cells
from ocrsvc.imaging.reading_order.ruled_cells import ruled_blocks
from ocrsvc.imaging.reading_order.ruled_order import with_ruled_blocks
from ocrsvc.imaging.reading_order.text_rows import Indices, TextLines, as_text_lines, median, parts_between

DEEPEST = 12  # cuts in cuts
BAND = 1.5  # white stripe across a part, in line heights, along which it may be cut
COLUMN_END = 2.5  # the same across two columns, that ends both
WIDE_BAND = 5.0  # the same, along which it is cut before anything else
TABLE_LINES = 3  # on each side of a gutter that make a table beside other bands
NUMBERS = 0.5  # of the lines of one side of it


def reading_order(
    quads: NDArray[np.float32],
    texts: Sequence[str] | None = None,
    rules: NDArray[np.float32] | None = None,
    *,
    from_right: bool = False,
) -> list[int]:
    """Indices of N lines in reading order; see `reading_blocks`."""
    return [line for block in reading_blocks(quads, texts, rules, from_right=from_right) for line in block]


def reading_blocks(
    quads: NDArray[np.float32],
    texts: Sequence[str] | None = None,
    rules: NDArray[np.float32] | None = None,
    *,
    from_right: bool = False,
) -> list[list[int]]:
    """Groups of lines that are read without leaving them (a column, a table, a heading), in reading order.

    Args:
        quads: (N, 4, 2) corners of level lines, in pixels, origin top left; clockwise from where reading starts.
        texts: What the N lines say. Without them short lines count as numbers.
        rules: (M, 4, 2) corners of ruled lines, level, as `find_rules` gives them.
        from_right: Columns, and the lines of a row, are read from right to left, as pages of Arabic are.

    Returns:
        Indices of lines: blocks in reading order, and the lines of each in reading order. Every line is in one block.
    """
    if not len(quads):
        return []
    if from_right:
        # Such a page is the mirror image of one that is read from left to right.
        quads, rules = quads * (-1, 1), None if rules is None else rules * (-1, 1)
    frames = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
    lines = as_text_lines(frames, texts)
    everything = np.arange(len(frames))
    tables = ruled_blocks(lines, rules) if rules is not None and len(rules) else []
    if not tables:
        return _region(lines, everything, DEEPEST)
    return with_ruled_blocks(lines, tables, lambda lines, here: _region(lines, here, DEEPEST))


def _region(lines: TextLines, here: Indices, deeper: int) -> list[list[int]]:
    """The blocks of a region: first between white stripes as wide as it, then along its tallest gutter."""
    return [block for part in parts_between(lines, here, WIDE_BAND) for block in _part(lines, part, deeper)]


def _part(lines: TextLines, here: Indices, deeper: int) -> list[list[int]]:
    ordered = here[np.argsort(lines.middle[here], kind="stable")]
    gutters = tall_gutters(lines, ordered) if deeper else []
    gutter = next((gutter for gutter in gutters if parts_columns(lines, gutter)), None)
    if gutter is not None and _parts_rows(lines, gutter, ordered[gutter.first : gutter.last]):
        gutter = None
    bands = parts_between(lines, here, BAND) if deeper else [here]
    if gutter is None:
        cut = [_part(lines, band, deeper - 1) for band in bands] if len(bands) > 1 else []
        if any(len(blocks) > 1 for blocks in cut):
            return [block for blocks in cut for block in blocks]
        return [[line for row in rows_with_cells(lines, here) for line in row]]
    beside = ordered[gutter.first : gutter.last]
    parts = _joined(lines, bands, beside)
    if len(parts) > 1:
        return [block for part in parts for block in _part(lines, part, deeper - 1)]
    above, below = ordered[: gutter.first], ordered[gutter.last :]
    return [
        *_region(lines, above, deeper - 1),
        *_columns(lines, gutter, beside, deeper - 1),
        *_region(lines, below, deeper - 1),
    ]


def _parts_rows(lines: TextLines, gutter: Gutter, beside: Indices) -> bool:
    """Whether white parts what is beside a gutter into rows of blocks, as cards are, or bands, one of them a table."""
    rows = parts_between(lines, beside, BLOCK_GAP)
    if len(rows) > 1 and all(blocks_beside(lines, row) for row in rows):
        return True
    bands = parts_between(lines, beside, HEADER)
    return len(bands) > 1 and any(
        _is_table(lines, band[is_left], band[~is_left])
        for band, is_left in ((band, np.isin(band, gutter.left)) for band in bands)
    )


def _is_table(lines: TextLines, left: Indices, right: Indices) -> bool:
    return (
        min(len(left), len(right)) >= TABLE_LINES
        and max(lines.is_number[left].mean(), lines.is_number[right].mean()) > NUMBERS
        and reads_across(lines, left, right)
    )


def _joined(lines: TextLines, bands: list[Indices], beside: Indices) -> list[Indices]:
    """The bands, those that a gutter passes made one."""
    tops = [lines.top[band[0]] for band in bands]
    first = int(np.searchsorted(tops, lines.top[beside].min(), "right")) - 1
    last = int(np.searchsorted(tops, lines.top[beside].max(), "right"))
    return [*bands[:first], np.concatenate(bands[first:last]), *bands[last:]]


def _columns(lines: TextLines, gutter: Gutter, beside: Indices, deeper: int) -> list[list[int]]:
    """Left and right of a gutter, from stripe to stripe; headers and tables between columns are read across."""
    blocks: list[list[int]] = []
    for left, right in _bands(lines, gutter, beside):
        several = min(len(left), len(right)) and 2 < len(left) + len(right) < len(beside)
        across = several and reads_across(lines, left, right)
        parts = [np.concatenate([left, right])] if across else [left, right]
        blocks += [block for part in parts for block in _region(lines, part, deeper)]
    return blocks


def _bands(lines: TextLines, gutter: Gutter, beside: Indices) -> list[tuple[Indices, Indices]]:
    """Left and right between white stripes that end both columns: pages above each other, headers, footers."""
    order = beside[np.argsort(lines.top[beside], kind="stable")]
    tops, bottoms = lines.top[order], np.maximum.accumulate(lines.bottom[order])
    stripe = (tops[1:] - bottoms[:-1]) / median(lines.height[order])
    is_left = np.isin(order, gutter.left)
    lefts = np.cumsum(is_left)
    cuts = []
    for cut in (np.flatnonzero(stripe > HEADER) + 1).tolist():
        both = 0 < lefts[cut - 1] < cut and 0 < lefts[-1] - lefts[cut - 1] < len(order) - cut
        if both and (stripe[cut - 1] > COLUMN_END or _is_header(lines, order, cut, gutter)):
            cuts.append(cut)
    bands = zip(np.split(order, cuts), np.split(is_left, cuts), strict=True)
    return [(band[left], band[~left]) for band, left in bands]


def _is_header(lines: TextLines, order: Indices, cut: int, gutter: Gutter) -> bool:
    """Whether a cut leaves a row of two lines at the top or bottom, the second of which is no heading of its column."""
    if cut not in (2, len(order) - 2):
        return False
    row = order[:2] if cut == 2 else order[-2:]
    indent = lines.left[row].max() - lines.left[gutter.right].min()
    return bool(indent > median(lines.height[order]))
