"""Orders the lines of tables and lists so that each multi-line cell, and each block beside others, stays together."""

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np

from ocrsvc.imaging.reading_order.text_rows import (
    SAME_ROW,
    Indices,
    TextLines,
    goes_on,
    median,
    numbers_of,
    parts_between,
    rows_of,
    side_by_side,
    stripes_of,
    white_below,
)

CENTRED = 0.3  # largest difference, in line heights, of the centres or first lines of cells that count as level
SAME_RULED = 0.5  # largest difference, in line heights, of the centres or first lines of one row's cells between rules
TABLE_ROWS = 3  # fewest rows with several cells in a table
MAX_TRIED = 4  # number of largest jumps in the sorted gaps tried as the border between line spacing and row spacing
MIN_JUMP = 0.1  # gaps between rows that differ by less than this, in line heights, count as equal
MAX_LEVEL = 0.85  # a table with multi-line cells needs at least this share of level rows
SAME_EDGE = 0.3  # largest distance, in line heights, between left edges of lines of a column
SAME_SIZE = 0.5  # largest relative difference of the heights of lines of a cell
MAX_SMALL = 0.6  # if a larger share of a column's lines begins in lower case, lower case is no sign of continued text
WRAPPED_GAP = 0.4  # largest space, in line heights, between lines of a cell
BLOCK_GAP = 0.9  # least height, in line heights, of a white stripe that ends a block
BLOCK_GUTTER = 0.6  # least space, in line heights, between blocks beside each other
BLOCK_ROWS = 3  # fewest rows for which blocks beside each other are recognized
MAX_BLOCK_ROWS = 8  # blocks of equal length with more rows than this are columns of a table
BLOCK_STRIPE = 0.45  # least height, in line heights, of a white stripe that may end blocks
TIGHT_STRIPE = 0.35  # largest space, in line heights, between lines of blocks of equal length; tables have more
SAME_STRIPE = 0.4  # largest difference, in line heights, of the line spacing of two blocks
MAX_NUMBERS = 0.5  # a block with this share of numbers is a column of a table
MAX_LABELS = 0.34  # blocks with a larger share of lines that end with a colon are a form
ENDS_TRIED = 2  # number of widest white stripes that are tried as the end of blocks

Rows = list[list[int]]
Links = dict[int, int]  # maps a line to the line below that continues its text


def rows_with_cells(lines: TextLines, here: Indices) -> Rows:
    """Group lines into rows; lines of a multi-line cell, or of a block beside another block, stay together."""
    ordered: Rows = []
    rows: Rows = []
    for cells, group in _groups(lines, here):
        if cells:
            ordered += _with_wrapped_lines(lines, rows) + [row for cell in cells for row in rows_of(lines, cell)]
            rows = []
        else:
            rows += rows_of(lines, group)
    return ordered + _with_wrapped_lines(lines, rows)


def _groups(lines: TextLines, here: Indices) -> Iterator[tuple[list[Indices], Indices]]:
    """Yield groups of rows from the top as (cells, lines); `cells` is empty if the group is read row by row."""
    parts = parts_between(lines, here, BLOCK_GAP)
    if not any(records_of(lines, part) for part in parts) and records_of(lines, here):
        parts = [here]
    for part in parts:
        if records := records_of(lines, part):
            yield from records
            continue
        rest = part
        while blocks := blocks_beside(lines, rest):
            yield blocks, np.concatenate(blocks)
            rest = np.setdiff1d(rest, np.concatenate(blocks))
        yield _centred_cells(lines, rest), rest


def records_of(lines: TextLines, here: Indices) -> list[tuple[list[Indices], Indices]]:
    """Rows of a table with multi-line cells, each as (cells, lines); [] if the cells of too many rows are not level."""
    rows = rows_of(lines, here)
    if len(rows) < TABLE_ROWS or max(map(len, rows)) < 2:
        return []
    white = white_below(lines, rows)
    steps = np.sort(white.clip(0))
    jumps = np.diff(steps)
    largest = np.argsort(-jumps, kind="stable")[:MAX_TRIED]
    for jump in np.sort(largest[jumps[largest] >= MIN_JUMP]).tolist():
        cuts = np.flatnonzero(white > (steps[jump] + steps[jump + 1]) / 2) + 1
        groups = [numbers_of(rows[first:last]) for first, last in pairwise([0, *cuts.tolist(), len(rows)])]
        cells = [side_by_side(lines, group) for group in groups]
        if _are_records(lines, cells):
            several = [of_group if max(map(len, of_group)) > 1 < len(of_group) else [] for of_group in cells]
            return list(zip(several, groups, strict=True))
    return []


