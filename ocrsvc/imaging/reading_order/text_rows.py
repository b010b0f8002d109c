"""Lines of text as numbers, and the rows they make: lines beside each other, whose middles are level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]

SAME_ROW = 0.5  # distance of the middles of two lines in a row, as a share of the smaller height
CENTRED = 0.25  # line heights by which middles, or first lines, of the cells of a row may differ
TABLE_ROWS = 3  # groups of close lines, each of three cells or more, that make a table
CELL_GAP = 0.2  # white, in line heights, between rows of cells; rows inside of a cell are closer


@dataclass(frozen=True, slots=True)
class TextLines:
    """N level lines.

    Attributes:
        left, top, right, bottom: (N,) sides in pixels.
        middle, height: (N,) mean of top and bottom, and distance between them, in pixels.
        is_number: (N,) whether a line is mostly digits.
        is_label: (N,) whether a line ends with a colon.
    """

    left: Numbers
    top: Numbers
    right: Numbers
    bottom: Numbers
    middle: Numbers
    height: Numbers
    is_number: NDArray[np.bool_]
    is_label: NDArray[np.bool_]


def as_text_lines(frames: NDArray[np.float32], texts: Sequence[str] | None) -> TextLines:
    """Lines of (N, 4) left, top, right, bottom; without their texts, a short line counts as a number."""
    left, top, right, bottom = frames.astype(np.float64).T
    if texts is None:
        is_number = right - left < 5 * (bottom - top)
        is_label = np.zeros(len(frames), np.bool_)
    else:
        is_number = np.fromiter((_is_number(text) for text in texts), np.bool_, len(frames))
        is_label = np.fromiter((text.rstrip().endswith((":", "：")) for text in texts), np.bool_, len(frames))
    return TextLines(left, top, right, bottom, (top + bottom) / 2, bottom - top, is_number, is_label)


def _is_number(text: str) -> bool:
    signs = [character for character in text if character.isalnum()]
    return 2 * sum(character.isdecimal() for character in signs) >= len(signs)


def median(values: Numbers) -> float:
    """The lower median; numpy's own takes 0.1 ms to begin, and there are many short columns on a page."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def rows_of(lines: TextLines, here: Indices) -> list[list[int]]:
    """Rows from top to bottom, each from left to right; of the lines `here`."""
    order = here[np.argsort(lines.middle[here], kind="stable")]
    rows: list[list[tuple[float, int]]] = []
    mean, size = -np.inf, 0.0
    # Plain numbers: taken out of an array one by one, they would cost more than all that is done with them.
    values = (array[order].tolist() for array in (lines.left, lines.middle, lines.height))
    for line, left, middle, height in zip(order.tolist(), *values, strict=True):
        if middle - mean <= SAME_ROW * min(size, height):
            rows[-1].append((left, line))
            mean += (middle - mean) / len(rows[-1])
        else:
            rows.append([(left, line)])
            mean, size = middle, height
    return [[line for _, line in sorted(row)] for row in rows]


def parts_between(lines: TextLines, here: Indices, white: float) -> list[Indices]:
    """The lines `here`, from top to bottom, cut at each white stripe that is higher than `white` line heights."""
    order, stripes = _stripes(lines, here)
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


def cells_of(lines: TextLines, here: Indices) -> list[Indices]:
    """Groups of lines that are close above each other, from top to bottom.

    Where there are narrow stripes and clearly wider ones, lines with narrow ones between them are close.
    """
    order, stripes = _stripes(lines, here)
    heights = np.sort(stripes.clip(0))
    steps = np.flatnonzero(np.diff(heights) > CELL_GAP)
    white = float(heights[steps[0]] + heights[steps[0] + 1]) / 2 if len(steps) else CELL_GAP
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


def _stripes(lines: TextLines, here: Indices) -> tuple[Indices, Numbers]:
    """The lines in the order of their tops, and the white below each, in line heights; negative where they overlap."""
    order = here[np.argsort(lines.top[here], kind="stable")]
    if not len(order):
        return order, np.zeros(0)
    stripes = lines.top[order][1:] - np.maximum.accumulate(lines.bottom[order])[:-1]
    return order, stripes / max(1e-6, median(lines.height[order]))


def rows_with_cells(lines: TextLines, here: Indices) -> list[list[int]]:
    """Rows as `rows_of` gives them, but in a row of a table whose cells have several lines each cell is read whole.

    Its cells are level in their middles; or, where most groups of close lines have several cells, in their first lines.
    """
    groups = cells_of(lines, here)
    is_table = sum(len(_side_by_side(lines, group)) > 2 for group in groups) >= max(TABLE_ROWS, len(groups) / 2)
    return [row for group in groups for row in _cell_by_cell(lines, group, is_table=is_table)]


def _cell_by_cell(lines: TextLines, group: Indices, *, is_table: bool) -> list[list[int]]:
    rows = rows_of(lines, group)
    cells = _side_by_side(lines, group) if len(rows) > 1 else []
    if len(cells) < 2 or min(map(len, cells)) > 1:
        return rows
    several = len(cells) > 2
    centred = _are_level(lines, cells, _middle) and (several or all(len(row) == 1 for row in rows))
    if centred or (is_table and several and _are_level(lines, cells, _first)):
        return [row for cell in cells for row in rows_of(lines, cell)]
    return rows


def _middle(lines: TextLines, cell: Indices) -> float:
    return float(lines.top[cell].min() + lines.bottom[cell].max()) / 2


def _first(lines: TextLines, cell: Indices) -> float:
    return float(lines.middle[cell].min())


def _side_by_side(lines: TextLines, group: Indices) -> list[Indices]:
    """The lines of a group, cut where white passes it from top to bottom; from left to right."""
    order = group[np.argsort(lines.left[group], kind="stable")]
    white = lines.left[order][1:] - np.maximum.accumulate(lines.right[order])[:-1]
    return np.split(order, np.flatnonzero(white > CELL_GAP * median(lines.height[order])) + 1)


def _are_level(lines: TextLines, cells: list[Indices], place: Callable[[TextLines, Indices], float]) -> bool:
    places = [place(lines, cell) for cell in cells]
    size = median(np.concatenate([lines.height[cell] for cell in cells]))
    return max(places) - min(places) <= CENTRED * size
