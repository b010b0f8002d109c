"""Lines of text as numbers, and what they make: rows of lines that are level, groups between white stripes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

SHORT = 5.0  # length, in line heights, of numbers; lines whose texts are not known are numbers if they are shorter
WORDS = 40  # of a line that stands for a part of a table
SAME_ROW = 0.5  # distance of the middles of two lines in a row, as a share of the smaller height
CELL_GAP = 0.2  # white, in line heights, between rows of cells; rows inside of a cell are closer
FULL = 0.2  # white, in line heights, that is left in a column though no other word would fit
ACROSS = 0.6  # of the width of a part a rule is long that cuts it
NEAR_RULE = 2.0  # line heights from it within which nothing is outside of it
WIDE_CHARACTERS = 0x2E80  # code points from here on: a line may end behind any of them


@dataclass(frozen=True, slots=True)
class TextLines:
    """N level lines.

    Attributes:
        left, top, right, bottom: (N,) sides in pixels.
        middle, height: (N,) mean of top and bottom, and distance between them, in pixels.
        is_number: (N,) whether a line is mostly digits; without texts, whether it is short.
        is_label: (N,) whether a line ends with a colon.
        has_label: (N,) whether a line begins with words and a colon, and goes on.
        is_lower: (N,) whether a line begins with a small letter.
        digits: (N,) where a line has digits: 1 at its end, 2 at its begin, 3 both, 4 elsewhere.
        first_word: (N,) width of the first word, in pixels.
        character: (N,) width of a character, in pixels, Chinese ones counted twice; the height without texts.
        rules: (M, 3) height, left and right end of horizontal rules, in pixels.
    """

    left: Numbers
    top: Numbers
    right: Numbers
    bottom: Numbers
    middle: Numbers
    height: Numbers
    is_number: Flags
    is_label: Flags
    has_label: Flags
    is_lower: Flags
    digits: Indices
    first_word: Numbers
    character: Numbers
    rules: Numbers


def as_text_lines(frames: NDArray[np.floating], texts: Sequence[str] | None, rules: Numbers) -> TextLines:
    """Lines of (N, 4) left, top, right, bottom."""
    left, top, right, bottom = frames.astype(np.float64).T
    height, width = bottom - top, right - left

    def flags(has: Callable[[str], bool]) -> Flags:
        return np.fromiter(map(has, texts or ()), np.bool_) if texts else np.zeros(len(frames), np.bool_)

    return TextLines(
        *(left, top, right, bottom, (top + bottom) / 2, height),
        is_number=flags(_is_number) if texts else width < SHORT * height,
        is_label=flags(lambda text: text.rstrip().endswith((":", "："))),
        has_label=flags(_has_label),
        is_lower=flags(lambda text: text[:1].islower()),
        digits=np.fromiter(map(_digits, texts or [""] * len(frames)), np.intp),
        first_word=width * np.fromiter(map(_share_of_first_word, texts or [""] * len(frames)), np.float64),
        character=width / np.fromiter(map(_characters, texts), np.float64) if texts else height,
        rules=rules,
    )


def with_lines(lines: TextLines, frames: Numbers) -> TextLines:
    """The lines and, behind them, lines of words with these frames (M, 4): left, top, right, bottom."""
    more = as_text_lines(frames, ["a " * WORDS] * len(frames), lines.rules[:0])
    return TextLines(*(np.concatenate([getattr(lines, name), getattr(more, name)]) for name in TextLines.__slots__))


def _characters(text: str) -> int:
    """How wide a text is, in Latin characters; one more for the margins of its box."""
    return 1 + len(text) + sum(ord(character) >= WIDE_CHARACTERS for character in text)


def _digits(text: str) -> int:
    text = text.strip() or "-"
    return 2 * text[0].isdecimal() + text[-1].isdecimal() or 4 * any(map(str.isdecimal, text))


def _is_number(text: str) -> bool:
    digits = sum(map(str.isdecimal, text))
    letters = sum(1 + (ord(character) >= WIDE_CHARACTERS) for character in text if character.isalnum()) - digits
    return digits >= letters


def _has_label(text: str) -> bool:
    label, colon, value = text.replace("：", ":").partition(":")
    return bool(colon and value.strip()) and any(map(str.isalpha, label)) and not label[-1:].isdigit()


def _share_of_first_word(text: str) -> float:
    """Part of a line's width; lines of Chinese may end behind any character."""
    text = text.strip()
    word = text.split(maxsplit=1)[0] if text else ""
    return (1 if word and ord(word[0]) > WIDE_CHARACTERS else len(word)) / max(1, len(text))


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


