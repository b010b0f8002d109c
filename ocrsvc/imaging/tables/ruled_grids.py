"""Finds rules (ruled lines) on a deskewed page, and the grids of touching rules, which are borders of rows and columns.

Rules are long, thin, dark runs of ink; thick runs and runs inside lines of text are letter strokes. Grid positions
without a rule between them form one spanning cell. This is Camelot's lattice method, but with the ruled share of each
border instead of joints, so that broken rules count.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.tables.text_grid import Grid, Span
from ocrsvc.results import Check, Pixels

Mask = NDArray[np.uint8]  # (H, W), 1 or 0
Borders = NDArray[np.float64]

THRESHOLD_BLOCK_PX: Final = 25
CONTRAST: Final = 8  # ink is this many gray levels darker than its surroundings' mean, as a hairline in light gray is
RUN_HEIGHTS: Final = 1.1  # shortest run, in line heights: strokes of ordinary letters are shorter
MIN_RUN_PX: Final = 16
MAX_THICK: Final = 0.5  # largest thickness of a rule, in line heights
IN_TEXT: Final = 0.9  # a run with this share inside a line of text is a letter stroke
JOINT_HEIGHTS: Final = 0.15  # widest gap, in line heights, between rules of one grid
SAME_RULE: Final = 0.4  # largest distance, in line heights, of rules that form one border
WALL: Final = 0.6  # two cells are separated if at least this share of the border between them is ruled
RULED: Final = 0.55  # least share of a grid's borders that is ruled; edges in pictures have less
OPEN_EDGE: Final = 1.0  # a grid has an open edge if rules reach this many line heights beyond its last border
MAX_CELLS: Final = 20_000  # a grid with more cells is hatching or graph paper
MAX_AREA: Final = 4  # largest total area of grids, in areas of the page: nested grids overlap


@dataclass(frozen=True, slots=True)
class RuledLines:
    """Masks of a page's rules and of other ink; `segments` (N, 4): left, top, width, height of horizontal rules."""

    horizontal: Mask
    vertical: Mask
    segments: NDArray[np.int32]
    ink: Mask


def find_ruled_lines(gray: Pixels, frames: NDArray[np.float32], line_height: float, check: Check) -> RuledLines:
    """Find the rules of a deskewed page (H, W); `frames` (N, 4): left, top, right, bottom of its lines of text."""
    how = cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, THRESHOLD_BLOCK_PX, CONTRAST
    ink = np.asarray(cv2.adaptiveThreshold(gray, 1, *how), np.uint8)
    check()
    text = np.zeros(gray.shape[:2], np.uint8)
    for left, top, right, bottom in np.rint(frames).astype(int).clip(0).tolist():
        text[top:bottom, left:right] = 1
    horizontal, segments = _runs(ink, text, line_height)
    check()
    vertical, _ = _runs(np.ascontiguousarray(ink.T), np.ascontiguousarray(text.T), line_height)
    ink[(horizontal | vertical.T).astype(bool)] = 0
    return RuledLines(horizontal, np.ascontiguousarray(vertical.T), segments, ink)