def _are_records(lines: TextLines, groups: list[list[Indices]]) -> bool:
    beside = [cells for cells in groups if len(cells) > 1]
    several = [cells for cells in beside if max(map(len, cells)) > 1]
    unequal = sum(len(set(map(len, cells))) > 1 for cells in several)
    if len(beside) < TABLE_ROWS or len(several) < 2 or 2 * unequal <= len(several):
        return False
    if any(_has_numbers(lines, cells) for cells in several):
        return False
    level = np.sum([_are_level(lines, cells, CENTRED) for cells in beside], axis=0)
    return bool(level.max() >= MAX_LEVEL * len(beside))


def ruled_rows(lines: TextLines, parts: list[Indices]) -> list[list[Indices]]:
    """For each part between ruled lines, its cells if it is one table row with multi-line cells, else []."""
    cells = [side_by_side(lines, part) for part in parts]
    for number, of_part in enumerate(cells):
        if len(of_part) < 2 or _has_numbers(lines, of_part) or not any(_are_level(lines, of_part, SAME_RULED)):
            cells[number] = []
    counts = [set(map(len, of_part)) for of_part in cells]
    are_rows = sum(len(count) > 1 or count == {1} for count in counts) >= max(TABLE_ROWS, len(parts) / 2)
    return cells if are_rows else [[] for _ in parts]


def _has_numbers(lines: TextLines, cells: list[Indices]) -> bool:
    """Whether one cell is mostly numbers below each other and another has words: the numbers are separate rows."""
    shares = [float(lines.is_number[cell].mean()) for cell in cells]
    stacks = any(share > MAX_NUMBERS and len(cell) > 1 for share, cell in zip(shares, cells, strict=True))
    return stacks and min(shares) < 1


def _centred_cells(lines: TextLines, group: Indices) -> list[Indices]:
    """The cells of a group of lines if it is one table row whose short cells are centred beside taller cells, or []."""
    cells = side_by_side(lines, group) if len(group) > 2 else []
    if len(cells) < 2 or len(set(map(len, cells))) == 1:
        return []
    first, middle = _are_level(lines, cells, CENTRED)
    single = len(cells) > 2 or all(len(row) == 1 for row in rows_of(lines, group))
    return cells if middle and not first and single else []


def _are_level(lines: TextLines, cells: list[Indices], most: float) -> tuple[bool, bool]:
    """Whether the cells' first lines, and whether their centres, differ by at most `most` line heights in y."""
    max_px = most * median(lines.height[np.concatenate(cells)])
    firsts = [float(lines.middle[cell].min()) for cell in cells]
    middles = [float(lines.top[cell].min() + lines.bottom[cell].max()) / 2 for cell in cells]
    return max(firsts) - min(firsts) <= max_px, max(middles) - min(middles) <= max_px


def _with_wrapped_lines(lines: TextLines, rows: Rows) -> Rows:
    """Where lines continue in the next row, replace both rows by their cells, a list of lines each; keep other rows."""
    links = _wrapped(lines, rows) if len(rows) > 1 else {}
    if not links:
        return rows
    row_of = {line: number for number, row in enumerate(rows) for line in row}
    ends = list(range(len(rows)))
    usual = median(white_below(lines, rows))
    for low, high in {(row_of[line], row_of[following]) for line, following in links.items()}:
        if high <= low:
            continue
        closer = white_below(lines, rows[low : high + 1])[0] <= usual - 2 * MIN_JUMP
        can_wrap = closer or len(rows[low]) != len(rows[high]) or len(rows[low]) == 1
        if can_wrap and _goes_on(lines, rows[low], rows[high], links):
            ends[low] = max(ends[low], high)
    ordered: Rows = []
    begins = [0, *(number + 1 for number, end in enumerate(accumulate(ends, max)) if end == number)]
    for first, last in pairwise(begins):
        row = rows[first:last]
        ordered += (_linked_cells(lines, row, links) if len(row) > 1 else []) or row
    return ordered