def white_below(lines: TextLines, rows: list[list[int]]) -> Numbers:
    """The white below each row but the last, in line heights."""
    here, starts = numbers_of(rows), np.cumsum([0, *map(len, rows[:-1])])
    bottoms = np.maximum.accumulate(np.maximum.reduceat(lines.bottom[here], starts))[:-1]
    tops = np.minimum.accumulate(np.minimum.reduceat(lines.top[here], starts)[::-1])[::-1][1:]
    return (tops - bottoms) / median(lines.height[here])


def parts_between(lines: TextLines, here: Indices, white: float) -> list[Indices]:
    """The lines `here`, from top to bottom, cut at each white stripe that is higher than `white` line heights."""
    order, stripes = stripes_of(lines, here)
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


def parts_between_rules(lines: TextLines, here: Indices) -> list[Indices]:
    """The lines `here`, from top to bottom, cut at each horizontal rule across them."""
    if not len(lines.rules) or len(here) < 2:
        return [here]
    order = here[np.argsort(lines.middle[here], kind="stable")]
    size, middles = median(lines.height[here]), lines.middle[order]
    lefts, rights = lines.left[order], lines.right[order]
    cuts = []
    for place, left, right in lines.rules.tolist():
        cut = int(np.searchsorted(middles, place))
        if 0 < cut < len(order) and right - left >= ACROSS * (rights.max() - lefts.min()):
            near = np.abs(middles - place) < NEAR_RULE * size
            near[cut - 1 : cut + 1] = True
            if lefts[near].min() > left - size and rights[near].max() < right + size:
                cuts.append(cut)
    return np.split(order, sorted(set(cuts)))


def widest_step(lines: TextLines, here: Indices) -> float:
    """What tells the wider white stripes of a part from the narrower ones best, in line heights."""
    heights = np.sort(np.append(stripes_of(lines, here)[1], 0.0).clip(0))
    step = int(np.argmax(np.diff(heights))) if len(heights) > 1 else 0
    return float(heights[step : step + 2].mean())


def stripes_of(lines: TextLines, here: Indices) -> tuple[Indices, Numbers]:
    """The lines in the order of their tops, and the white below each, in line heights; negative where they overlap."""
    order = here[np.argsort(lines.top[here], kind="stable")]
    if not len(order):
        return order, np.zeros(0)
    stripes = lines.top[order][1:] - np.maximum.accumulate(lines.bottom[order])[:-1]
    return order, stripes / max(1e-6, median(lines.height[order]))


def side_by_side(lines: TextLines, group: Indices, gap: float = CELL_GAP) -> list[Indices]:
    """The lines of a group, cut where white wider than `gap` line heights passes it from top to bottom.

    Returns the parts from left to right.
    """
    order = group[np.argsort(lines.left[group], kind="stable")]
    white = lines.left[order][1:] - np.maximum.accumulate(lines.right[order])[:-1]
    return np.split(order, np.flatnonzero(white > gap * median(lines.height[order])) + 1)


def top_down(lines: TextLines, here: Indices) -> Indices:
    """The lines `here`, in the order of their middles."""
    return here[np.argsort(lines.middle[here], kind="stable")]


def goes_on(lines: TextLines, one: Indices, other: Indices, end: float) -> NDArray[np.bool_]:
    """Whether the text of each line goes on in another: the first word of that would not have fitted before `end`."""
    slack = FULL * lines.height[one]
    full = lines.right[one] + lines.first_word[other] >= end - slack
    return full & (lines.right[other] <= end + slack)


def numbers_of(rows: Sequence[Sequence[int]]) -> Indices:
    """The lines of some rows, row by row."""
    return np.array([line for row in rows for line in row], np.intp)
