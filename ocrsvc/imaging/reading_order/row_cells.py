"""Rows of a table or a list, in which a cell of several lines is read whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from ocrsvc.imaging.reading_order.blocks_beside import BLOCK_GAP, blocks_beside
from ocrsvc.imaging.reading_order.text_rows import (
    Indices,
    TextLines,
    cells_of,
    median,
    numbers_of,
    parts_between,
    rows_of,
    side_by_side,
)

CENTRED = 0.25  # line heights by which middles, or first lines, of the cells of a row may differ
TABLE_ROWS = 3  # groups of close lines that make a table, or a list
SAME_EDGE = 0.3  # line heights between left edges of lines of a column
FULL = 0.2  # white, in line heights, that is left in a column though no other word would fit
SAME_SIZE = 0.5  # difference of heights of boxes of lines of a cell, as a share
WRAPPED_GAP = 0.4  # white, in line heights, between lines of a cell

Rows = list[list[int]]
Links = dict[int, int]
"""For some lines the line below that goes on with their text."""


def rows_with_cells(lines: TextLines, here: Indices) -> Rows:
    """Rows as `rows_of` gives them, but blocks beside each other, and cells of several lines, are each read whole.

    The cells of a row are level in their middles; or in their first lines, in a table or a list of several rows like
    that; or they are made of lines that go on with each other, as `_wrapped` finds them.
    """
    parts = parts_between(lines, here, BLOCK_GAP)
    groups = [cells_of(lines, part) for part in parts]
    every = [group for of_part in groups for group in of_part]
    is_table = sum(len(group) > 2 < len(side_by_side(lines, group)) for group in every) >= max(
        TABLE_ROWS, len(every) / 2
    )
    is_list = sum(_is_item(lines, group) for group in every) >= TABLE_ROWS
    ordered: Rows = []
    rows: Rows = []
    single: dict[int, int] = {}
    for part, of_part in zip(parts, groups, strict=True):
        rest = part
        while blocks := blocks_beside(lines, rest):
            ordered += _with_wrapped_lines(lines, rows, single) + [
                row for block in blocks for row in rows_of(lines, block)
            ]
            rows = []
            rest = np.setdiff1d(rest, np.concatenate(blocks))
        for group in of_part if len(rest) == len(part) else cells_of(lines, rest):
            cells = _cells_of_row(lines, group, is_table=is_table, is_list=is_list)
            if cells:
                ordered += _with_wrapped_lines(lines, rows, single) + [
                    row for cell in cells for row in rows_of(lines, cell)
                ]
                rows = []
                continue
            of_group = rows_of(lines, group)
            if sum(len(row) > 1 for row in of_group) < 2:
                single.update(dict.fromkeys(group.tolist(), len(rows)))
            rows += of_group
    return ordered + _with_wrapped_lines(lines, rows, single)


def _cells_of_row(lines: TextLines, group: Indices, *, is_table: bool, is_list: bool) -> list[Indices]:
    """The cells of a group that is one row; none if it is several rows, or a row of single lines."""
    rows = rows_of(lines, group) if len(group) > 2 else []
    cells = side_by_side(lines, group) if len(rows) > 1 else []
    if len(cells) < 2 or min(map(len, cells)) > 1:
        return []
    several = len(cells) > 2
    if _are_level(lines, cells, _middle) and (several or all(len(row) == 1 for row in rows)):
        return cells
    is_row = (is_table and several and _are_level(lines, cells, _first)) or (is_list and _is_item(lines, group))
    return cells if is_row else []


def _is_item(lines: TextLines, group: Indices) -> bool:
    """Whether a group is an item of a list: some lines, and a number beside the first of them."""
    cells = side_by_side(lines, group) if len(group) > 2 else []
    return (
        len(cells) == 2
        and len(cells[0]) > len(cells[1]) == 1
        and bool(lines.is_number[cells[1][0]])
        and _are_level(lines, cells, _first)
    )


def _middle(lines: TextLines, cell: Indices) -> float:
    return float(lines.top[cell].min() + lines.bottom[cell].max()) / 2


def _first(lines: TextLines, cell: Indices) -> float:
    return float(lines.middle[cell].min())


def _are_level(lines: TextLines, cells: list[Indices], place: Callable[[TextLines, Indices], float]) -> bool:
    places = [place(lines, cell) for cell in cells]
    size = median(np.concatenate([lines.height[cell] for cell in cells]))
    return max(places) - min(places) <= CENTRED * size


def _with_wrapped_lines(lines: TextLines, rows: Rows, single: Mapping[int, int]) -> Rows:
    """The rows; those over which one cell goes on are read cell by cell.

    Args:
        lines: All lines of the page.
        rows: The rows.
        single: Numbers of the groups, of lines in groups of close lines that have one row of several lines at most.
    """
    links = _wrapped(lines, rows) if len(rows) > 1 else {}
    doubtful = {one: other for one, other in links.items() if single.get(one, -1) != single.get(other, -2)}
    alike = _alike(doubtful, rows)
    links = {one: other for one, other in links.items() if one not in doubtful or one in alike}
    if not links:
        return rows
    row_of = {line: number for number, row in enumerate(rows) for line in row}
    ends = list(range(len(rows)))
    for low, high in {(row_of[line], row_of[following]) for line, following in links.items()}:
        if _goes_on(lines, rows[low], rows[high], links):
            ends[low] = max(ends[low], high)
    ordered: Rows = []
    first = 0
    while first < len(rows):
        last = at = first
        while at <= last:
            last = max(last, ends[at])
            at += 1
        row = rows[first : last + 1]
        ordered += (_linked_cells(lines, row, links) if last > first else []) or row
        first = last + 1
    return ordered


def _wrapped(lines: TextLines, rows: Rows) -> Links:
    """Lines behind which the first word of the line below would not have fitted into the column."""
    here = numbers_of(rows)
    # Where the next line of the row begins: no column goes on behind it.
    nexts = np.concatenate([[*lines.left[row[1:]], np.inf] for row in rows])
    size = median(lines.height[here])
    order = np.argsort(lines.left[here], kind="stable")
    here, nexts = here[order], nexts[order]
    cuts = np.flatnonzero(np.diff(lines.left[here]) > SAME_EDGE * size) + 1
    is_other = lines.is_number | lines.has_label
    links: Links = {}
    for column, behind in zip(np.split(here, cuts), np.split(nexts, cuts), strict=True):
        below = column[np.argsort(lines.middle[column], kind="stable")]
        one, other = below[:-1], below[1:]
        end = lines.right[column][lines.right[column] <= behind.min()].max(initial=-np.inf)
        full = lines.right[one] + lines.first_word[other] >= end - FULL * size
        full &= lines.right[other] <= end + FULL * size
        near = np.abs(lines.top[other] - lines.bottom[one]) <= WRAPPED_GAP * size
        alike = np.abs(lines.height[other] - lines.height[one]) <= SAME_SIZE * lines.height[one]
        words = ~(is_other[one] | is_other[other])
        is_link = full & near & alike & words
        links.update(zip(one[is_link].tolist(), other[is_link].tolist(), strict=True))
    return links


def _alike(links: Links, rows: Rows) -> Links:
    """The links without those that join two cells, which lie in their rows otherwise than most.

    What is beside a cell of several lines is mostly level with the first of them, or mostly with the last.
    """
    beside = [row for row in rows if len(row) > 1]
    followers = set(links.values())
    begins = {line for row in beside if not all(one in followers for one in row) for line in row}
    ends = {line for row in beside if not all(one in links for one in row) for line in row}
    chains = [_chain(links, line) for line in links if line not in followers]
    votes = [0, 0, 0]
    for chain in chains:
        level = [number for number, line in enumerate(chain) if line in begins or line in ends]
        if len(level) == 1:
            votes[0 if level[0] == 0 else 2 if level[0] == len(chain) - 1 else 1] += 1
    if votes[2] > max(votes[:2]):
        return {line: following for line, following in links.items() if line not in ends}
    kept: Links = {}
    for chain in chains:
        is_level = votes[0] > max(votes[1:])
        for line, following in pairwise(chain):
            is_level |= line in begins
            if not (is_level and following in begins):
                kept[line] = following
    return kept


def _chain(links: Links, line: int) -> list[int]:
    """A line, and those that go on with it."""
    chain = [line]
    while chain[-1] in links:
        chain.append(links[chain[-1]])
    return chain


def _goes_on(lines: TextLines, row: list[int], other: list[int], links: Links) -> bool:
    """Whether all that one row has above what another has goes on there; else they are two rows of the table."""
    lefts = lines.left[other]
    for line, place in zip(row, (np.searchsorted(lefts, lines.right[row]) - 1).tolist(), strict=True):
        if place >= 0 and lines.right[other[place]] > lines.left[line] and links.get(line) != other[place]:
            return False
    return True


def _linked_cells(lines: TextLines, rows: Rows, links: Links) -> Rows:
    """The cells of a row, from left to right, made of lines that go on with each other; none if they overlap."""
    cells: Rows = []
    open_cells: dict[int, list[int]] = {}
    for line in (line for row in rows for line in row):
        cell = open_cells.pop(line, None)
        if cell is None:
            cell = []
            cells.append(cell)
        cell.append(line)
        open_cells[links.get(line, -1)] = cell
    cells.sort(key=lambda cell: float(lines.left[cell].min()))
    slack = CENTRED * median(lines.height[cells[0]])
    apart = all(lines.right[one].max() - slack <= lines.left[other].min() for one, other in pairwise(cells))
    return cells if apart else []
