"""White gutters between lines of text: white rectangles that no line crosses, as tall as possible.

After T. Breuel, "Two geometric algorithms for layout analysis" (2002), who looks for the largest white rectangles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocrsvc.imaging.reading_order.text_rows import SAME_ROW, Flags, Indices, Numbers, TextLines, median, stripes_of

SHRINK = 0.2  # boxes of a detector reach beyond the ink; this much of the height is no obstacle on each side
MOST_PLACES = 160  # places tried for a gutter; a page of thousands of words must not hold the interpreter for long
MOST_GUTTERS = 16  # gutters that are judged
LEAST_ROWS = 2
EDGE = 0.15  # of the lines right of a gutter begin further left than the column beside it
ALIGNED = 1.5  # line heights from there at which a line begins a row of that column
HEADING = 1.15  # height of a heading, in heights of the lines above it
HEADING_ROWS = 2  # most lines of a heading
HEADER = 1.0  # white, in line heights, below a header or above a footer
STRIPE = 0.2  # white, in line heights, between columns and what is beyond them, besides that between their lines


@dataclass(frozen=True, slots=True)
class Gutter:
    """A white gutter: the lines on both sides of it, [first, last) of the region's lines from top to bottom."""

    left: Indices
    right: Indices
    first: int
    last: int


def tall_gutters(lines: TextLines, ordered: Indices) -> list[Gutter]:
    """The tallest gutters of a region, whose lines are in the order of their middles; tallest first."""
    if len(ordered) < 2 * LEAST_ROWS:
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
        if min(len(left), len(right)) and _are_beside(lines, left, right):
            gutters.append(Gutter(left, right, first, last))
    return sorted(gutters, key=lambda gutter: -_height(lines, ordered[gutter.first : gutter.last]))[:MOST_GUTTERS]


def _are_beside(lines: TextLines, left: Indices, right: Indices) -> bool:
    lowest_top = max(lines.top[left].min(), lines.top[right].min())
    return bool(min(lines.bottom[left].max(), lines.bottom[right].max()) > lowest_top)


def _band(lines: TextLines, ordered: Indices, first: int, last: int, is_left: Flags) -> tuple[int, int]:
    """A gutter without the rows at its ends that belong to other columns, and happen to leave its place free.

    Nothing in them begins where other lines of the right side begin, and white parts them from its other rows.
    """
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
    # White that is no wider than that above such rows does not part them from what is below; a heading is looser.
    ends = np.flatnonzero(stripes[:begin] > np.where(larger, usual, max(above, usual)) + STRIPE)
    start = first + int(ends[-1]) + 1 if len(ends) else first
    if end == len(here) or is_right[:end].all():
        return start, last
    tail = stripes[end - 1 :]
    known = np.abs(lefts[end:, None] - lefts[begin:end][is_right[begin:end]]).min(axis=1) <= ALIGNED * size
    other = np.flatnonzero(is_right[end:] & ~known & (lines.top[here[end:]] > lines.middle[here[end - 1]]))
    if len(other):
        # Columns of other widths: they, and their heading, are below the widest white above them.
        white = tail[: other[0] + 1]
        wide = np.flatnonzero(white > max(usual, white.max() - 2 * STRIPE) + STRIPE)
        return start, first + end + int(wide[0]) if len(wide) else last
    apart = _are_headings(lines, here[end:], here[:end][~is_right[:end]]) & (tail > usual + STRIPE)
    if last < len(ordered):
        below = (lines.top[ordered[last]] - lines.bottom[here[-1]]) / size
        # White that parts several paragraphs of the left side does not end it.
        recurring = np.sort(np.append(stripes_of(lines, here[:end][~is_right[:end]])[1], [0.0, 0.0]))[-2]
        apart |= tail > max(usual, min(HEADER, max(below, recurring))) + STRIPE
    ends = np.flatnonzero(apart)
    return start, first + end + int(ends[0]) if len(ends) else last


def _are_headings(lines: TextLines, here: Indices, text: Indices) -> Flags:
    """Which of some lines begin a heading of what is below: the last ones, in larger type than a text."""
    # Boxes around few characters are higher than others: the characters must be wider too.
    larger = (lines.height[here] > HEADING * median(lines.height[text])) & (
        lines.character[here] > HEADING * median(lines.character[text])
    )
    larger[:-HEADING_ROWS] = False
    return np.logical_and.accumulate(larger[::-1])[::-1]


def _height(lines: TextLines, here: Indices) -> int:
    """From the top of the highest of the lines to the bottom of the lowest, in pixels."""
    return round(float(lines.bottom[here].max() - lines.top[here].min()))


def _places(lefts: Numbers, rights: Numbers) -> Numbers:
    """Where lines end and the next thing to the right is a line that begins: those that fewest lines cross."""
    edges = np.concatenate([rights, lefts])
    order = np.argsort(edges, kind="stable")
    is_left = order >= len(rights)
    ends = np.flatnonzero(~is_left[:-1] & is_left[1:])
    crossing = np.cumsum(np.where(is_left, 1, -1))[ends]
    return edges[order[ends[np.argsort(crossing, kind="stable")[:MOST_PLACES]]]]


def _runs(middle: Numbers, before: Flags, behind: Flags) -> list[tuple[int, int, int]]:
    """(first, last, place) of the longest runs of lines, none of which crosses the place; each parting of lines once.

    The N lines have their middles at these heights; (places, N) say whether each lies wholly before or behind a place.
    """
    across = np.pad(~(before | behind), ((0, 0), (1, 1)), constant_values=True)
    place, at = np.nonzero(across)
    same = place[1:] == place[:-1]
    first, last, place = at[:-1][same], at[1:][same] - 1, place[1:][same]
    counts = np.pad(np.cumsum(before, axis=1), ((0, 0), (1, 0)))
    left = counts[place, last] - counts[place, first]
    possible = np.flatnonzero((left >= LEAST_ROWS) & (last - first - left >= LEAST_ROWS))
    first, last, place, left = (array[possible] for array in (first, last, place, left))
    longest = np.argsort(middle[first] - middle[last - 1], kind="stable")[: 64 * MOST_GUTTERS]
    parting = (first * (len(middle) + 1) + last) * (len(middle) + 1) + left
    _, once = np.unique(parting[longest], return_index=True)
    chosen = longest[np.sort(once)][: 4 * MOST_GUTTERS]
    return list(zip(first[chosen].tolist(), last[chosen].tolist(), place[chosen].tolist(), strict=True))
