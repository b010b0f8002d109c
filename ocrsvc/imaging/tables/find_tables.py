"""Finds the tables of a page: from ruled lines where there are any, from the alignment of the text elsewhere."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import as_box
from ocrsvc.imaging.tables.deskewed_coordinates import DeskewedCoordinates, deskewed_coordinates
from ocrsvc.imaging.tables.line_pieces import Piece, divide_lines, join_pieces
from ocrsvc.imaging.tables.open_grids import find_open_grids
from ocrsvc.imaging.tables.partly_ruled import complete, find_stacked_grids
from ocrsvc.imaging.tables.ruled_grids import RuledLines, find_ruled_grids, find_ruled_lines
from ocrsvc.imaging.tables.text_grid import Frame, Grid, TextBlock, rows_of
from ocrsvc.records import Box, Cell, Check, Page, Pixels, Table

LEAST_LINES: Final = 4
FILLED: Final = 0.25  # of a ruled grid's cells have text: forms have many that nobody filled

CellPieces = list[list[int]]
"""For each cell of a grid, its pieces of lines."""


def find_tables(pixels: Pixels, page: Page, check: Check) -> tuple[Table, ...]:
    """The tables of a page that was read, from top to bottom; `check` is called between steps.

    Takes time in proportion to the page's pixels and, up to a logarithm, its lines, and memory for a working copy.
    """
    if len(page.lines) < LEAST_LINES:
        return ()
    quads = np.array([line.box for line in page.lines], np.float32)
    level = deskewed_coordinates(page.width, page.height, page.angle, quads)
    corners = level.to_level(quads)
    frames = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    line_height = max(1.0, float(np.median(frames[:, 3] - frames[:, 1])))
    rules = find_ruled_lines(level.warp(pixels), frames, line_height, check)
    texts = [line.text for line in page.lines]
    pieces = divide_lines(texts, frames, rules.ink, line_height)
    if not pieces:
        return ()
    check()
    found = _find_grids(rules, [piece.frame for piece in pieces], line_height, check)
    downwards = sorted(found, key=lambda grid_and_pieces: grid_and_pieces[0].rows[0])
    return tuple(_as_table(texts, pieces, level, grid, inside) for grid, inside in downwards)


def _find_grids(
    rules: RuledLines, places: Sequence[Frame], line_height: float, check: Check
) -> Iterator[tuple[Grid, CellPieces]]:
    """Each table's grid on the levelled page, with its cells' pieces of lines; no piece is in two."""
    frames = np.array(places)
    middles = (frames[:, :2] + frames[:, 2:]) / 2
    free = np.ones(len(frames), bool)

    def block(inside: NDArray[np.bool_]) -> TextBlock:
        return TextBlock(places, np.flatnonzero(inside & free).tolist(), line_height)

    def completed(grids: Iterable[Grid]) -> Iterator[tuple[Grid, CellPieces]]:
        for grid in grids:
            check()
            text = block(_inside(middles, grid))
            whole = complete(text, grid) if text.lines else None
            if whole and _is_filled(cells := _pieces_of_cells(text, whole), whole):
                free[text.lines] = False
                yield whole, cells

    # The smallest first, so that a table in a frame is not taken for the frame's.
    yield from completed(list(find_ruled_grids(rules, line_height, check))[::-1])
    yield from completed(find_stacked_grids(block(free), rules.segments, check))
    for grid in find_open_grids(block(free), check):
        yield grid, _pieces_of_cells(block(_inside(middles, grid)), grid)


def _inside(middles: NDArray[np.floating[Any]], grid: Grid) -> NDArray[np.bool_]:
    """Which lines have their middles within the grid."""
    low, high = (grid.columns[0], grid.rows[0]), (grid.columns[-1], grid.rows[-1])
    return np.asarray(((middles >= low) & (middles <= high)).all(axis=1))


def _pieces_of_cells(block: TextBlock, grid: Grid) -> CellPieces:
    """The lines whose middles lie in each cell of the grid; those of the block all lie within it."""
    owners = np.zeros((len(grid.rows) - 1, len(grid.columns) - 1), np.intp)
    for number, cell in enumerate(grid.cells):
        owners[cell.row : cell.row + cell.rows, cell.column : cell.column + cell.columns] = number
    lines: CellPieces = [[] for _ in grid.cells]
    for line in block.lines:
        left, top, right, bottom = block.frames[line]
        row = min(max(bisect_right(grid.rows, (top + bottom) / 2) - 1, 0), owners.shape[0] - 1)
        column = min(max(bisect_right(grid.columns, (left + right) / 2) - 1, 0), owners.shape[1] - 1)
        lines[owners[row, column]].append(line)
    return lines


def _is_filled(lines: CellPieces, grid: Grid) -> bool:
    """Whether enough of the cells have text, in several rows and several columns."""
    filled = [cell for cell, inside in zip(grid.cells, lines, strict=True) if inside]
    rows, columns = {cell.row for cell in filled}, {cell.column for cell in filled}
    return min(len(rows), len(columns)) > 1 and len(filled) >= FILLED * len(grid.cells)


def _as_table(
    texts: Sequence[str], pieces: Sequence[Piece], level: DeskewedCoordinates, grid: Grid, inside: CellPieces
) -> Table:
    """The table in the pixels of the page's image."""

    def box(row: int, column: int, last_row: int, last_column: int) -> Box:
        left, right = grid.columns[column], grid.columns[last_column]
        top, bottom = grid.rows[row], grid.rows[last_row]
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)
        return as_box(level.to_image(corners))

    frames = [piece.frame for piece in pieces]
    cells = []
    for cell, numbers in zip(grid.cells, inside, strict=True):
        rows = [[pieces[number] for number in row] for row in rows_of(frames, numbers)]
        text = "\n".join(join_pieces(row, texts) for row in rows)
        lines = tuple(dict.fromkeys(piece.line for row in rows for piece in row))
        where = box(cell.row, cell.column, cell.row + cell.rows, cell.column + cell.columns)
        cells.append(Cell(cell.row, cell.column, cell.rows, cell.columns, where, text, lines))
    height, width = len(grid.rows) - 1, len(grid.columns) - 1
    return Table(box(0, 0, height, width), height, width, tuple(cells))
