"""White gutters between lines of text, and whether a gutter separates two columns or the cells of rows.

A gutter is a tall white rectangle that no line crosses, after T. Breuel, "Two geometric algorithms for layout analysis"
(2002). Rows of a table are level on both sides of a gutter; lines of two columns mostly are not. Columns may be level,
too: text on a baseline grid, two pages on a sheet, tables side by side. Their two sides look alike.
"""

from dataclasses import dataclass

import numpy as np

from ocrsvc.imaging.reading_order.text_rows import (
    SAME_ROW,
    Flags,
    Indices,
    Numbers,
    TextLines,
    goes_on,
    median,
    numbers_of,
    rows_of,
    stripes_of,
)

SHRINK = 0.2  # share of its height by which a box is shortened at each end: detected boxes reach beyond the ink
MAX_PLACES = 160  # most x positions tried for a gutter; a page of thousands of words must not hold the GIL for long
MAX_GUTTERS = 16  # most gutters examined per region
MIN_ROWS = 2
EDGE = 0.15  # this quantile of the left sides of lines right of a gutter is the left edge of their column
ALIGNED = 1.5  # lines of a column begin at most this many line heights from the column's left edge
HEADING = 1.15  # least height of a heading's lines, in heights of the lines of text
HEADING_ROWS = 2  # most lines of a heading
HEADER = 1.0  # least blank space, in line heights, below a header or above a footer
STRIPE = 0.2  # least space, in line heights, between columns and lines outside them, in addition to the usual leading

LEVEL = 0.15  # largest distance of the centres of level lines, as a share of the smaller height
LEVEL_OF_NUMBERS = 0.3  # largest distance of the centres of level lines if a side is numbers, which have small boxes
OVERLAPPING = 0.7  # largest distance of the centres of lines that overlap without being level
CHANCE = 0.7  # in two columns, at most this share of the rows is level by chance
CHANCE_OF_WORDS = 0.85  # largest share of rows level by chance in columns of words: tables seldom have only words
STRICT = 4.0  # two lists side by side may be columns if this many rows are level for each that is not
FEW_ROWS = 3  # fewest rows that are evidence for columns or for a table
LONG = 4.0  # lines with at least this median length, in line heights, are words, not cells of a table
EVEN = 0.2  # largest deviation of lengths of running text from their median, as a share of the median
TIGHT = 1.5  # largest distance between lines of one text, in heights of their boxes
LOOSE = 2.1  # largest distance between long lines of one text, in box heights: Chinese has wide line spacing
FULL = 8.0  # running text with at least this median line length, in line heights, counts as long lines
RAGGED = 0.25  # a line that ends with more of its column's width free is the last of its paragraph
WRAPPED = 0.34  # a column is paragraphs if at least this share of its lines continues in the next line
MOST = 0.6  # a property of this share of a column's lines or rows counts for the whole column
ALIKE = 0.5  # widths or line spacings are similar if their ratio is at least this
LABELS = 0.33  # a column with a larger share of lines that end with a colon is the labels of a form
HALF = 0.5  # least share of numbers among the lines of a column of numbers
APART = 2.0  # least width of a gutter between two tables, as a multiple of the gaps inside them


@dataclass(frozen=True, slots=True)
class Gutter:
    """The lines left and right of a vertical gap, which extends beside the lines [`first`, `last`) of its region."""

    left: Indices
    right: Indices
    first: int
    last: int


