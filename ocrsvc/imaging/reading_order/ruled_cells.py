"""Reading order of lines inside ruled tables and frames (cards, notes): each cell is read as a whole.

To order the lines outside, a table is replaced by a paragraph that fills its frame.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ocrsvc.imaging.reading_order.text_rows import Indices, Numbers, TextLines, median, top_down, with_lines

NEAR = 0.6  # largest distance, in line heights, of the ends of ruled lines from the corners of a cell
SAME_RULE = 0.4  # largest distance, in line heights, between two pieces of one ruled line, across it
BROKEN = 0.25  # largest gap, in line heights, between two pieces of one ruled line, along it
TRIES = 3  # number of nearest ruled lines tried on each side of a text line
MAX_OPEN = 0.25  # largest ratio of lines outside closed cells to lines inside, in a table
LABEL = 0.8  # largest distance, in line heights, between a field of a form and its label above it
BESIDE = 4.0  # largest distance, in line heights, between two cards in a row
PITCH = 1.3  # line spacing, in line heights, of the dummy paragraph that replaces a table to order the lines around it
LEADING = 0.8  # height of a line of the dummy paragraph that replaces a table, as a share of the line spacing
ALIKE = 0.1  # largest relative difference of the widths of two cards

Frame = tuple[float, float, float, float]  # left, top, right and bottom in pixels
Sides = tuple[int, int, int, int]  # numbers of the ruled lines left, above, right and below
OrderOf = Callable[[TextLines, Indices], list[int]]  # puts lines without ruled lines between them into reading order


@dataclass(slots=True, eq=False)
class RuledCell:
    """A cell's frame and text lines, without the lines of cells inside it."""

    frame: Frame
    lines: Indices


Block = list[RuledCell]  # the cells of a table, a row of cards or a single frame, in reading order


def with_ruled_blocks(lines: TextLines, blocks: Sequence[Block], order_of: OrderOf) -> list[int]:
    """All lines of a page, which has at least one table or frame (`blocks`), in reading order."""
    # Order the innermost cells first: a frame may contain a table.
    cells = [cell for block in blocks for cell in block]
    frames = np.array([cell.frame for cell in cells])
    outwards = np.argsort(np.prod(frames[:, 2:] - frames[:, :2], axis=1), kind="stable")
    cells, frames = [cells[at] for at in outwards.tolist()], frames[outwards]
    inside: dict[int, list[Block]] = {}
    for block in blocks:
        left, top, right, bottom = _frame_of(block)
        around = (frames[:, :2] < (left, top)).all(axis=1) & (frames[:, 2:] > (right, bottom)).all(axis=1)
        inside.setdefault(int(around.argmax()) if around.any() else -1, []).append(block)
    free = np.ones(len(lines.left), np.bool_)
    orders: dict[int, list[int]] = {}

    def ordered(here: Indices, around: int) -> list[int]:
        tables = inside.get(around, [])
        orders_of = [[line for cell in table for line in orders[id(cell)]] for table in tables]
        return _around_tables(lines, here, list(map(_frame_of, tables)), orders_of, order_of)

    for number, cell in enumerate(cells):
        free[cell.lines] = False
        orders[id(cell)] = ordered(cell.lines, number)
    return ordered(np.flatnonzero(free), -1)


def _frame_of(block: Block) -> Frame:
    left, top, right, bottom = zip(*(cell.frame for cell in block), strict=True)
    return min(left), min(top), max(right), max(bottom)


def _around_tables(
    lines: TextLines, here: Indices, frames: Sequence[Frame], orders: Sequence[list[int]], order_of: OrderOf
) -> list[int]:
    """Put the lines `here` and the tables with these frames in reading order; `orders` has the lines of each table."""
    if not frames:
        # Boxes of neighbouring columns may overlap slightly. If all overlap more than that in x, they are one column.
        if lines.left[here].max() + median(lines.height[here]) < lines.right[here].min():
            return [int(line) for line in top_down(lines, here)]
        return order_of(lines, here)
    paragraphs = [_paragraph(frame, median(lines.height)) for frame in frames]
    owners = np.repeat(np.arange(len(frames)), [len(paragraph) for paragraph in paragraphs]).tolist()
    count, unread, ordered = len(lines.left), dict(enumerate(orders)), list[int]()
    everything = np.concatenate([here, count + np.arange(len(owners))]).astype(np.intp)
    for line in order_of(with_lines(lines, np.concatenate(paragraphs)), everything):
        ordered += [line] if line < count else unread.pop(owners[line - count], [])
    return ordered


