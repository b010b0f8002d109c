"""Order of a page with ruled tables and frames: what is in a cell is read without leaving it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ocrsvc.imaging.reading_order.ruled_cells import Block, frame_of
from ocrsvc.imaging.reading_order.text_rows import Indices, Numbers, TextLines, median, with_lines

PITCH = 1.3  # line heights from one line to the next of the text that stands for a table
LEADING = 0.8  # height of such a line, as a share of that

Order = list[list[int]]
"""Groups of lines that are read without leaving them, in reading order."""


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A table, cards in a row or a frame: left, top, right, bottom, and the order of what is in it."""

    frame: tuple[float, float, float, float]
    order: Order


def with_ruled_blocks(
    lines: TextLines, blocks: Sequence[Block], order_of: Callable[[TextLines, Indices], Order]
) -> Order:
    """The order of all lines.

    Args:
        lines: All lines of the page.
        blocks: Tables, cards and frames.
        order_of: Orders some lines, among which there are no rules.
    """
    # From the innermost outwards: a frame may have a table in it.
    cells = sorted((cell for block in blocks for cell in block), key=lambda cell: _area(cell.frame))
    frames = np.array([cell.frame for cell in cells])
    inside: dict[int, list[Block]] = {}
    for block in blocks:
        inside.setdefault(_smallest_around(frames, frame_of(block)), []).append(block)
    orders: dict[int, Order] = {}

    def ordered(here: Indices, around: int) -> Order:
        tables = [
            _Ordered(frame_of(block), [part for cell in block for part in orders[id(cell)]])
            for block in inside.get(around, [])
        ]
        return _around_tables(lines, here, tables, order_of)

    for number, cell in enumerate(cells):
        orders[id(cell)] = ordered(cell.lines, number)
    free = np.setdiff1d(np.arange(len(lines.left)), np.concatenate([cell.lines for cell in cells]))
    return ordered(free, -1)


def _area(frame: Sequence[float]) -> float:
    return (frame[2] - frame[0]) * (frame[3] - frame[1])


def _smallest_around(frames: Numbers, frame: Sequence[float]) -> int:
    """The first of the frames (N, 4), smallest first, that another lies in; -1 if none does."""
    around = (frames[:, :2] < frame[:2]).all(axis=1) & (frames[:, 2:] > frame[2:]).all(axis=1)
    return int(around.argmax()) if around.any() else -1


def _around_tables(
    lines: TextLines, here: Indices, tables: Sequence[_Ordered], order_of: Callable[[TextLines, Indices], Order]
) -> Order:
    """The order of some lines and tables: a table counts as a paragraph that fills its frame."""
    if not tables:
        # Boxes beside each other may overlap a little.
        if lines.left[here].max() + median(lines.height[here]) < lines.right[here].min():
            return [here[np.argsort(lines.middle[here], kind="stable")].tolist()]
        return order_of(lines, here)
    paragraphs = [_paragraph(table.frame, median(lines.height)) for table in tables]
    owners = np.repeat(np.arange(len(tables)), [len(paragraph) for paragraph in paragraphs]).tolist()
    count, ordered, read = len(lines.left), [], set()
    everything = with_lines(lines, np.concatenate(paragraphs))
    for block in order_of(everything, np.concatenate([here, count + np.arange(len(owners))]).astype(np.intp)):
        part: list[int] = []
        for line in block:
            if line < count:
                part.append(line)
                continue
            owner = owners[line - count]
            if owner not in read:
                read.add(owner)
                ordered += [part, *tables[owner].order]
                part = []
        ordered.append(part)
    return [part for part in ordered if part]


def _paragraph(frame: tuple[float, float, float, float], size: float) -> Numbers:
    """(N, 4) frames of lines of text that fill a frame."""
    left, top, right, bottom = frame
    rows = max(1, int((bottom - top) / (PITCH * size)))
    pitch = (bottom - top) / rows
    tops = top + pitch * np.arange(rows)
    height = LEADING * pitch if rows > 1 else pitch
    return np.stack([np.full(rows, left), tops, np.full(rows, right), tops + height], axis=1)
