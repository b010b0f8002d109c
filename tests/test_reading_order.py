"""Reading order, on pages laid out by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ocrsvc.imaging.reading_order import reading_order

Frame = tuple[float, float, float, float]


def order_of(frames: list[Frame]) -> list[int]:
    """Reading order of (left, top, right, bottom) lines."""
    quads = [[[left, top], [right, top], [right, bottom], [left, bottom]] for left, top, right, bottom in frames]
    return reading_order(np.array(quads, np.float32).reshape(-1, 4, 2))


def column(left: float, top: float, rows: int, width: float = 200) -> list[Frame]:
    """Rows 10 px tall and 14 px apart."""
    return [(left, top + 14 * row, left + width, top + 14 * row + 10) for row in range(rows)]


@pytest.mark.parametrize(
    ("frames", "order"),
    [
        ([], []),
        ([(0, 50, 10, 60), (0, 0, 10, 10)], [1, 0]),
        ([(50, 3, 90, 13), (0, 0, 40, 10)], [1, 0]),  # same row though the left one lies higher
        ([(50, 4, 60, 8), (0, 0, 10, 4)], [1, 0]),  # small text: 4 px apart is another row
        ([(100, 30, 200, 130), (0, 0, 90, 100)], [1, 0]),  # large text: 30 px apart is the same row
    ],
)
def test_lines_are_read_row_by_row(frames: list[Frame], order: list[int]) -> None:
    assert order_of(frames) == order


def test_two_columns_of_text_are_read_one_after_the_other() -> None:
    assert order_of(column(0, 0, 5) + column(220, 0, 5)) == list(range(10))


def test_three_columns_too() -> None:
    assert order_of(column(0, 0, 5) + column(220, 3, 5) + column(440, 0, 5)) == list(range(15))


def test_a_title_across_the_columns_divides_them_into_bands() -> None:
    title, upper, lower = [(20.0, 0.0, 400.0, 10.0)], 14, 100
    heading = [(20.0, 85.0, 400.0, 95.0)]
    frames = title + column(0, upper, 5) + column(220, upper, 5) + heading + column(0, lower, 5) + column(220, lower, 5)
    assert order_of(frames) == list(range(len(frames)))


def test_a_receipt_with_prices_on_the_right_is_read_row_by_row() -> None:
    names, prices = column(0, 0, 6, width=150), column(300, 0, 6, width=30)
    assert order_of(names + prices) == [index for row in range(6) for index in (row, row + 6)]


def test_a_table_of_short_cells_is_read_row_by_row() -> None:
    cells = [column(100 * number, 0, 5, width=40) for number in range(4)]
    by_row = [number * 5 + row for row in range(5) for number in range(4)]
    assert order_of([cell for cells_of_column in cells for cell in cells_of_column]) == by_row


def test_thousands_of_lines_are_ordered_quickly() -> None:
    random = np.random.default_rng(7)
    corners = random.uniform(0, 4000, (3000, 2))
    frames = [(float(x), float(y), float(x) + 60, float(y) + 12) for x, y in corners]
    began = time.process_time()
    assert sorted(order_of(frames)) == list(range(3000))
    assert time.process_time() - began < 3.0  # 10 s before gutters were tried in numpy, and not behind every line