def _paragraph(frame: Frame, size: float) -> Numbers:
    """Frames (N, 4) of made-up lines that fill a table's `frame`, so that it is ordered like a paragraph."""
    left, top, right, bottom = frame
    rows = max(1, int((bottom - top) / (PITCH * size)))
    pitch = (bottom - top) / rows
    tops = top + pitch * np.arange(rows)
    height = LEADING * pitch if rows > 1 else pitch
    return np.stack([np.full(rows, left), tops, np.full(rows, right), tops + height], axis=1)


def ruled_blocks(lines: TextLines, vertical: Numbers) -> list[Block]:
    """Find tables, rows of cards and single frames from the horizontal rules of `lines` and vertical rules (M, 3)."""
    if not len(vertical):
        return []
    size = median(lines.height)
    near = NEAR * size
    horizontal = _joined(lines.rules, size)
    vertical = _between(_joined(vertical, size), horizontal, near)
    if not len(vertical):
        return []
    cells = _cells(lines, _with_open_sides(vertical, horizontal, near), horizontal, near)
    tables = [_row_by_row(table, SAME_RULE * size) for table in _with_open_cells(lines, _tables(cells))]
    return _rows_of_cards(lines, [_with_label(lines, table, size) for table in tables], size)


def _joined(pieces: Numbers, size: float) -> Numbers:
    """Join the pieces of broken rules, (N, 3): position across the rule, begin and end along it."""
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
    """Shorten vertical rules to the horizontal rules that they meet; omit those that meet fewer than two."""
    places = horizontal[:, 0]
    meets = (horizontal[:, 1] - near <= vertical[:, :1]) & (vertical[:, :1] <= horizontal[:, 2] + near)
    meets &= (vertical[:, 1:2] - near <= places) & (places <= vertical[:, 2:] + near)
    first = np.where(meets, places, np.inf).min(axis=1, initial=np.inf)
    last = np.where(meets, places, -np.inf).max(axis=1, initial=-np.inf)
    between: Numbers = np.column_stack([vertical[:, 0], first, last])[last - first > near]
    return between


def _with_open_sides(vertical: Numbers, horizontal: Numbers, near: float) -> Numbers:
    """Add vertical rules at the open sides of tables, where several horizontal rules begin or end together."""
    sides = []
    # Group the horizontal rules that begin and end at the same x.
    order = np.lexsort(np.rint(horizontal[:, 1:] / near).T)
    is_other = (np.abs(np.diff(horizontal[order, 1:], axis=0)) > near).any(axis=1)
    for group in np.split(order, np.flatnonzero(is_other) + 1):
        left, right = horizontal[group, 1].min(), horizontal[group, 2].max()
        top, bottom = horizontal[group, 0].min(), horizontal[group, 0].max()
        meets = (vertical[:, 1] < bottom) & (vertical[:, 2] > top)
        places = vertical[meets, 0]
        if len(group) > 1 and ((left < places) & (places < right)).any():
            sides += [[x, top, bottom] for x in (left, right) if not (np.abs(places - x) <= near).any()]
    return np.concatenate([vertical, np.array(sides).reshape(-1, 3)])


def _cells(lines: TextLines, vertical: Numbers, horizontal: Numbers, near: float) -> dict[Sides, RuledCell]:
    """The smallest closed cell around each text line, with the cell's lines; keys are the numbers of its four rules."""
    offsets = vertical[:, 0] - ((lines.left + lines.right) / 2)[:, None]
    beside = (vertical[:, 1] - near <= lines.middle[:, None]) & (lines.middle[:, None] <= vertical[:, 2] + near)
    # Distances of the rules left and right of each text line; infinity for rules above or below it.
    lefts, rights = (np.where(beside & (side > 0), side, np.inf) for side in (-offsets, offsets))
    owners: dict[Sides, list[int]] = {}
    for line in np.flatnonzero(np.isfinite(lefts.min(axis=1)) & np.isfinite(rights.min(axis=1))).tolist():
        pairs = product(_nearest(lefts[line]), _nearest(rights[line]))
        if cell := _closed_cell(vertical, horizontal, pairs, lines.middle[line], near):
            owners.setdefault(cell, []).append(line)
    x, y = vertical[:, 0].tolist(), horizontal[:, 0].tolist()
    return {
        (left, top, right, bottom): RuledCell((x[left], y[top], x[right], y[bottom]), np.array(inside))
        for (left, top, right, bottom), inside in owners.items()
    }


def _nearest(distances: Numbers) -> list[int]:
    """Indices of the TRIES nearest ruled lines."""
    return [rule for rule in np.argsort(distances, kind="stable")[:TRIES].tolist() if np.isfinite(distances[rule])]


