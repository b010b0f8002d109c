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
from ocrsvc.imaging.reading_order.columns import flow, is_table, parts_columns
from ocrsvc.imaging.reading_order.gutters import HEADER, Gutter, tall_gutters
from ocrsvc.imaging.reading_order.row_cells import records_of, rows_with_cells, ruled_rows
from ocrsvc.imaging.reading_order.ruled_cells import ruled_blocks, with_ruled_blocks
from ocrsvc.imaging.reading_order.text_rows import (
    Indices,
    Numbers,
    TextLines,
    as_text_lines,
    parts_between,
    parts_between_rules,
    top_down,
    widest_step,
)

DEEPEST = 12  # cuts in cuts
BAND = 1.5  # white stripe across a part, in line heights, along which it may be cut
WIDE_BAND = 5.0  # the same, along which it is cut before anything else


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
    lines = as_text_lines(frames, texts, _horizontal(rules))
    everything = np.arange(len(frames))
    tables = ruled_blocks(lines, rules) if rules is not None and len(rules) else []
    if not tables:
        return _region(lines, everything, DEEPEST)
    return with_ruled_blocks(lines, tables, lambda lines, here: _region(lines, here, DEEPEST))


def _region(lines: TextLines, here: Indices, deeper: int) -> list[list[int]]:
    """The blocks of a region: first between rules and white stripes as wide as it, then along its tallest gutter."""
    ruled = parts_between_rules(lines, here) if deeper else [here]
    if len(ruled) == 1:
        return [block for part in parts_between(lines, here, WIDE_BAND) for block in _part(lines, part, deeper)]
    blocks: list[list[int]] = []
    for part, cells in zip(ruled, [[], *ruled_rows(lines, ruled[1:-1]), []], strict=True):
        if cells:
            blocks += [top_down(lines, cell).tolist() for cell in cells]
        else:
            blocks += _region(lines, part, deeper - 1)
    return blocks


def _horizontal(rules: NDArray[np.float32] | None) -> Numbers:
    """(M, 3) height, left and right end of the horizontal ones of some rules (N, 4, 2)."""
    if rules is None or not len(rules):
        return np.empty((0, 3))
    low, high = rules.min(axis=1).astype(np.float64), rules.max(axis=1)
    flat = high[:, 0] - low[:, 0] > high[:, 1] - low[:, 1]
    horizontal: Numbers = np.column_stack([(low[:, 1] + high[:, 1]) / 2, low[:, 0], high[:, 0]])[flat]
    return horizontal


def _part(lines: TextLines, here: Indices, deeper: int) -> list[list[int]]:
    ordered = top_down(lines, here)
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
        *_region(lines, gutter.left, deeper - 1),
        *_region(lines, gutter.right, deeper - 1),
        *_region(lines, below, deeper - 1),
    ]


def _parts_rows(lines: TextLines, gutter: Gutter, beside: Indices) -> bool:
    """Whether what is beside a gutter is rows of blocks, such as cards, or of cells, or has a table in a band of it."""
    if flow(lines, gutter.left, gutter.right):
        return False
    if records_of(lines, beside):
        return True
    for white in (BLOCK_GAP, widest_step(lines, beside)):
        rows = parts_between(lines, beside, white)
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