def tall_gutters(lines: TextLines, ordered: Indices) -> list[Gutter]:
    """The tallest gutters of a region, tallest first; `ordered` are its lines, sorted by their centres from the top."""
    if len(ordered) < 2 * MIN_ROWS:
        return []
    shrink = np.minimum(SHRINK * lines.height[ordered], 0.25 * (lines.right[ordered] - lines.left[ordered]))
    lefts, rights = lines.left[ordered] + shrink, lines.right[ordered] - shrink
    places = _places(lefts, rights)[:, None]
    before = rights <= places
    gutters = []
    for run_first, run_last, place in _runs(lines.middle[ordered], before, lefts > places):
        first, last = _band(lines, ordered, run_first, run_last, before[place])
        sides = before[place, first:last]
        left, right = ordered[first:last][sides], ordered[first:last][~sides]
        if min(len(left), len(right)):
            gutters.append(Gutter(left, right, first, last))
    return sorted(gutters, key=lambda gutter: -_height(lines, ordered[gutter.first : gutter.last]))[:MAX_GUTTERS]


def _band(lines: TextLines, ordered: Indices, first: int, last: int, is_left: Flags) -> tuple[int, int]:
    """Cut off rows above and below a gutter's columns that blank space separates from them; returns [first, last)."""
    here, is_right = ordered[first:last], ~is_left[first:last]
    lefts, size = lines.left[here], median(lines.height[here])
    edge = np.sort(lefts[is_right])[max(1, int(EDGE * np.sum(is_right)))]
    aligned = np.flatnonzero(is_right & (np.abs(lefts - edge) <= ALIGNED * size))
    begin, end = int(aligned[0]), int(aligned[-1]) + 1
    if begin == 0 and end == len(here):
        return first, last
    bottoms = np.maximum.accumulate(lines.bottom[here])
    stripes = (np.minimum.accumulate(lines.top[here][::-1])[::-1][1:] - bottoms[:-1]) / size
    below = np.diff(lines.middle[here]) > SAME_ROW * size
    usual = median(np.append(stripes[below], 0.0).clip(0))
    above = (lines.top[here[0]] - lines.bottom[ordered[first - 1]]) / size if first else HEADER - STRIPE
    larger = lines.height[here[:begin]] > HEADING * size
    # Leave out top rows above a gap larger than usual and, unless they are headings, than the space above the region.
    ends = np.flatnonzero(stripes[:begin] > np.where(larger, usual, max(above, usual)) + STRIPE)
    start = first + int(ends[-1]) + 1 if len(ends) else first
    if end == len(here) or is_right[:end].all():
        return start, last
    tail = stripes[end - 1 :]
    known = np.abs(lefts[end:, None] - lefts[begin:end][is_right[begin:end]]).min(axis=1) <= ALIGNED * size
    other = np.flatnonzero(is_right[end:] & ~known & (lines.top[here[end:]] > lines.middle[here[end - 1]]))
    if len(other):
        # If a column with another left edge begins below, end this gutter at the tallest gap above that column.
        white = tail[: other[0] + 1]
        wide = np.flatnonzero(white > max(usual, white.max() - 2 * STRIPE) + STRIPE)
        return start, first + end + int(wide[0]) if len(wide) else last
    apart = _are_headings(lines, here[end:], here[:end][~is_right[:end]]) & (tail > usual + STRIPE)
    if last < len(ordered):
        below = (lines.top[ordered[last]] - lines.bottom[here[-1]]) / size
        # End the gutter only at a gap taller than those between the paragraphs of the left column.
        recurring = np.sort(np.append(stripes_of(lines, here[:end][~is_right[:end]])[1], [0.0, 0.0]))[-2]
        apart |= tail > max(usual, min(HEADER, max(below, recurring))) + STRIPE
    ends = np.flatnonzero(apart)
    return start, first + end + int(ends[0]) if len(ends) else last


def _are_headings(lines: TextLines, here: Indices, text: Indices) -> Flags:
    """Which lines `here` are headings: at most the last HEADING_ROWS of them, if in larger type than `text`."""
    # A box around only a few characters is too high, so in a heading the characters must also be wider.
    larger = lines.height[here] > HEADING * median(lines.height[text])
    larger &= lines.character[here] > HEADING * median(lines.character[text])
    larger[:-HEADING_ROWS] = False
    return np.logical_and.accumulate(larger[::-1])[::-1]


