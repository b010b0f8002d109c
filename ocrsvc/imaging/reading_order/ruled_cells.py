"""Cells that rules close around lines of text: those of tables, and frames such as cards and notes.

What lies in a cell is read without leaving it; the cells of a table are read row by row, and so are cards beside each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.reading_order.text_rows import Indices, Numbers, TextLines, median

NEAR = 0.6  # how far the ends of rules may be from the corners of a cell, in line heights
SAME_RULE = 0.4  # distance of two pieces of one rule across it
BROKEN = 0.5  # distance of two pieces of one rule along it
TRIES = 3  # rules on each side that are tried
MOST_OPEN = 0.25  # lines of a table around which no cell is closed, for each around which one is
BESIDE = 4.0  # white between two cards in a row
ALIKE = 0.1  # difference of the widths of two cards, as a share


@dataclass(frozen=True, slots=True)
class RuledCell:
    """A cell: left, top, right, bottom in pixels, and the lines in it that are in no cell inside it."""

    frame: tuple[float, ...]
    lines: Indices


Block = list[RuledCell]
"""Cells in reading order."""


def ruled_blocks(lines: TextLines, rules: NDArray[np.float32]) -> list[Block]:
    """Tables, rows of cards and single frames.

    Args:
        lines: All lines of the page.
        rules: (M, 4, 2) corners of rules, level.
    """
    size = median(lines.height)
    starts, ends = rules[:, 0].astype(np.float64), rules[:, 2].astype(np.float64)
    upright = np.abs(ends[:, 1] - starts[:, 1]) > np.abs(ends[:, 0] - starts[:, 0])
    vertical = _joined(starts[upright], ends[upright], size)
    horizontal = _joined(starts[~upright][:, ::-1], ends[~upright][:, ::-1], size)
    vertical = _between(vertical, horizontal, NEAR * size)
    if not len(vertical):
        return []
    vertical = _with_open_sides(vertical, horizontal, NEAR * size)
    cells = _cells(lines, vertical, horizontal, NEAR * size)
    tables = [_row_by_row(table, SAME_RULE * size) for table in _with_open_cells(lines, _tables(cells, len(vertical)))]
    return _rows_of_cards(lines, tables, size)


def frame_of(block: Block) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a block."""
    left, top, right, bottom = zip(*(cell.frame for cell in block), strict=True)
    return min(left), min(top), max(right), max(bottom)


def _joined(starts: Numbers, ends: Numbers, size: float) -> Numbers:
    """(N, 3) place, begin and end of vertical rules; pieces of one rule made one."""
    pieces = np.column_stack(
        [(starts[:, 0] + ends[:, 0]) / 2, np.minimum(starts[:, 1], ends[:, 1]), np.maximum(starts[:, 1], ends[:, 1])]
    )
    joined: list[list[float]] = []
    for place, begin, end in pieces[np.argsort(pieces[:, 1], kind="stable")].tolist():
        for rule in joined:
            if abs(rule[0] - place) <= SAME_RULE * size and begin - rule[2] <= BROKEN * size:
                rule[2] = max(rule[2], end)
                break
        else:
            joined.append([place, begin, end])
    return np.array(joined).reshape(-1, 3)


def _between(vertical: Numbers, horizontal: Numbers, near: float) -> Numbers:
    """Vertical rules that begin and end at horizontal ones; others are strokes of letters, or edges in pictures."""
    meets = (horizontal[:, 1] - near <= vertical[:, :1]) & (vertical[:, :1] <= horizontal[:, 2] + near)
    ends = [(meets & (np.abs(horizontal[:, 0] - vertical[:, [end]]) <= near)).any(axis=1) for end in (1, 2)]
    return vertical[ends[0] & ends[1]]


def _with_open_sides(vertical: Numbers, horizontal: Numbers, near: float) -> Numbers:
    """The vertical rules and, where those across them begin or end at one place, the table's side there."""
    sides = []
    for group in _same_extent(horizontal, near):
        left, right = horizontal[group, 1].min(), horizontal[group, 2].max()
        top, bottom = horizontal[group, 0].min(), horizontal[group, 0].max()
        meets = (vertical[:, 1] < bottom) & (vertical[:, 2] > top)
        places = vertical[meets, 0]
        if ((left < places) & (places < right)).any():
            sides += [[x, top, bottom] for x in (left, right) if not (np.abs(places - x) <= near).any()]
    return np.concatenate([vertical, np.array(sides).reshape(-1, 3)])


def _same_extent(horizontal: Numbers, near: float) -> list[Indices]:
    """Two or more horizontal rules that begin and end at the same places."""
    order = np.lexsort(np.rint(horizontal[:, 1:] / near).T)
    extents = horizontal[order, 1:]
    groups = np.split(order, np.flatnonzero((np.abs(np.diff(extents, axis=0)) > near).any(axis=1)) + 1)
    return [group for group in groups if len(group) > 1]


