"""Rules of a page, found in a few of its rows and columns of pixels, and the order of what they close in."""

from __future__ import annotations

import time
from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from order_boxes import Frame, quads_around

from ocrsvc.imaging.reading_order.blocks import reading_order
from ocrsvc.imaging.reading_order.rules import find_rules
from ocrsvc.results import Pixels

SIZE_PX = 20


def rules_around(frames: Sequence[Frame]) -> NDArray[np.float32]:
    """The rules that close in each of some places."""
    across = [(left, y, right, y) for left, top, right, bottom in frames for y in (top, bottom)]
    return as_rules(across + [(x, top, x, bottom) for left, top, right, bottom in frames for x in (left, right)])


def as_rules(ends: Sequence[Frame]) -> NDArray[np.float32]:
    """Corners of rules: from one end to the other and back."""
    return np.array([[rule[:2], rule[2:], rule[2:], rule[:2]] for rule in ends], np.float32)


def lines_in(cell: Frame, count: int, width: float = 80) -> list[Frame]:
    """Lines below each other, from the upper left of a cell."""
    left, top = cell[0] + 8, cell[1] + 8
    return [(left, top + 24 * row, left + width, top + 24 * row + SIZE_PX) for row in range(count)]


def grid(columns: int, rows: int, gap: float = 0, width: float = 200, height: float = 100) -> list[Frame]:
    """Places in rows and columns, row by row."""
    lefts, tops = (
        [20 + (side + gap) * at for at in range(count)] for side, count in ((width, columns), (height, rows))
    )
    return [(left, top, left + width, top + height) for top in tops for left in lefts]


def drawn(rules: NDArray[np.float32], lines: Sequence[Frame], shade: int = 150) -> Pixels:
    """A page of 700 x 500 px with rules of a pixel, and letters with upright strokes in each line."""
    pixels: Pixels = np.full((500, 700, 3), 255, np.uint8)
    for start, end, *_ in rules:
        cv2.line(pixels, tuple(map(int, start)), tuple(map(int, end)), (shade,) * 3, 1)
    for left, top, right, _ in lines:
        for x in range(int(left) + 2, int(right) - 2, 8):
            pixels[int(top) + 3 : int(top) + 17, x : x + 2] = 20
    return pixels


def assert_in_order(lines: Sequence[Frame], rules: NDArray[np.float32], texts: Sequence[str] | None = None) -> None:
    assert reading_order(quads_around(lines), texts, rules) == list(range(len(lines)))


def length(rule: NDArray[np.float32]) -> float:
    return float(np.abs(rule[1] - rule[0]).max())


def test_rules_are_found_with_their_length() -> None:
    cells = grid(3, 3)
    lines = [line for cell in cells for line in lines_in(cell, 2)]

    found = find_rules(drawn(rules_around(cells), lines), quads_around(lines))

    assert sorted(round(length(rule), -1) for rule in found) == pytest.approx([300] * 4 + [600] * 4, abs=20)


@pytest.mark.parametrize("degrees", [-4, 3])
def test_rules_of_a_slanted_page_are_found(degrees: float) -> None:
    cells = grid(3, 3)
    matrix = cv2.getRotationMatrix2D((350, 250), degrees, 1)
    pixels = cv2.warpAffine(drawn(rules_around(cells), []), matrix, (700, 500), borderValue=(255, 255, 255))

    found = find_rules(np.asarray(pixels, np.uint8), quads_around(lines_in(cells[0], 2)))

    assert sum(length(rule) > 250 for rule in found) >= 7


def test_stacked_strokes_of_letters_are_not_rules() -> None:
    lines = [(20.0, 20.0 + 22 * row, 600.0, 40.0 + 22 * row) for row in range(20)]
    assert len(find_rules(drawn(rules_around([]), lines), quads_around(lines))) == 0
    assert find_rules(drawn(rules_around(grid(3, 3)), []), quads_around([])).shape == (0, 4, 2)


