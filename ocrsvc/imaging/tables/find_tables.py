"""Finds the tables of a page, by ruled lines or by the alignment of the text.

Splits lines of text into pieces at wide gaps in their ink, because detectors merge neighbouring cells into one line.
Pieces are as wide as their ink, because detected boxes are wider. Pieces in one cell are joined again.
"""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.imaging.geometry import as_box, turn_points
from ocrsvc.imaging.tables.aligned_grids import complete, find_open_grids, find_stacked_grids
from ocrsvc.imaging.tables.ruled_grids import Mask, RuledLines, find_ruled_grids, find_ruled_lines
from ocrsvc.imaging.tables.text_grid import Frame, Grid, Interval, TextBlock, rows_of
from ocrsvc.imaging.text_direction import runs_from_right_to_left
from ocrsvc.results import Box, Cell, Check, Page, Pixels, Table

WORKING_SIDE_PX: Final = 2400  # longest side of the deskewed copy: 290 dpi of A4, where a hairline is visible
LEVEL_DEGREES: Final = 0.05  # largest slant that is ignored: it moves pixels of the copy by at most two
MIN_LINES: Final = 4
FILLED: Final = 0.25  # least share of a ruled grid's cells that have text: forms have many empty cells
MIN_GAP: Final = 0.6  # narrowest gap between pieces, in heights of the line or median line; word gaps are half as wide
TALLEST: Final = 4.0  # a line higher than this many median line heights is not split
EDGE: Final = 0.2  # share of a line's height ignored at its top and bottom, where ink may belong to other lines
MAX_PIECES: Final = 8000  # if lines split into more, the page has a hatched background, and no line is split
SNAP: Final = 3  # largest distance, in characters, by which a computed cut is moved to a space

Points = NDArray[np.float32]
CellPieces = list[list[int]]  # for each cell of a grid, the numbers of its pieces


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters [begin, end) of a line, and their frame."""

    line: int
    begin: int
    end: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class DeskewedCoordinates:
    """Maps points of an image to its deskewed copy of `width` x `height` pixels and back.

    `matrix` (2, 3) maps the image to the copy; `scale` is at most 1; unless `is_turned`, the copy is only scaled.
    """

    width: int
    height: int
    scale: float
    matrix: NDArray[np.float64]
    is_turned: bool

    def to_level(self, points: Points) -> Points:
        """Map points (..., 2) of the image to the deskewed copy."""
        return np.asarray(points @ self.matrix[:, :2].T + self.matrix[:, 2], np.float32)

    def to_image(self, points: Points) -> Points:
        """Map points (..., 2) of the deskewed copy to the image."""
        return np.asarray((points - self.matrix[:, 2]) @ np.linalg.inv(self.matrix[:, :2]).T, np.float32)

    def warp(self, pixels: Pixels) -> Pixels:
        """Make the deskewed copy of the image's pixels, in gray: (height, width) uint8."""
        height, width = pixels.shape[:2]
        if self.scale < 1:
            size = _scaled(width, height, self.scale)
            pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
        gray = np.asarray(pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY), np.uint8)
        if not self.is_turned:
            return gray
        matrix = self.matrix @ np.diag([width / gray.shape[1], height / gray.shape[0], 1])
        size, border = (self.width, self.height), cv2.BORDER_REPLICATE
        return np.asarray(cv2.warpAffine(gray, matrix, size, flags=cv2.INTER_LINEAR, borderMode=border), np.uint8)


def find_tables(pixels: Pixels, page: Page, check: Check) -> tuple[Table, ...]:
    """Find the tables of a recognized page, sorted from the top; `check` is called between steps."""
    if len(page.lines) < MIN_LINES:
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
    grids = _find_grids(rules, [piece.frame for piece in pieces], line_height, check)
    downwards = sorted(grids, key=lambda grid_and_pieces: grid_and_pieces[0].rows[0])
    return tuple(_as_table(texts, pieces, level, grid, inside) for grid, inside in downwards)


def _find_grids(
    rules: RuledLines, places: Sequence[Frame], line_height: float, check: Check
) -> Iterator[tuple[Grid, CellPieces]]:
    """Yield each table's grid on the deskewed page, with the pieces in its cells; a piece is in at most one table."""
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

    # Smallest grids first, so that a table takes its text before a frame around it does.
    yield from completed(list(find_ruled_grids(rules, line_height, check))[::-1])
    yield from completed(find_stacked_grids(block(free), rules.segments, check))
    for grid in find_open_grids(block(free), check):
        yield grid, _pieces_of_cells(block(_inside(middles, grid)), grid)


def _inside(middles: NDArray[np.floating[Any]], grid: Grid) -> NDArray[np.bool_]:
    """Whether the centre of each piece lies within the grid."""
    low, high = (grid.columns[0], grid.rows[0]), (grid.columns[-1], grid.rows[-1])
    return np.asarray(((middles >= low) & (middles <= high)).all(axis=1))


def _pieces_of_cells(block: TextBlock, grid: Grid) -> CellPieces:
    """For each cell of the grid, the block's pieces with their centres in it; all centres must lie within the grid."""
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
    """Whether enough cells have text, in several rows and several columns."""
    filled = [cell for cell, inside in zip(grid.cells, lines, strict=True) if inside]
    rows, columns = {cell.row for cell in filled}, {cell.column for cell in filled}
    return min(len(rows), len(columns)) > 1 and len(filled) >= FILLED * len(grid.cells)


def _as_table(
    texts: Sequence[str], pieces: Sequence[Piece], level: DeskewedCoordinates, grid: Grid, inside: CellPieces
) -> Table:
    """Convert a grid and its pieces to a Table in pixels of the page's image."""

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