def _cells(
    lines: TextLines, vertical: Numbers, horizontal: Numbers, near: float
) -> dict[tuple[int, int, int, int], RuledCell]:
    """The smallest closed cells around lines, by the numbers of the rules left, above, right and below."""
    middle = (lines.left + lines.right) / 2
    offsets = vertical[:, 0] - middle[:, None]
    beside = (vertical[:, 1] - near <= lines.middle[:, None]) & (lines.middle[:, None] <= vertical[:, 2] + near)
    # The nearest rules on each side, and infinity for those that are not beside the line.
    lefts, rights = (np.where(beside & (side > 0), side, np.inf) for side in (-offsets, offsets))
    owners: dict[tuple[int, int, int, int], list[int]] = {}
    for line in np.flatnonzero(np.isfinite(lefts.min(axis=1)) & np.isfinite(rights.min(axis=1))).tolist():
        sides = [
            [rule for rule in np.argsort(side[line], kind="stable")[:TRIES].tolist() if side[line, rule] < np.inf]
            for side in (lefts, rights)
        ]
        cell = _closed_cell(vertical, horizontal, sides[0], sides[1], float(lines.middle[line]), near)
        if cell:
            owners.setdefault(cell, []).append(line)
    cells = {}
    for (left, top, right, bottom), inside in owners.items():
        frame = vertical[left, 0], horizontal[top, 0], vertical[right, 0], horizontal[bottom, 0]
        cells[left, top, right, bottom] = RuledCell(tuple(map(float, frame)), np.array(inside))
    return cells


def _closed_cell(
    vertical: Numbers, horizontal: Numbers, lefts: Sequence[int], rights: Sequence[int], y: float, near: float
) -> tuple[int, int, int, int] | None:
    """The numbers of the rules left, above, right and below that close a cell around a place."""
    for left, right in product(lefts, rights):
        begin, end = (
            max(vertical[left, 1], vertical[right, 1]) - near,
            min(vertical[left, 2], vertical[right, 2]) + near,
        )
        across = (horizontal[:, 1] - near <= vertical[left, 0]) & (horizontal[:, 2] + near >= vertical[right, 0])
        above = np.where(across & (horizontal[:, 0] <= y), horizontal[:, 0], -np.inf)
        below = np.where(across & (horizontal[:, 0] > y), horizontal[:, 0], np.inf)
        top, bottom = int(above.argmax()), int(below.argmin())
        if begin <= above[top] and below[bottom] <= end:
            return left, top, right, bottom
    return None


def _tables(cells: dict[tuple[int, int, int, int], RuledCell], vertical: int) -> list[Block]:
    """Cells that share rules, in no particular order.

    Args:
        cells: By the numbers of their rules.
        vertical: How many vertical rules there are.
    """
    groups: dict[int, list[RuledCell]] = {}
    owner: dict[int, int] = {}

    def root(rule: int) -> int:
        while owner.setdefault(rule, rule) != rule:
            owner[rule] = rule = owner[owner[rule]]
        return rule

    for left, top, right, bottom in cells:
        for rule in (right, top + vertical, bottom + vertical):
            owner[root(rule)] = root(left)
    for (left, *_), cell in cells.items():
        groups.setdefault(root(left), []).append(cell)
    return list(groups.values())


def _with_open_cells(lines: TextLines, tables: Sequence[Block]) -> list[Block]:
    """The tables; a line within one, around which no cell is closed, is a cell that begins at the top of its row.

    Cells around which there are many such lines are no table, but frames that touch each other.
    """
    middle = (lines.left + lines.right) / 2
    free = np.ones(len(middle), np.bool_)
    for cell in (cell for table in tables for cell in table):
        free[cell.lines] = False
    completed: list[Block] = []
    for table in tables:
        left, top, right, bottom = frame_of(table)
        inside = free & (left < middle) & (middle < right) & (top < lines.middle) & (lines.middle < bottom)
        if len(table) == 1 or inside.sum() > MOST_OPEN * sum(len(cell.lines) for cell in table):
            completed += [[cell] for cell in table]
            continue
        free &= ~inside
        frames = np.array([cell.frame for cell in table])
        for line in np.flatnonzero(inside).tolist():
            beside = (frames[:, 1] < lines.middle[line]) & (lines.middle[line] < frames[:, 3])
            row = frames[beside, 1].max() if beside.any() else lines.top[line]
            frame = float(lines.left[line]), float(row), float(lines.right[line]), float(lines.bottom[line])
            table.append(RuledCell(frame, np.array([line])))
        completed.append(table)
    return completed


def _row_by_row(cells: Block, same_row: float) -> Block:
    ordered: list[list[RuledCell]] = []
    for cell in sorted(cells, key=lambda cell: cell.frame[1]):
        if ordered and cell.frame[1] - ordered[-1][-1].frame[1] <= same_row:
            ordered[-1].append(cell)
        else:
            ordered.append([cell])
    return [cell for row in ordered for cell in sorted(row, key=lambda cell: cell.frame[0])]


def _rows_of_cards(lines: TextLines, blocks: Sequence[Block], size: float) -> list[Block]:
    """The blocks, single frames of one width beside each other made one where there is nothing else between them."""
    middle = (lines.left + lines.right) / 2
    rows: list[Block] = []
    for block in sorted((block for block in blocks if len(block) == 1), key=lambda block: block[0].frame[:1]):
        left, top, right, bottom = block[0].frame
        for row in rows:
            other = row[-1].frame
            if (
                abs(top - other[1]) <= SAME_RULE * size
                and 0 < left - other[2] <= BESIDE * size
                and abs((right - left) / (other[2] - other[0]) - 1) <= ALIKE
            ):
                within = (lines.middle > top) & (lines.middle < max(bottom, other[3]))
                within &= (middle > other[0]) & (middle < right)
                if within.sum() == sum(
                    (within & (middle > one[0]) & (middle < one[2]) & (lines.middle < one[3])).sum()
                    for one in (other, block[0].frame)
                ):
                    row.append(block[0])
                    break
        else:
            rows.append(list(block))
    return [*(block for block in blocks if len(block) > 1), *rows]