# Lines that stand below each other in the places of a grid; what rules close in is read whole, row by row.
@pytest.mark.parametrize(
    ("places", "counts"),
    [
        (grid(3, 4), (1, 1, 1)),
        (grid(3, 4), (3, 1, 2)),
        (grid(3, 4), (1, 3, 1)),
        (grid(3, 3, gap=20, width=200, height=120), (4, 4, 4)),
        (grid(3, 3, gap=20, width=150, height=120), (4, 4, 4)),
    ],
    ids=["table of lines", "table", "table with a long middle", "cards", "narrow cards"],
)
def test_cells_and_cards_are_read_as_a_whole_row_by_row(places: list[Frame], counts: tuple[int, ...]) -> None:
    lines = [line for number, place in enumerate(places) for line in lines_in(place, counts[number % 3])]
    assert_in_order(lines, rules_around(places))


def test_a_cell_over_several_rows_is_read_with_the_first() -> None:
    cells: list[Frame] = [(20, 20, 220, 220), *((220, 20 + 100 * row, 420, 120 + 100 * row) for row in range(2))]
    lines = [(30.0, 110.0, 100.0, 130.0), *lines_in(cells[1], 3), *lines_in(cells[2], 3)]

    assert_in_order(lines, rules_around(cells))


def test_a_table_without_outer_rules_at_its_sides_is_read_cell_by_cell() -> None:
    cells = grid(3, 4)
    rules = rules_around(cells)
    inner = rules[(rules[:, :, 0].max(axis=1) > 20) & (rules[:, :, 0].min(axis=1) < 620)]
    lines = [line for number, cell in enumerate(cells) for line in lines_in(cell, (3, 1, 2)[number % 3])]

    assert_in_order(lines, inner)


def test_a_framed_note_in_a_column_is_read_in_its_place() -> None:
    left = [(0.0, 24.0 * row, 280.0, 24.0 * row + 20) for row in range(4)]
    note = (0.0, 110.0, 280.0, 190.0)
    below = [(0.0, 204.0 + 24 * row, 280.0, 224.0 + 24 * row) for row in range(4)]
    right = [(310.0, 7 + 24.0 * row, 590.0, 27 + 24.0 * row) for row in range(12)]
    lines = left + lines_in(note, 2, 250) + below + right

    assert_in_order(lines, rules_around([note]))


def test_nested_frames_take_linear_time() -> None:
    frames = [(5.0 * step, 30.0 * step, 4000 - 5.0 * step, 12100 - 30.0 * step) for step in range(200)]
    lines = [(frame[0] + 20, frame[1] + 6, frame[0] + 120, frame[1] + 26) for frame in frames]
    began = time.process_time()

    assert sorted(reading_order(quads_around(lines), None, rules_around(frames))) == list(range(200))
    assert time.process_time() - began < 1  # 0.04 s measured


def test_totals_between_two_rules_are_read_row_by_row() -> None:
    texts = ["TAX INVOICE", "Total with GST", "RM 3.90", "Cash", "RM 4.00", "Code", "Tax(RM)", "S@6%", "Thank you"]
    rows = [(x, 60 + 24 * row) for row in range(4) for x in (20, 500)]
    places = [(20, 20), *rows[:-1], (20, 170)]
    lines = [(x, y, x + 12.0 * len(text), y + 20.0) for (x, y), text in zip(places, texts, strict=True)]
    rules = as_rules([(0, y, 620, y) for y in (50, 162)])

    assert_in_order(lines, rules, texts)


def test_rows_of_a_table_between_rules_are_read_cell_by_cell() -> None:
    cells = grid(3, 4, height=110)
    lines = [line for number, cell in enumerate(cells) for line in lines_in(cell, (3, 1, 2)[number % 3], 150)]
    rules = as_rules([(0, top - 4, 620, top - 4) for top in (20, 130, 240, 350, 460)])

    assert_in_order(lines, rules, ["several words here"] * 24)