def _closed_cell(
    vertical: Numbers, horizontal: Numbers, pairs: Iterable[tuple[int, int]], y: float, near: float
) -> Sides | None:
    """Left, top, right and bottom rule of the cell at `y`, for the first (left, right) of `pairs` that closes one."""
    for left, right in pairs:
        begin = max(vertical[left, 1], vertical[right, 1]) - near
        end = min(vertical[left, 2], vertical[right, 2]) + near
        across = (horizontal[:, 1] - near <= vertical[left, 0]) & (horizontal[:, 2] + near >= vertical[right, 0])
        above = np.where(across & (horizontal[:, 0] <= y), horizontal[:, 0], -np.inf)
        below = np.where(across & (horizontal[:, 0] > y), horizontal[:, 0], np.inf)
        top, bottom = int(above.argmax()), int(below.argmin())
        if begin <= above[top] and below[bottom] <= end:
            return left, top, right, bottom
    return None


def _tables(cells: dict[Sides, RuledCell]) -> list[Block]:
    """Group cells that share vertical rules into tables, in no particular order."""
    groups: dict[int, list[RuledCell]] = {}
    owner: dict[int, int] = {}

    def root(rule: int) -> int:
        while owner.setdefault(rule, rule) != rule:
            owner[rule] = rule = owner[owner[rule]]
        return rule

    for left, _, right, _ in cells:
        owner[root(right)] = root(left)
    for (left, *_), cell in cells.items():
        groups.setdefault(root(left), []).append(cell)
    return list(groups.values())


def _with_open_cells(lines: TextLines, tables: Sequence[Block]) -> list[Block]:
    """Add a cell for each line outside a table's closed cells; with many such lines, split a table into its frames."""
    middle = (lines.left + lines.right) / 2
    free = np.ones(len(middle), np.bool_)
    for cell in (cell for table in tables for cell in table):
        free[cell.lines] = False
    completed: list[Block] = []
    for table in tables:
        left, top, right, bottom = _frame_of(table)
        inside = free & (left < middle) & (middle < right) & (top < lines.middle) & (lines.middle < bottom)
        if len(table) == 1 or inside.sum() > MAX_OPEN * sum(len(cell.lines) for cell in table):
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


def _with_label(lines: TextLines, table: Block, size: float) -> Block:
    """Add to a frame around a single line, such as a form field, the label directly above the frame."""
    [cell, *others] = table
    if others or len(cell.lines) > 1:
        return table
    left, top, right, bottom = cell.frame
    above = (np.abs(top - lines.bottom) < LABEL * size) & (lines.middle < top)
    above &= (lines.left > left - NEAR * size) & (lines.right < right + NEAR * size)
    [*label] = np.flatnonzero(above)
    if len(label) != 1:
        return table
    return [RuledCell((left, float(lines.top[label[0]]), right, bottom), np.append(label, cell.lines))]


def _row_by_row(cells: Block, same_row: float) -> Block:
    downwards = sorted(cells, key=lambda cell: cell.frame[1])
    tops = np.array([cell.frame[1] for cell in downwards])
    rows = np.cumsum(np.diff(tops, prepend=tops[:1]) > same_row).tolist()
    order = sorted(range(len(cells)), key=lambda at: (rows[at], downwards[at].frame[0]))
    return [downwards[at] for at in order]


def _rows_of_cards(lines: TextLines, blocks: Sequence[Block], size: float) -> list[Block]:
    """Join cards that stand side by side into one block; blocks with several cells are unchanged."""
    rows: list[Block] = []
    for block in sorted((block for block in blocks if len(block) == 1), key=lambda block: block[0].frame[0]):
        row = next((row for row in rows if _is_next(lines, row[-1].frame, block[0].frame, size)), None)
        if row is None:
            rows.append(row := [])
        row += block
    return [*(block for block in blocks if len(block) > 1), *rows]


def _is_next(lines: TextLines, one: Frame, other: Frame, size: float) -> bool:
    """Whether two frames are cards of equal width beside each other, without text between them."""
    if min(abs(one[1] - other[1]), abs(one[3] - other[3])) > SAME_RULE * size or not (
        0 < other[0] - one[2] <= BESIDE * size and abs((other[2] - other[0]) / (one[2] - one[0]) - 1) <= ALIKE
    ):
        return False
    middle = (lines.left + lines.right) / 2
    within = (lines.middle > min(one[1], other[1])) & (lines.middle < max(one[3], other[3]))
    within &= (middle > one[0]) & (middle < other[2])
    in_cards = [within & (middle > card[0]) & (middle < card[2]) & (lines.middle < card[3]) for card in (one, other)]
    return bool(within.sum() == np.sum(in_cards))