def _height(lines: TextLines, here: Indices) -> int:
    """Distance in pixels from the top of the highest line to the bottom of the lowest."""
    return round(float(lines.bottom[here].max() - lines.top[here].min()))


def _places(lefts: Numbers, rights: Numbers) -> Numbers:
    """Candidate x of gutters: right edges followed by a line's left edge. Those that fewest lines cross come first."""
    edges = np.concatenate([rights, lefts])
    order = np.argsort(edges, kind="stable")
    is_left = order >= len(rights)
    ends = np.flatnonzero(~is_left[:-1] & is_left[1:])
    crossing = np.cumsum(np.where(is_left, 1, -1))[ends]
    return edges[order[ends[np.argsort(crossing, kind="stable")[:MAX_PLACES]]]]


def _runs(middle: Numbers, before: Flags, behind: Flags) -> list[tuple[int, int, int]]:
    """Runs of lines that do not cross an x, tallest first, as (first, last, index of the x).

    If several x divide the lines of a run in the same way, only one of them is returned.
    """
    across = np.pad(~(before | behind), ((0, 0), (1, 1)), constant_values=True)
    place, at = np.nonzero(across)
    same = place[1:] == place[:-1]
    first, last, place = at[:-1][same], at[1:][same] - 1, place[1:][same]
    counts = np.pad(np.cumsum(before, axis=1), ((0, 0), (1, 0)))
    left = counts[place, last] - counts[place, first]
    possible = np.flatnonzero((left >= MIN_ROWS) & (last - first - left >= MIN_ROWS))
    first, last, place, left = (array[possible] for array in (first, last, place, left))
    longest = np.argsort(middle[first] - middle[last - 1], kind="stable")[: 64 * MAX_GUTTERS]
    parting = (first * (len(middle) + 1) + last) * (len(middle) + 1) + left
    _, once = np.unique(parting[longest], return_index=True)
    chosen = longest[np.sort(once)][: 4 * MAX_GUTTERS]
    return list(zip(first[chosen].tolist(), last[chosen].tolist(), place[chosen].tolist(), strict=True))


def parts_columns(lines: TextLines, gutter: Gutter) -> bool:
    """Whether a gutter separates columns: all lines left of it are read before those right of it."""
    left, right = rows_of(lines, gutter.left), rows_of(lines, gutter.right)
    facing = _facing(left, right)
    level, crooked = _levels(lines, *facing)
    # If all rows are level, they may be a table with long cells: then more lines must continue in the next.
    if flow(lines, *facing, least=WRAPPED if crooked else HALF):
        return True
    by_chance = crooked >= FEW_ROWS and level <= _level_by_chance(lines, *facing) * (level + crooked)
    if by_chance or (crooked > 1 and not level):
        return any(_is_column(lines, side) for side in facing)
    # Where many rows face nothing, such as labels far from their amounts, columns that look alike are so by chance.
    facing_rows = level + crooked >= MOST * min(len(left), len(right))
    return facing_rows and _are_alike(lines, left, right, strict=level >= max(FEW_ROWS, STRICT * crooked))


def is_table(lines: TextLines, left: Indices, right: Indices) -> bool:
    """Whether two columns are a table of numbers: rows are level, and the columns are not two separate texts."""
    if min(len(left), len(right)) < FEW_ROWS or all(lines.is_number[side].mean() <= HALF for side in (left, right)):
        return False
    rows = rows_of(lines, left), rows_of(lines, right)
    level, crooked = _levels(lines, *_facing(*rows))
    return level > CHANCE_OF_WORDS * (level + crooked) and not _are_alike(lines, *rows, strict=True)


def _facing(left: list[list[int]], right: list[list[int]]) -> tuple[Indices, Indices]:
    """In each row, the last line left of the gutter and the first line right of it."""
    return np.array([row[-1] for row in left]), np.array([row[0] for row in right])