def _runs(ink: Mask, text: Mask, line_height: float) -> tuple[Mask, NDArray[np.int32]]:
    """Mask and frames (left, top, width, height) of horizontal runs of ink that are rules."""
    length = max(MIN_RUN_PX, round(RUN_HEIGHTS * line_height))
    # One pixel up and down bridges the pixel steps of a slightly slanted rule.
    thick = cv2.dilate(ink, np.ones((3, 1), np.uint8))
    runs = cv2.morphologyEx(thick, cv2.MORPH_OPEN, np.ones((1, length), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(runs, connectivity=8, ltype=cv2.CV_32S)
    areas = stats[:, cv2.CC_STAT_AREA].astype(np.float64)
    within = np.bincount(labels[text.astype(bool)], minlength=count)
    is_rule = (areas / stats[:, cv2.CC_STAT_WIDTH] <= 2 + MAX_THICK * line_height) & (within < IN_TEXT * areas)
    is_rule[0] = False
    return cast(Mask, is_rule.astype(np.uint8)[labels]), stats[is_rule, :4].astype(np.int32)


def find_ruled_grids(rules: RuledLines, line_height: float, check: Check) -> Iterator[Grid]:
    """Find the grids of touching rules with more than one cell, largest first."""
    for x, y, mask in _connected(rules, line_height):
        check()
        part = np.s_[y : y + mask.shape[0], x : x + mask.shape[1]]
        grid = _grid(rules.horizontal[part] * mask, rules.vertical[part] * mask, line_height)
        if grid is not None:
            yield Grid(tuple(row + y for row in grid.rows), tuple(column + x for column in grid.columns), grid.cells)


def _connected(rules: RuledLines, line_height: float) -> Iterator[tuple[int, int, Mask]]:
    """Yield left, top and mask of each set of touching rules, largest first."""
    reach = 2 * max(1, round(JOINT_HEIGHTS * line_height)) + 1
    joined = cv2.dilate(rules.horizontal | rules.vertical, np.ones((reach, reach), np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8, ltype=cv2.CV_32S)
    left_area = MAX_AREA * joined.size
    areas = stats[:, cv2.CC_STAT_WIDTH].astype(np.int64) * stats[:, cv2.CC_STAT_HEIGHT]
    for label in np.argsort(-areas, kind="stable").tolist():
        x, y, width, height, _ = stats[label].tolist()
        left_area -= width * height
        if label and left_area >= 0 and min(width / 3, height / 2) >= line_height:
            yield x, y, (labels[y : y + height, x : x + width] == label).astype(np.uint8)


def _grid(horizontal: Mask, vertical: Mask, line_height: float) -> Grid | None:
    """The grid of a set of touching rules; None if no border lies inside it, or if too little is ruled."""
    near = max(3, round(SAME_RULE * line_height))
    rows, columns = _borders(horizontal, near), _borders(np.ascontiguousarray(vertical.T), near)
    if not len(rows) or not len(columns):
        return None
    rows = _with_open_edges(rows, vertical.max(axis=1), OPEN_EDGE * line_height)
    columns = _with_open_edges(columns, horizontal.max(axis=0), OPEN_EDGE * line_height)
    if len(rows) * len(columns) > MAX_CELLS or min(len(rows), len(columns)) < 2 or len(rows) + len(columns) < 5:
        return None
    below = _coverage(horizontal, rows, columns, near) >= WALL
    beside = _coverage(np.ascontiguousarray(vertical.T), columns, rows, near).T >= WALL
    if below.sum() + beside.sum() < RULED * (below.size + beside.size):
        return None
    return Grid(tuple(rows.tolist()), tuple(columns.tolist()), tuple(_merged_cells(below[1:-1], beside[:, 1:-1])))


def _borders(mask: Mask, near: int) -> Borders:
    """The y of the horizontal rules of a mask; rules less than `near` apart count as one."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8, ltype=cv2.CV_32S)
    if count < 2:
        return np.empty(0)
    middles = stats[1:, cv2.CC_STAT_TOP] + (stats[1:, cv2.CC_STAT_HEIGHT] - 1) / 2
    order = np.argsort(middles, kind="stable")
    middles, lengths = middles[order], stats[1:, cv2.CC_STAT_WIDTH][order].astype(np.float64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(middles) > near) + 1])
    return np.asarray(np.add.reduceat(middles * lengths, starts) / np.add.reduceat(lengths, starts))


def _with_open_edges(borders: Borders, covered: Mask, reach: float) -> Borders:
    """Add borders at the ends of crossing rules that reach more than `reach` beyond the outermost border."""
    ends = np.flatnonzero(covered).astype(np.float64)
    before, behind = ends[:1][borders[0] - ends[:1] > reach], ends[-1:][ends[-1:] - borders[-1] > reach]
    return np.concatenate([before, borders, behind])


def _coverage(mask: Mask, borders: Borders, across: Borders, near: int) -> Borders:
    """(borders, len(across) - 1) ruled share of each horizontal border from one x of `across` to the next."""
    limits = np.rint(across).astype(int).clip(0, mask.shape[1])
    shares = np.empty((len(borders), len(across) - 1))
    for number, border in enumerate(np.rint(borders).astype(int).tolist()):
        ruled = np.concatenate([[0], np.cumsum(mask[max(0, border - near) : border + near + 1].any(axis=0))])
        shares[number] = (ruled[limits[1:]] - ruled[limits[:-1]]) / np.maximum(1, np.diff(limits))
    return shares


def _merged_cells(below: NDArray[np.bool_], beside: NDArray[np.bool_]) -> Iterator[Span]:
    """Yield a grid's cells by row. Walls: `below` positions (rows - 1, columns), `beside` them (rows, columns - 1)."""
    height, width = beside.shape[0], below.shape[1]
    is_taken = np.zeros((height, width), bool)
    for row, column in np.ndindex(height, width):
        if is_taken[row, column]:
            continue
        closed = np.flatnonzero(beside[row, column:] | is_taken[row, column + 1 :])
        right = column + 1 + int(closed[0]) if len(closed) else width
        walls = below[row:, column:right].any(axis=1) | beside[row + 1 :, column : right - 1].any(axis=1)
        bottom = row + 1 + int(np.append(walls, True).argmax())
        is_taken[row:bottom, column:right] = True
        yield Span(row, column, bottom - row, right - column)
