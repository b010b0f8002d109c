"""Grids of ruled lines: the places of rules that touch each other are the borders of rows and columns.

Places of the grid with no rule between them are one spanning cell. This is the lattice method of Camelot, with the
share of a border that is ruled instead of joints, so that broken rules count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.tables.ruled_lines import Mask, RuledLines
from ocrsvc.records import Check

JOINT_HEIGHTS: Final = 0.15  # gaps up to this between rules that belong together, in line heights
SAME_RULE: Final = 0.4  # rules nearer to each other than this are one border, in line heights
WALL: Final = 0.6  # of a border between two cells is ruled, if it divides them
RULED: Final = 0.55  # of all borders between two places of a grid; edges of things in pictures make fewer
OPEN_EDGE: Final = 1.0  # how far, in line heights, rules reach beyond the last border where the edge has none
MOST_CELLS: Final = 20_000
"""Of a grid; more are hatching or graph paper."""
MOST_AREA: Final = 4
"""Times the page's area that all grids together are looked at: nested ones lie in each other."""

Borders = NDArray[np.float64]
Coverage = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """One cell of a grid: its first row and column, and how many of each it takes."""

    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Borders of rows and columns in pixels of the levelled page, and the cells between them, row by row."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    cells: tuple[Span, ...]


def find_ruled_grids(rules: RuledLines, line_height: float, check: Check) -> list[Grid]:
    """The grids of a page, largest first, each of more than one cell."""
    grids = []
    for left, top, right, bottom, own in _connected(rules, line_height):
        check()
        part = np.s_[top:bottom, left:right]
        grid = _grid(np.asarray(rules.horizontal[part] * own), np.asarray(rules.vertical[part] * own), line_height)
        if grid is not None:
            grids.append(_moved(grid, left, top))
    return grids


def _connected(rules: RuledLines, line_height: float) -> Iterator[tuple[int, int, int, int, Mask]]:
    """Frame and mask of each set of rules that touch each other, largest first."""
    reach = 2 * max(1, round(JOINT_HEIGHTS * line_height)) + 1
    joined = cv2.dilate(rules.horizontal | rules.vertical, np.ones((reach, reach), np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8, ltype=cv2.CV_32S)
    left_area = MOST_AREA * joined.size
    areas = stats[:, cv2.CC_STAT_WIDTH].astype(np.int64) * stats[:, cv2.CC_STAT_HEIGHT]
    for label in np.argsort(-areas, kind="stable").tolist():
        x, y, width, height, _ = stats[label].tolist()
        left_area -= width * height
        if left_area < 0 or min(width / 3, height / 2) < line_height:
            continue
        if label:
            own = (labels[y : y + height, x : x + width] == label).astype(np.uint8)
            yield x, y, x + width, y + height, own


def _grid(horizontal: Mask, vertical: Mask, line_height: float) -> Grid | None:
    """The grid of one set of rules; None if there is no border inside it."""
    near = max(3, round(SAME_RULE * line_height))
    rows, columns = _borders(horizontal, near), _borders(np.ascontiguousarray(vertical.T), near)
    if not len(rows) or not len(columns):
        return None
    rows = _with_open_edges(rows, vertical.max(axis=1), OPEN_EDGE * line_height)
    columns = _with_open_edges(columns, horizontal.max(axis=0), OPEN_EDGE * line_height)
    if len(rows) * len(columns) > MOST_CELLS or min(len(rows), len(columns)) < 2 or len(rows) + len(columns) < 5:
        return None
    below = _coverage(horizontal, rows, columns, near) >= WALL
    beside = _coverage(np.ascontiguousarray(vertical.T), columns, rows, near).T >= WALL
    if below.sum() + beside.sum() < RULED * (below.size + beside.size):
        return None
    return Grid(tuple(rows.tolist()), tuple(columns.tolist()), tuple(merge_cells(below[1:-1], beside[:, 1:-1])))


def _borders(mask: Mask, near: int) -> Borders:
    """Where the horizontal rules of a mask lie: one place for those that are near each other."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8, ltype=cv2.CV_32S)
    if count < 2:
        return np.empty(0)
    middles = stats[1:, cv2.CC_STAT_TOP] + (stats[1:, cv2.CC_STAT_HEIGHT] - 1) / 2
    order = np.argsort(middles, kind="stable")
    middles, lengths = middles[order], stats[1:, cv2.CC_STAT_WIDTH][order].astype(np.float64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(middles) > near) + 1])
    return np.asarray(np.add.reduceat(middles * lengths, starts) / np.add.reduceat(lengths, starts))


def _with_open_edges(borders: Borders, covered: Mask, reach: float) -> Borders:
    """The borders, and the ends of the rules across them where they go on beyond the outermost."""
    ends = np.flatnonzero(covered)
    before = [float(ends[0])] if len(ends) and borders[0] - ends[0] > reach else []
    behind = [float(ends[-1])] if len(ends) and ends[-1] - borders[-1] > reach else []
    return np.concatenate([before, borders, behind])


def _coverage(mask: Mask, borders: Borders, across: Borders, near: int) -> Coverage:
    """Which share of each horizontal border, between two of the places across, is ruled: (borders, places - 1)."""
    limits = np.rint(across).astype(int).clip(0, mask.shape[1])
    shares = np.empty((len(borders), len(across) - 1))
    for number, border in enumerate(np.rint(borders).astype(int).tolist()):
        ruled = np.concatenate([[0], np.cumsum(mask[max(0, border - near) : border + near + 1].any(axis=0))])
        shares[number] = (ruled[limits[1:]] - ruled[limits[:-1]]) / np.maximum(1, np.diff(limits))
    return shares


def merge_cells(below: NDArray[np.bool_], beside: NDArray[np.bool_]) -> Iterator[Span]:
    """The cells of a grid, row by row: rectangles of places with no wall between them.

    Args:
        below: (rows - 1, columns) whether a wall is below a place.
        beside: (rows, columns - 1) whether a wall is at a place's right.
    """
    count = beside.shape[0], below.shape[1]
    walls_below, walls_beside = below.tolist(), beside.tolist()
    taken = [[False] * count[1] for _ in range(count[0])]
    for row in range(count[0]):
        for column in range(count[1]):
            if taken[row][column]:
                continue
            right = column + 1
            while right < count[1] and not walls_beside[row][right - 1] and not taken[row][right]:
                right += 1
            bottom = row + 1
            while bottom < count[0] and _is_open(walls_below, walls_beside, bottom, column, right):
                bottom += 1
            for line in taken[row:bottom]:
                line[column:right] = [True] * (right - column)
            yield Span(row, column, bottom - row, right - column)


def _is_open(below: Sequence[list[bool]], beside: Sequence[list[bool]], row: int, column: int, right: int) -> bool:
    """Whether a cell of these columns goes on into this row."""
    return not any(below[row - 1][column:right]) and not any(beside[row][column : right - 1])


def _moved(grid: Grid, left: int, top: int) -> Grid:
    return Grid(tuple(row + top for row in grid.rows), tuple(column + left for column in grid.columns), grid.cells)