def _levels(lines: TextLines, left: Indices, right: Indices) -> tuple[int, int]:
    """Count the shorter side's lines that are level with a line of the other side, and those that only overlap one."""
    fewer, more = sorted((left, right), key=len)
    size = np.minimum(lines.height[fewer], median(lines.height[more]))
    distance = _nearest(lines.middle[fewer], np.sort(lines.middle[more])) / size
    level = distance <= _tolerance(lines, left, right)
    return int(np.sum(level)), int(np.sum(~level & (distance <= OVERLAPPING)))


def _level_by_chance(lines: TextLines, left: Indices, right: Indices) -> float:
    """The largest share of rows that may be level by chance; in a table more are level.

    Narrowly spaced rows are level with many lines of the other side wherever those are, so the share is at least
    halfway between what is expected of any lines there and 1.
    """
    most = CHANCE_OF_WORDS if all(_is_words(lines, side) for side in (left, right)) else CHANCE
    more = max((left, right), key=len)
    pitch = median(np.diff(np.sort(lines.middle[more]))) / median(lines.height[more])
    expected = _tolerance(lines, left, right) / max(min(pitch / 2, OVERLAPPING), LEVEL_OF_NUMBERS)
    return max(most, (1 + expected) / 2)


def _tolerance(lines: TextLines, left: Indices, right: Indices) -> float:
    numbers = any(lines.is_number[side].mean() > HALF for side in (left, right))
    return LEVEL_OF_NUMBERS if numbers else LEVEL


def _nearest(places: Numbers, targets: Numbers) -> Numbers:
    """Distance of each value in `places` from the nearest of the sorted `targets`."""
    after = np.searchsorted(targets, places).clip(1, max(1, len(targets) - 1))
    nearest: Numbers = np.minimum(np.abs(targets[after - 1] - places), np.abs(targets[after % len(targets)] - places))
    return nearest


def _is_words(lines: TextLines, column: Indices) -> bool:
    length = median(lines.right[column] - lines.left[column])
    return bool(length >= LONG * median(lines.height[column]) and lines.is_number[column].mean() < HALF)


def _is_column(lines: TextLines, facing: Indices) -> bool:
    """Whether most lines of a side share their left, right or centre x, as scattered words do not."""
    size = median(lines.height[facing])
    places = (lines.left[facing], lines.right[facing], (lines.left[facing] + lines.right[facing]) / 2)
    return any(np.mean(np.abs(place - median(place)) <= size) >= MOST for place in places)


def _are_alike(lines: TextLines, left: list[list[int]], right: list[list[int]], *, strict: bool) -> bool:
    """Whether columns with level rows look alike, so that they are separate texts, tables or (if `strict`) lists."""
    facing = _facing(left, right)
    if min(len(left), len(right)) < FEW_ROWS:
        return False
    pitches = [median(np.diff(lines.middle[side])) for side in facing]
    if min(pitches) < ALIKE * max(pitches):
        return False
    if any(lines.is_label[side].mean() > LABELS for side in facing):
        return False
    if all(_is_running_text(lines, side) for side in facing):
        return True
    return _are_tables(lines, left, right) or (strict and _are_lists(lines, left, right))


def _is_running_text(lines: TextLines, column: Indices) -> bool:
    """Whether the lines of a column are words, of about equal length and with little space between them."""
    length = lines.right[column] - lines.left[column]
    even = np.mean(np.abs(length / median(length) - 1) <= EVEN) >= MOST
    is_long = median(length) >= FULL * median(lines.height[column])
    tight = _is_tight(lines, column, LOOSE if is_long else TIGHT)
    return bool(even) and tight and _is_words(lines, column)


def flow(lines: TextLines, left: Indices, right: Indices, least: float = WRAPPED) -> bool:
    """Whether the paragraphs of two columns begin at different heights, unlike the cells of table rows."""
    begins = [_paragraphs(lines, side, least) for side in (left, right)]
    fewer, more = sorted((lines.middle[side] for side in begins), key=len)
    if not len(fewer):
        return False
    level = _nearest(fewer, np.sort(more)) <= LEVEL_OF_NUMBERS * median(lines.height[left])
    return len(more) <= FEW_ROWS or level.sum() < CHANCE_OF_WORDS * len(more)


