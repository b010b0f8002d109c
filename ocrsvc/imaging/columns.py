"""Whether a gutter parts two columns that are read one after the other, or cells of rows that are read across it.

What tells them apart is the alignment across the gutter: the rows of a table are level with each other, and the lines
of two columns mostly are not. Where both sides are level (type set on a grid, pages of a sheet, tables beside each
other) they part when they look alike.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ocrsvc.imaging.gutters import Gutter
from ocrsvc.imaging.text_rows import Indices, Numbers, TextLines, cells_of, median, rows_of

LEVEL = 0.15  # distance of two middles that are level, as a share of the smaller height
OVERLAPPING = 0.7  # distance of two middles that are neither level nor above each other
CHANCE = 0.7  # of the rows of two columns may be level by chance
CHANCE_OF_WORDS = 0.85  # the same of long lines of words, which tables seldom have
TEXT_LENGTH = 6.0  # median length of running text, in line heights
EVEN = 0.2  # how far the lengths of most lines of running text are from their median, as a share of it
MOST_EVEN = 0.6  # of its lines
TIGHT = 1.5  # pitch of lines that belong together, in heights of their boxes
SIMILAR = 0.5  # ratio of the lengths of the lines of two lists
REGULAR = 0.7  # of the rows of a list have the same number of cells
ALIKE = 0.7  # ratio of two widths that are alike
FEW_ROWS = 3
PARAGRAPH = 0.7  # groups of close lines for each line, where there are paragraphs of several lines
LEAST_CELLS = 2  # level by themselves, though their lines are not, make a table
STRICT = 4.0  # rows level for each that is not, on both sides of which there may be lists or tables
SAME_EDGE = 0.6  # of the lines of a column begin, end or are centred at the same place
FEW = 0.5
LIST_LENGTH = 5.0  # median length of the lines of a list, in line heights
APART = 2.0  # times the widest gap inside of two tables that are apart


def parts_columns(lines: TextLines, gutter: Gutter) -> bool:
    """Whether what is left of a gutter is read before what is right of it."""
    left, right = rows_of(lines, gutter.left), rows_of(lines, gutter.right)
    facing = _facing(left, right)
    level, crooked = _levels(lines, gutter, *facing)
    chance = CHANCE_OF_WORDS if all(_is_words(lines, side) for side in facing) else CHANCE
    by_chance = crooked >= FEW_ROWS and level <= chance * (level + crooked)
    if by_chance or (crooked > 1 and not level):
        return any(_is_column(lines, side) for side in facing)
    return _are_alike(lines, gutter, left, right, strict=level >= STRICT * crooked)


def reads_across(lines: TextLines, left: Indices, right: Indices) -> bool:
    """Whether the rows of a part of two columns are level and not alike: a table or a header between columns."""
    gutter = Gutter(left, right, 0, len(left) + len(right))
    rows = rows_of(lines, left), rows_of(lines, right)
    level, crooked = _levels(lines, gutter, *_facing(*rows))
    return level > CHANCE_OF_WORDS * (level + crooked) and not _are_alike(lines, gutter, *rows, strict=True)


def _facing(left: list[list[int]], right: list[list[int]]) -> tuple[Indices, Indices]:
    """The lines of each row beside the gutter."""
    return np.array([row[-1] for row in left]), np.array([row[0] for row in right])


def _levels(lines: TextLines, gutter: Gutter, left: Indices, right: Indices) -> tuple[int, int]:
    """How many rows of the side with fewer of them are level with a row across, and how many overlap one or two.

    Rows in cells of several rows are level when the cells are. Rows beside which there is nothing are not counted.
    """
    sides = (left, gutter.left), (right, gutter.right)
    (fewer, all_fewer), (more, all_more) = sorted(sides, key=lambda side: len(side[0]))
    size = np.minimum(lines.height[fewer], median(lines.height[more]))
    distance = _nearest(lines.middle[fewer], np.sort(lines.middle[more]))[0] / size
    in_level_cell = np.isin(fewer, _in_level_cells(lines, all_fewer, all_more))
    level = (distance <= LEVEL) | in_level_cell
    return int(np.sum(level)), int(np.sum(~level & (distance <= OVERLAPPING)))


def _in_level_cells(lines: TextLines, one: Indices, other: Indices) -> Indices:
    """The lines of one side in groups of close lines that are level with one group across, several times."""
    groups = [cells_of(lines, side) for side in (one, other)]
    tops, bottoms = (
        [np.array([extreme(sides[group]) for group in side]) for side in groups]
        for extreme, sides in ((np.min, lines.top), (np.max, lines.bottom))
    )
    middles = [(top + bottom) / 2 for top, bottom in zip(tops, bottoms, strict=True)]
    inside = [
        np.searchsorted(middles[1 - side], bottoms[side]) - np.searchsorted(middles[1 - side], tops[side])
        for side in (0, 1)
    ]
    distance, nearest = _nearest(middles[0], middles[1])
    size = median(lines.height[one])
    level = (distance <= LEVEL * size) & (inside[0] == 1) & (inside[1][nearest] == 1)
    if level.sum() < LEAST_CELLS:
        return one[:0]
    return np.concatenate([one[:0], *(group for group, is_level in zip(groups[0], level, strict=True) if is_level)])


def _nearest(places: Numbers, targets: Numbers) -> tuple[Numbers, Indices]:
    """Distance of each place from the nearest of sorted targets, and which one that is."""
    after = np.searchsorted(targets, places).clip(1, max(1, len(targets) - 1))
    candidates = np.stack([after - 1, after % len(targets)])
    distances = np.abs(targets[candidates] - places)
    chosen = np.argmin(distances, axis=0)
    everywhere = np.arange(len(places))
    return distances[chosen, everywhere], candidates[chosen, everywhere]


def _is_words(lines: TextLines, column: Indices) -> bool:
    size, length = median(lines.height[column]), median(lines.right[column] - lines.left[column])
    return bool(length >= TEXT_LENGTH * size and lines.is_number[column].mean() < FEW)


def _is_column(lines: TextLines, facing: Indices) -> bool:
    """Whether most lines of a side begin, end or are centred at one place; words scattered in a picture are not."""
    size = median(lines.height[facing])
    places = (lines.left[facing], lines.right[facing], (lines.left[facing] + lines.right[facing]) / 2)
    return any(np.mean(np.abs(place - median(place)) <= size) >= SAME_EDGE for place in places)


def _are_alike(
    lines: TextLines, gutter: Gutter, left: list[list[int]], right: list[list[int]], *, strict: bool
) -> bool:
    """Whether two sides whose rows are level are two columns of text, two lists, or two tables or pages."""
    facing = _facing(left, right)
    if min(len(left), len(right)) < FEW_ROWS:
        return False
    pitches = [median(np.diff(lines.middle[side])) for side in facing]
    if min(pitches) < ALIKE * max(pitches):
        return False
    if any(lines.is_label[side].mean() > FEW for side in facing):
        return False
    if all(_is_running_text(lines, side) for side in facing):
        return True
    regular = all(_regularity([len(row) for row in side]) >= REGULAR for side in (left, right))
    if regular and (_are_differently_divided(lines, *facing) or (strict and _are_lists(lines, *facing))):
        return True
    return strict and _are_tables(lines, gutter, left, right)


def _is_running_text(lines: TextLines, column: Indices) -> bool:
    length = lines.right[column] - lines.left[column]
    even = np.mean(np.abs(length / median(length) - 1) <= EVEN) >= MOST_EVEN
    return bool(even and _is_tight(lines, column, TEXT_LENGTH))


def _are_differently_divided(lines: TextLines, left: Indices, right: Indices) -> bool:
    """Whether both sides are paragraphs of words that neither begin together nor have their middles level."""
    if not (_is_words(lines, left) and _is_words(lines, right)):
        return False
    paragraphs = [cells_of(lines, side) for side in (left, right)]
    if any(len(cells) > PARAGRAPH * len(side) for cells, side in zip(paragraphs, (left, right), strict=True)):
        return False
    fewer, more = sorted(paragraphs, key=len)
    size = LEVEL * median(lines.height[left])
    matched = np.zeros(len(fewer), np.bool_)
    for place in (_top, _middle):
        places = [np.array([place(lines, cell) for cell in side]) for side in (fewer, more)]
        matched |= _nearest(*places)[0] <= size
    return len(fewer) >= FEW_ROWS and matched.mean() <= FEW


def _top(lines: TextLines, cell: Indices) -> float:
    return float(lines.middle[cell].min())


def _middle(lines: TextLines, cell: Indices) -> float:
    return float(lines.top[cell].min() + lines.bottom[cell].max()) / 2


def _is_tight(lines: TextLines, column: Indices, least: float) -> bool:
    """Whether lines that are mostly words, and longer than `least` line heights, stand close above each other."""
    size = median(lines.height[column])
    long = median(lines.right[column] - lines.left[column]) >= least * size
    close = median(np.diff(lines.middle[column])) <= TIGHT * size
    return bool(long and close and lines.is_number[column].mean() < FEW)


def _are_lists(lines: TextLines, left: Indices, right: Indices) -> bool:
    """Two tight columns of words of about the same length: addresses, an index."""
    lengths = [median(lines.right[side] - lines.left[side]) for side in (left, right)]
    tight = all(_is_tight(lines, side, LIST_LENGTH) for side in (left, right))
    return tight and min(lengths) >= SIMILAR * max(lengths)


def _regularity(counts: list[int]) -> float:
    """How many of the rows have the most frequent number of cells."""
    return max(counts.count(count) for count in set(counts)) / len(counts)


def _are_tables(lines: TextLines, gutter: Gutter, left: list[list[int]], right: list[list[int]]) -> bool:
    """Two sides of several columns each: columns of the same kinds in the same order, or far apart."""
    kinds = [_kinds(lines, side) for side in (left, right)]
    if kinds[0] != kinds[1] or len(kinds[0]) < 2:
        return False
    if len(set(kinds[0])) > 1:
        widths = [float(lines.right[side].max() - lines.left[side].min()) for side in (gutter.left, gutter.right)]
        return min(widths) >= ALIKE * max(widths)
    width = float(lines.left[gutter.right].min() - lines.right[gutter.left].max())
    return width >= APART * max(_gap(lines, side) for side in (left, right))


def _kinds(lines: TextLines, rows: list[list[int]]) -> tuple[bool, ...]:
    """For each cell of the most frequent kind of row: whether it mostly is a number."""
    counts = [len(row) for row in rows]
    usual = max(set(counts), key=counts.count)
    cells = np.array([row for row in rows if len(row) == usual])
    return tuple((lines.is_number[cells].mean(axis=0) >= FEW).tolist())


def _gap(lines: TextLines, rows: list[list[int]]) -> float:
    """The median, over rows of several cells, of the widest gap in it."""
    gaps = [
        max(float(lines.left[after] - lines.right[before]) for before, after in pairwise(row))
        for row in rows
        if len(row) > 1
    ]
    return median(np.array(gaps))