def _wrapped(lines: TextLines, rows: Rows) -> Links:
    """Link each line to the line below that continues it: a line whose first word did not fit into the line above."""
    here = numbers_of(rows)
    # A line's column ends at the left side of the next line in its row.
    nexts = np.concatenate([[*lines.left[row[1:]], np.inf] for row in rows])
    size = median(lines.height[here])
    order = np.argsort(lines.left[here], kind="stable")
    here, nexts = here[order], nexts[order]
    cuts = np.flatnonzero(np.diff(lines.left[here]) > SAME_EDGE * size) + 1
    is_other = lines.is_number | lines.has_label
    links: Links = {}
    usual = median(white_below(lines, rows)) * size
    for column, behind in zip(np.split(here, cuts), np.split(nexts, cuts), strict=True):
        below = column[np.argsort(lines.middle[column], kind="stable")]
        upper, lower = below[:-1], below[1:]
        end = lines.right[column][lines.right[column] <= behind.min()].max(initial=-np.inf)
        white = lines.top[lower] - lines.bottom[upper]
        near = np.abs(white) <= max(WRAPPED_GAP * size, usual + MIN_JUMP * size)
        alike = np.abs(lines.height[lower] - lines.height[upper]) <= SAME_SIZE * lines.height[upper]
        words = ~(is_other[upper] | is_other[lower] | lines.is_label[upper])
        on = goes_on(lines, upper, lower, end)
        if np.mean(lines.is_lower[column]) < MAX_SMALL:
            on |= lines.is_lower[lower]
        is_link = on & near & alike & words
        links.update(zip(upper[is_link].tolist(), lower[is_link].tolist(), strict=True))
    # In a table, cells beside a multi-line cell are either all level with its first line, or all with its last. So true
    # links all lead to rows of fewer cells, or all to rows of more cells: drop the links of the rarer kind.
    cells = {line: len(row) for row in rows for line in row}
    more = {line: int(np.sign(cells[following] - cells[line])) for line, following in links.items()}
    usual = sum(more.values())
    return {line: following for line, following in links.items() if more[line] * usual >= 0}


def _goes_on(lines: TextLines, row: list[int], other: list[int], links: Links) -> bool:
    """Whether each line of `row` continues in the line of `other` below it; if not, both are separate table rows."""
    for line, place in zip(row, (np.searchsorted(lines.left[other], lines.right[row]) - 1).tolist(), strict=True):
        if place >= 0 and lines.right[other[place]] > lines.left[line] and links.get(line) != other[place]:
            return False
    return True


def _linked_cells(lines: TextLines, rows: Rows, links: Links) -> Rows:
    """Join linked lines into the cells of a table row, from left to right; none if cells overlap."""
    cells: Rows = []
    open_cells: dict[int, list[int]] = {}
    for line in (line for row in rows for line in row):
        if line not in open_cells:
            cells.append([])
        cell = open_cells.pop(line, cells[-1])
        cell.append(line)
        open_cells[links.get(line, -1)] = cell
    cells.sort(key=lambda cell: float(lines.left[cell].min()))
    slack = CENTRED * median(lines.height[cells[0]])
    apart = all(lines.right[one].max() - slack <= lines.left[other].min() for one, other in pairwise(cells))
    return cells if apart else []


def blocks_beside(lines: TextLines, part: Indices) -> list[Indices]:
    """Blocks side by side with level tops, at the top of a page part or below its heading; [] if there are none."""
    rows = rows_of(lines, part) if len(part) > BLOCK_ROWS else []
    first = next((number for number, row in enumerate(rows) if len(row) > 1), len(rows))
    if len(rows) - first < BLOCK_ROWS:
        return []
    # The blocks may end at one of the widest white stripes below them, else at the end of the page part: try each.
    white = white_below(lines, rows[first:])
    widest = np.argsort(-white, kind="stable")[:ENDS_TRIED]
    for last in [*(first + 1 + widest[white[widest] > BLOCK_STRIPE]).tolist(), len(rows)]:
        blocks = side_by_side(lines, numbers_of(rows[first:last]), BLOCK_GUTTER)
        if _are_blocks(lines, blocks, last - first):
            return [numbers_of(rows[:first]), *blocks] if first else blocks
    return []


def _are_blocks(lines: TextLines, blocks: list[Indices], rows: int) -> bool:
    several = [block for block in blocks if len(block) > 1]
    if rows < BLOCK_ROWS or len(several) < 2:
        return False
    size = median(lines.height[np.concatenate(blocks)])
    tops = [float(lines.top[block].min()) for block in blocks]
    if max(tops) - min(tops) > SAME_ROW * size:
        return False
    numbers = max(lines.is_number[block].mean() for block in several) >= MAX_NUMBERS
    if numbers or max(lines.is_label[block].mean() for block in several) > MAX_LABELS:
        return False
    pitches = [median(stripes_of(lines, block)[1]) for block in several]
    if max(pitches) - min(pitches) > SAME_STRIPE:
        return False
    if len({len(block) for block in blocks}) == 1:
        loose = median(np.concatenate([stripes_of(lines, block)[1] for block in blocks])) > TIGHT_STRIPE
        if loose or rows > MAX_BLOCK_ROWS:
            return False
    return all(len(parts_between(lines, block, BLOCK_GAP)) == 1 for block in blocks)