def _paragraphs(lines: TextLines, column: Indices, least: float) -> Indices:
    """First lines of a column's paragraphs; empty if the share of lines that continue in the next is below `least`."""
    size = median(lines.height[column])
    if len(column) < FEW_ROWS or max(lines.is_number[column].mean(), lines.is_label[column].mean()) > LABELS:
        return column[:0]
    on = goes_on(lines, column[:-1], column[1:], float(lines.right[column].max()))
    on &= lines.top[column][1:] - lines.bottom[column][:-1] <= size
    begin, end = lines.left[column].min(), lines.right[column].max()
    on &= lines.right[column][:-1] >= end - RAGGED * (end - begin)
    full = (lines.right[column] - lines.left[column])[:-1][on]
    flows = np.mean(on) >= least and median(full) >= FULL * size
    return column[np.append(True, ~on)] if flows else column[:0]


def _is_tight(lines: TextLines, column: Indices, most: float = TIGHT) -> bool:
    """Whether the median distance from line to line of a column is at most `most` line heights."""
    return median(np.diff(lines.middle[column])) <= most * median(lines.height[column])


def _are_lists(lines: TextLines, left: list[list[int]], right: list[list[int]]) -> bool:
    """Whether both sides are narrowly spaced columns of words, similar in length, such as addresses or an index."""
    facing = _facing(left, right)
    lengths = [median(lines.right[side] - lines.left[side]) for side in facing]
    tight = all(_is_words(lines, side) and _is_tight(lines, side) for side in facing)
    prices = [[lines.is_number[row[-1]] > lines.is_number[row[0]] for row in side] for side in (left, right)]
    priced = any(np.mean(side) > HALF for side in prices)
    regular = all(_regularity([len(row) for row in side]) >= MOST for side in (left, right))
    return tight and regular and not priced and min(lengths) >= ALIKE * max(lengths)


def _regularity(counts: list[int]) -> float:
    """The share of rows that have the most frequent number of cells."""
    return max(counts.count(count) for count in set(counts)) / len(counts)


def _are_tables(lines: TextLines, left: list[list[int]], right: list[list[int]]) -> bool:
    """Whether both sides of a gutter are tables, with equal sequences of number and text columns.

    If all columns are of one kind, the gutter must also be wider than the gaps between them.
    """
    kinds = [_kinds(lines, side) for side in (left, right)]
    counts = [[len(row) for row in side] for side in (left, right)]
    if any(_regularity(of_side) * len(of_side) < max(FEW_ROWS, HALF * len(of_side)) for of_side in counts):
        return False
    if kinds[0] != kinds[1] or len(kinds[0]) < 2:
        return False
    before, behind = numbers_of(left), numbers_of(right)
    if len(set(kinds[0])) > 1:
        widths = [float(lines.right[side].max() - lines.left[side].min()) for side in (before, behind)]
        return min(widths) >= ALIKE * max(widths)
    white = lines.left[behind].min() - lines.right[before].max()
    # The widest gap of each row with several cells.
    gaps = [[(lines.left[row[1:]] - lines.right[row[:-1]]).max() for row in side if row[1:]] for side in (left, right)]
    return bool(white >= APART * max(median(np.array(widest)) for widest in gaps))


def _kinds(lines: TextLines, rows: list[list[int]]) -> tuple[bool, ...]:
    """Whether each column holds mostly numbers; only rows with the most frequent number of cells count."""
    counts = [len(row) for row in rows]
    usual = max(set(counts), key=counts.count)
    cells = np.array([row for row in rows if len(row) == usual])
    return tuple((lines.is_number[cells].mean(axis=0) >= HALF).tolist())
