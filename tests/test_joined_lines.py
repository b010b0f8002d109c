"""Lines that a detector drew across the gutter between two columns."""

import numpy as np
import pytest
from numpy.typing import NDArray
from ppocr_support import rectangle

from ocrsvc.engines.ppocr.pipeline.page import split_joined_lines

LEFT, RIGHT, TOPS = (20, 280), (320, 580), range(20, 220, 30)


def drawn(*columns: tuple[int, int]) -> NDArray[np.uint8]:
    pixels = np.full((240, 600, 3), 255, np.uint8)
    for begin, end in columns:
        for top in TOPS:
            for x in range(begin, end, 5):
                pixels[top + 6 : top + 14, x : x + 2] = 20
    return pixels


def quad(begin: int, end: int, top: int) -> NDArray[np.float32]:
    return rectangle(begin, top, end, top + 20)


def test_a_line_across_a_gutter_is_split_where_the_next_column_begins() -> None:
    lines = [quad(*column, top) for top in TOPS[1:] for column in (LEFT, RIGHT)]
    parts = split_joined_lines(drawn(LEFT, RIGHT), [quad(20, 580, 20), *lines])
    assert len(parts) == len(lines) + 2
    ends = [(part[:, 0].min(), part[:, 0].max()) for part in parts[:2]]
    assert ends == [pytest.approx(LEFT, abs=6), pytest.approx(RIGHT, abs=6)]


@pytest.mark.parametrize("columns", [((20, 580),), (LEFT, RIGHT)], ids=["text", "white where nothing else begins"])
def test_other_lines_stay_whole(columns: tuple[tuple[int, int], ...]) -> None:
    lines = [quad(20, 580, top) for top in TOPS]
    assert len(split_joined_lines(drawn(*columns), lines)) == len(lines)
