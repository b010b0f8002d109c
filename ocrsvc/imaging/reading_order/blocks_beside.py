"""Blocks of text side by side, each of which is read whole: addresses, cards, cells of a row."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ocrsvc.imaging.reading_order.text_rows import (
    SAME_ROW,
    Indices,
    TextLines,
    median,
    numbers_of,
    parts_between,
    rows_of,
    side_by_side,
    stripes_of,
    top_down,
)

BLOCK_GAP = 0.9  # white stripe, in line heights, that ends a block
BLOCK_GUTTER = 0.6  # white beside a block, in line heights
BLOCK_ROWS = 3  # fewer rows say nothing of what is read first
MOST_BLOCK_ROWS = 8  # more rows of as many lines in each block are a table
BLOCK_STRIPE = 0.45  # white stripe, in line heights, below which something else may begin
TIGHT_STRIPE = 0.35  # white between the rows of such a table; blocks are set more tightly
SAME_STRIPE = 0.4  # difference, in line heights, of the white between the lines of two blocks
MOST_NUMBERS = 0.5  # of the lines of a block; more make a column of a table
MOST_LABELS = 0.33  # of the lines of a block that end with a colon; more make a form
SAME_KINDS = 0.75  # of the rows of cards have words, or numbers, in all of them
ENDS_TRIED = 2  # widest white stripes below which something else may begin


def blocks_beside(lines: TextLines, part: Indices) -> list[Indices]:
    """Blocks that begin at one height at the top of a part, or below a heading, and before them that heading.

    Returns the heading and the blocks in reading order; nothing where there are no such blocks.
    """
    rows = rows_of(lines, part) if len(part) > BLOCK_ROWS else []
    first = next((number for number, row in enumerate(rows) if len(row) > 1), len(rows))
    for last in _ends(lines, rows, first):
        heading = numbers_of(rows[:first])
        blocks = side_by_side(lines, numbers_of(rows[first:last]), BLOCK_GUTTER)
        if _are_blocks(lines, blocks, last - first) and not _is_in_block(lines, heading, blocks):
            return [heading, *blocks] if first else blocks
    return []


def _ends(lines: TextLines, rows: list[list[int]], first: int) -> list[int]:
    """Behind which rows blocks may end: before a line across, and where the white below them is widest."""
    end = _before_line_across(lines, rows, first)
    if end - first < BLOCK_ROWS:
        return []
    here = numbers_of(rows[first:end])
    starts = np.cumsum([len(row) for row in rows[first:end]])[:-1]
    bottoms = np.maximum.accumulate(lines.bottom[here])[starts - 1]
    stripes = np.minimum.accumulate(lines.top[here][::-1])[::-1][starts] - bottoms
    widest = np.argsort(-stripes, kind="stable")[:ENDS_TRIED]
    wide = widest[stripes[widest] > BLOCK_STRIPE * median(lines.height[here])]
    return [*(first + 1 + wide).tolist(), end]


def _before_line_across(lines: TextLines, rows: list[list[int]], first: int) -> int:
    """The first row of which a line reaches over what is white between the lines above it."""
    if first == len(rows):
        return first
    lefts, rights = (edges[rows[first]].tolist() for edges in (lines.left, lines.right))
    for number, row in enumerate(rows[first + 1 :], first + 1):
        for line in row:
            left, right = float(lines.left[line]), float(lines.right[line])
            place = max(0, bisect_right(lefts, right) - 1)
            if place and left < rights[place - 1]:
                return number
            lefts[place], rights[place] = min(lefts[place], left), max(rights[place], right)
    return len(rows)


def _are_blocks(lines: TextLines, blocks: list[Indices], rows: int) -> bool:
    several = [block for block in blocks if len(block) > 1]
    if rows < BLOCK_ROWS or len(several) < 2:
        return False
    size = median(lines.height[np.concatenate(blocks)])
    tops = [float(lines.top[block].min()) for block in blocks]
    if max(tops) - min(tops) > SAME_ROW * size:
        return False
    kinds = _kinds(lines, blocks)
    numbers = max(lines.is_number[block].mean() for block in several) >= MOST_NUMBERS
    if (numbers and kinds < 2) or max(lines.is_label[block].mean() for block in several) > MOST_LABELS:
        return False
    pitches = [median(stripes_of(lines, block)[1]) for block in several]
    if max(pitches) - min(pitches) > SAME_STRIPE:
        return False
    if len({len(block) for block in blocks}) == 1 and not kinds:
        loose = median(np.concatenate([stripes_of(lines, block)[1] for block in blocks])) > TIGHT_STRIPE
        if loose or rows > MOST_BLOCK_ROWS:
            return False
    return all(len(parts_between(lines, block, BLOCK_GAP)) == 1 for block in blocks)


def _kinds(lines: TextLines, blocks: list[Indices]) -> int:
    """How often words and numbers change from row to row, alike in all blocks; the columns of a table differ."""
    if len({len(block) for block in blocks}) > 1:
        return 0
    kinds = np.array(
        [np.where(lines.digits, lines.digits, 5 * lines.is_number)[top_down(lines, block)] for block in blocks]
    )
    same = (kinds == kinds[0]).all(axis=0)
    return int(np.count_nonzero(np.diff(kinds[0, same]))) if same.mean() >= SAME_KINDS else 0


def _is_in_block(lines: TextLines, heading: Indices, blocks: list[Indices]) -> bool:
    """Whether what is above the blocks is above one of them alone, and not the first: the first line of that."""
    if not len(heading):
        return False
    left, right = lines.left[heading[-1]], lines.right[heading[-1]]
    over = [left < lines.right[block].max() and right > lines.left[block].min() for block in blocks]
    return sum(over) == 1 and not over[0]
