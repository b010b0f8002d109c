"""Lines of text as numbers, and what they make: rows of lines that are level, groups between white stripes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]

SAME_ROW = 0.5  # distance of the middles of two lines in a row, as a share of the smaller height
CELL_GAP = 0.2  # white, in line heights, between rows of cells; rows inside of a cell are closer
WIDE_CHARACTERS = 0x2E80  # code points from here on: a line may end behind any of them


@dataclass(frozen=True, slots=True)
class TextLines:
    """N level lines.

    Attributes:
        left, top, right, bottom: (N,) sides in pixels.
        middle, height: (N,) mean of top and bottom, and distance between them, in pixels.
        is_number: (N,) whether a line is mostly digits.
        is_label: (N,) whether a line ends with a colon.
        has_label: (N,) whether a line begins with words and a colon, and goes on.
        first_word: (N,) width of the first word, in pixels.
    """

    left: Numbers
    top: Numbers
    right: Numbers
    bottom: Numbers
    middle: Numbers
    height: Numbers
    is_number: NDArray[np.bool_]
    is_label: NDArray[np.bool_]
    has_label: NDArray[np.bool_]
    first_word: Numbers


def as_text_lines(frames: NDArray[np.float32], texts: Sequence[str] | None) -> TextLines:
    """Lines of (N, 4) left, top, right, bottom; without their texts, a short line counts as a number."""
    left, top, right, bottom = frames.astype(np.float64).T
    if texts is None:
        is_number = right - left < 5 * (bottom - top)
        is_label = np.zeros(len(frames), np.bool_)
        has_label = np.zeros(len(frames), np.bool_)
        first_word = np.zeros(len(frames))
    else:
        is_number = np.fromiter((_is_number(text) for text in texts), np.bool_, len(frames))
        is_label = np.fromiter((text.rstrip().endswith((":", "：")) for text in texts), np.bool_, len(frames))
        has_label = np.fromiter(map(_has_label, texts), np.bool_, len(frames))
        first_word = (right - left) * np.fromiter(map(_share_of_first_word, texts), np.float64, len(frames))
    return TextLines(
        left, top, right, bottom, (top + bottom) / 2, bottom - top, is_number, is_label, has_label, first_word
    )


def with_lines(lines: TextLines, frames: Numbers) -> TextLines:
    """The lines and, behind them, lines of words with these frames (M, 4): left, top, right, bottom."""
    left, top, right, bottom = frames.T
    none = np.zeros(len(frames), np.bool_)
    more = TextLines(
        left, top, right, bottom, (top + bottom) / 2, bottom - top, none, none, none, np.zeros(len(frames))
    )
    return TextLines(*(np.concatenate([getattr(lines, name), getattr(more, name)]) for name in TextLines.__slots__))


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


def parts_between(lines: TextLines, here: Indices, white: float) -> list[Indices]:
    """The lines `here`, from top to bottom, cut at each white stripe that is higher than `white` line heights."""
    order, stripes = stripes_of(lines, here)
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


def cells_of(lines: TextLines, here: Indices) -> list[Indices]:
    """Groups of lines that are close above each other, from top to bottom.

    Where there are narrow stripes and clearly wider ones, lines with narrow ones between them are close.
    """
    order, stripes = stripes_of(lines, here)
    heights = np.sort(stripes.clip(0))
    steps = np.flatnonzero(np.diff(heights) > CELL_GAP)
    white = float(heights[steps[0]] + heights[steps[0] + 1]) / 2 if len(steps) else CELL_GAP
    return np.split(order, np.flatnonzero(stripes > white) + 1) if len(order) else []


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


def numbers_of(rows: Sequence[Sequence[int]]) -> Indices:
    """The lines of some rows, row by row."""
    return np.array([line for row in rows for line in row], np.intp)