def divide_lines(texts: Sequence[str], frames: NDArray[np.float32], ink: Mask, line_height: float) -> list[Piece]:
    """Split all lines into pieces at gaps in their ink. `frames` are (N, 4); `ink` must be free of ruled lines."""
    pieces: list[Piece] = []
    lines = list(zip(texts, frames.tolist(), strict=True))
    for number, (text, frame) in enumerate(lines):
        pieces += _pieces(number, text, frame, _parts(frame, ink, line_height))
        if len(pieces) > MAX_PIECES:
            return [Piece(number, 0, len(text), frame) for number, (text, frame) in enumerate(lines) if text]
    return pieces


def join_pieces(pieces: Sequence[Piece], texts: Sequence[str]) -> str:
    """Join the texts of a row's pieces in reading order; pieces not adjacent in one line get a space between them."""
    text = "".join(texts[piece.line][piece.begin : piece.end] for piece in pieces)
    if len(pieces) > 1 and runs_from_right_to_left(text):
        pieces = pieces[::-1]
    joined, end = "", (-1, 0)
    for piece in pieces:
        blank = "" if not joined or end == (piece.line, piece.begin) else " "
        joined += blank + texts[piece.line][piece.begin : piece.end]
        end = piece.line, piece.end
    return joined.strip()


def _parts(frame: Frame, ink: Mask, line_height: float) -> list[Interval]:
    """Left and right ends of a line's pieces, separated by gaps in its ink; the whole frame if no ink is visible."""
    left, top, right, bottom = (max(0, round(place)) for place in frame)
    height = bottom - top
    is_text = 0 < height <= min(TALLEST * line_height, right - left)
    edge = round(EDGE * height)
    inked = np.flatnonzero(ink[top + edge : bottom - edge, left:right].any(axis=0)) if is_text else ()
    if not len(inked):
        return [(frame[0], frame[2])]
    gaps = np.flatnonzero(np.diff(inked) > MIN_GAP * max(height, line_height))
    begins, ends = inked[np.concatenate([[0], gaps + 1])], inked[np.concatenate([gaps, [-1]])]
    return [(left + begin, left + end + 1.0) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _pieces(line: int, text: str, frame: Frame, parts: Sequence[Interval]) -> Iterator[Piece]:
    _, top, _, bottom = frame
    if len(parts) > 1 and runs_from_right_to_left(text):
        parts = parts[::-1]
    for (left, right), (begin, end) in zip(parts, pairwise([0, *_cuts(text, parts), len(text)]), strict=True):
        if begin < end:
            yield Piece(line, begin, end, (left, top, right, bottom))


def _cuts(text: str, parts: Sequence[Interval]) -> list[int]:
    """Indices at which a text is cut into parts: at its spaces, if there is one per cut, else by the parts' widths."""
    blanks = [place + 1 for place, character in enumerate(text) if character == " "]
    if len(blanks) == len(parts) - 1:
        return blanks
    weights = [2.0 if unicodedata.east_asian_width(character) in "WF" else 1.0 for character in text]
    reached = [0.0, *accumulate(weights)]
    inked = [0.0, *accumulate(right - left for left, right in parts)]
    cuts: list[int] = []
    for share in (part / inked[-1] for part in inked[1:-1]):
        place = bisect_left(reached, share * reached[-1] - 0.5)
        after = bisect_left(blanks, place)
        near = [blank for blank in blanks[max(0, after - 1) : after + 1] if abs(blank - place) <= SNAP]
        place = min(near, key=lambda blank: abs(blank - place)) if near else place
        cuts.append(max(place, cuts[-1] if cuts else 0))
    return cuts


def deskewed_coordinates(width: int, height: int, angle: int, quads: Points) -> DeskewedCoordinates:
    """Make the mapping to a copy with level text: a turn by `angle`, then by the median slant of `quads` (N, 4, 2)."""
    scale = min(1.0, WORKING_SIDE_PX / max(width, height))
    # Slant: median angle of the longer half of the lines, in clockwise degrees from the nearest axis, in (-45, 45].
    level = turn_points(quads, angle, width, height)
    reading = (level[:, 1] - level[:, 0]).astype(np.float64)
    longest = np.argsort(-np.hypot(*reading.T), kind="stable")[: max(1, len(quads) // 2)]
    angles = np.degrees(np.arctan2(reading[longest, 1], reading[longest, 0]))
    slant = float(np.median(-((45 - angles) % 90 - 45)))
    if abs(slant) < LEVEL_DEGREES and not angle:
        matrix = np.array([[scale, 0, 0], [0, scale, 0]], np.float64)
        return DeskewedCoordinates(*_scaled(width, height, scale), scale, matrix, is_turned=False)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    # Derive the matrix of the turn from three corners, then rotate by the slant, and shift to positive coordinates.
    turned = turn_points(corners[[0, 1, 3]], angle, width, height).astype(np.float64)
    turn = np.stack([(turned[1] - turned[0]) / width, (turned[2] - turned[0]) / height], axis=1)
    cos, sin = np.cos(np.radians(slant)), np.sin(np.radians(slant))
    rotation = scale * np.array([[cos, sin], [-sin, cos]]) @ turn
    moved = corners @ rotation.T
    matrix = np.concatenate([rotation, -moved.min(axis=0)[:, None]], axis=1)
    new_width, new_height = np.maximum(1, np.ceil(np.ptp(moved, axis=0)).astype(int)).tolist()
    return DeskewedCoordinates(new_width, new_height, scale, matrix, is_turned=True)


def _scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    return max(1, round(width * scale)), max(1, round(height * scale))
