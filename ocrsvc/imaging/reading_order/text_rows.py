"""Lines of text as arrays, grouped into level rows and into parts between white stripes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

SHORT = 5.0  # a line of unknown text shorter than this many line heights counts as a number
WORDS = 40  # number of words in a dummy line that stands for part of a table
SAME_ROW = 0.5  # largest distance of the centres of two lines in a row, as a share of the smaller height
CELL_GAP = 0.2  # least space, in line heights, between cells beside each other
FULL = 0.2  # largest blank space, in line heights, at the end of a full line
WIDE_CHARACTERS = 0x2E80  # first code point of scripts whose lines may break after any character


@dataclass(frozen=True, slots=True)
class TextLines:
    """N level lines of text, measured in pixels, and `rules` (M, 3): y, left and right end of horizontal ruled lines.

    `is_number`: mostly digits; `is_label`: ends with a colon; `has_label`: has a colon after its first words;
    `is_lower`: begins in lower case. `first_word`, `character`: width of the first word and of an average character.
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
    first_word: Numbers
    character: Numbers
    rules: Numbers


def as_text_lines(frames: NDArray[np.floating], texts: Sequence[str] | None, rules: Numbers) -> TextLines:
    """Make lines from frames (N, 4): left, top, right, bottom; if texts are unknown, short lines count as numbers."""
    left, top, right, bottom = frames.astype(np.float64).T
    height, width = bottom - top, right - left
    known_texts = texts or [""] * len(frames)

    def each(value: Callable[[str], float], dtype: type = np.bool_) -> NDArray[Any]:
        return np.fromiter(map(value, known_texts), dtype)

    return TextLines(
        *(left, top, right, bottom, (top + bottom) / 2, height),
        is_number=each(_is_number) if texts else width < SHORT * height,
        is_label=each(lambda text: text.rstrip().endswith((":", "："))),
        has_label=each(_has_label),
        is_lower=each(lambda text: text[:1].islower()),
        first_word=width * each(_share_of_first_word, np.float64),
        character=width / each(_characters, np.float64) if texts else height,
        rules=rules,
    )


def with_lines(lines: TextLines, frames: Numbers) -> TextLines:
    """Append lines of dummy words with frames (M, 4): left, top, right, bottom."""
    more = as_text_lines(frames, ["a " * WORDS] * len(frames), lines.rules[:0])
    return TextLines(*(np.concatenate([getattr(lines, name), getattr(more, name)]) for name in TextLines.__slots__))


def _characters(text: str) -> int:
    """Width of a text in Latin characters. A Chinese character counts as two, the margins of the box as one."""
    return 1 + len(text) + sum(ord(character) >= WIDE_CHARACTERS for character in text)


def _is_number(text: str) -> bool:
    digits = sum(map(str.isdecimal, text))
    letters = sum(1 + (ord(character) >= WIDE_CHARACTERS) for character in text if character.isalnum()) - digits
    return digits >= letters


def _has_label(text: str) -> bool:
    label, _, value = text.replace("：", ":").partition(":")
    return bool(value.strip()) and any(map(str.isalpha, label)) and not label[-1:].isdigit()


def _share_of_first_word(text: str) -> float:
    """The first word's share of a line's width; for Chinese the first character's: lines break after any character."""
    word, *_ = text.split(maxsplit=1) or [""]
    return (1 if word and ord(word[0]) > WIDE_CHARACTERS else len(word)) / max(1, len(text.strip()))


def median(values: Numbers) -> float:
    """The lower median. `np.median` takes 0.1 ms per call, too long for many short columns."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def top_down(lines: TextLines, here: Indices) -> Indices:
    """Sort the lines `here` by the height of their centres, from the top."""
    return here[np.argsort(lines.middle[here], kind="stable")]


def numbers_of(rows: Sequence[Sequence[int]]) -> Indices:
    """Concatenate the indices of the lines in all rows."""
    return np.array([line for row in rows for line in row], np.intp)


def rows_of(lines: TextLines, here: Indices) -> list[list[int]]:
    """Group the lines `here` into rows from top to bottom, each from left to right."""
    order = top_down(lines, here)
    rows: list[list[tuple[float, int]]] = []
    mean, size = -np.inf, 0.0
    # As lists, because reading single elements of an array is slow.
    values = (array[order].tolist() for array in (lines.left, lines.middle, lines.height))
    for line, left, middle, height in zip(order.tolist(), *values, strict=True):
        if middle - mean <= SAME_ROW * min(size, height):
            rows[-1].append((left, line))
            mean += (middle - mean) / len(rows[-1])
        else:
            rows.append([(left, line)])
            mean, size = middle, height
    return [[line for _, line in sorted(row)] for row in rows]


def white_below(lines: TextLines, rows: Sequence[Sequence[int]]) -> Numbers:
    """The blank space below each row except the last, in line heights; negative where rows overlap."""
    here, starts = numbers_of(rows), np.cumsum([0, *map(len, rows[:-1])])
    bottoms = np.maximum.accumulate(np.maximum.reduceat(lines.bottom[here], starts))[:-1]
    tops = np.minimum.accumulate(np.minimum.reduceat(lines.top[here], starts)[::-1])[::-1][1:]
    return (tops - bottoms) / max(1e-6, median(lines.height[here]))


def stripes_of(lines: TextLines, here: Indices) -> tuple[Indices, Numbers]:
    """Sort lines by top edge; also returns the gaps between them, in line heights, negative where lines overlap."""
    order = here[np.argsort(lines.top[here], kind="stable")]
    if not len(order):
        return order, np.zeros(0)
    stripes = lines.top[order][1:] - np.maximum.accumulate(lines.bottom[order])[:-1]
    return order, stripes / max(1e-6, median(lines.height[order]))


def parts_between(lines: TextLines, here: Indices, white: float) -> list[Indices]:
    """Divide the lines `here`, from top to bottom, at each white stripe higher than `white` line heights."""
    order, stripes = stripes_of(lines, here)
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


def side_by_side(lines: TextLines, group: Indices, gap: float = CELL_GAP) -> list[Indices]:
    """Divide lines, from left to right, at blank stripes wider than `gap` line heights that cross all rows."""
    order = group[np.argsort(lines.left[group], kind="stable")]
    white = lines.left[order][1:] - np.maximum.accumulate(lines.right[order])[:-1]
    return np.split(order, np.flatnonzero(white > gap * median(lines.height[order])) + 1)


def goes_on(lines: TextLines, one: Indices, other: Indices, end: float) -> Flags:
    """Whether each line one[i] wraps into other[i], whose first word does not fit before the right edge `end`."""
    slack = FULL * lines.height[one]
    full = lines.right[one] + lines.first_word[other] >= end - slack
    return full & (lines.right[other] <= end + slack)
