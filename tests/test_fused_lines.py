"""Shapes on the map that hold several lines, drawn by hand: (left, top, right, bottom, how sure the map is there)."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.page_reader import CERTAIN, pack_map, unpack_map
from ocrsvc.engines.ppocr.pipeline.db_postprocess import MAP_THRESHOLD, lines_from_map, lines_from_mask

Patch = tuple[int, int, int, int, float]

WIDTH, HEIGHT = 320, 160
ELSEWHERE: tuple[Patch, ...] = ((8, 120, 100, 128, 0.9), (8, 140, 120, 148, 0.9), (160, 140, 220, 148, 0.9))
"""Single lines, 8 px thick, that tell the usual thickness."""


def drawn(*patches: Patch) -> NDArray[np.float32]:
    table = np.zeros((HEIGHT, WIDTH), np.float32)
    for left, top, right, bottom, likely in (*patches, *ELSEWHERE):
        table[top:bottom, left:right] = likely
    return table


def middles(table: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Of the lines found above those that are elsewhere, from the top."""
    found = [outline.mean(axis=0) for outline in lines_from_map(table, WIDTH, HEIGHT).outlines]
    return sorted((round(float(y)), round(float(x))) for x, y in found if y < 110)


@pytest.mark.parametrize("between", [0.25, 0.45, 0.65, 0.8])
def test_two_rows_with_an_unsure_seam_are_two_lines(between: float) -> None:
    table = drawn((20, 20, 120, 28, 0.9), (20, 28, 120, 29, between), (20, 29, 120, 37, 0.9))
    assert middles(table) == [(24, 70), (32, 70)]


def test_a_short_row_below_a_long_one_is_a_line_of_its_own() -> None:
    table = drawn((20, 20, 120, 28, 0.9), (20, 28, 50, 29, 0.6), (20, 29, 50, 37, 0.9))
    assert middles(table) == [(24, 70), (32, 34)]


def test_a_column_of_short_rows_is_a_line_for_each() -> None:
    rows = [(40, 10 + 10 * row, 52, 18 + 10 * row, 0.95) for row in range(5)]
    seams = [(42, 18 + 10 * row, 50, 20 + 10 * row, 0.6) for row in range(4)]
    assert np.allclose(middles(drawn(*rows, *seams)), [(14 + 10 * row, 46) for row in range(5)], atol=1)


def test_rows_that_come_apart_only_at_another_level_are_found_too() -> None:
    table = drawn(
        (40, 10, 54, 20, 0.95),
        (42, 20, 52, 22, 0.4),
        (40, 22, 54, 32, 0.95),
        (42, 32, 52, 34, 0.8),
        (40, 34, 54, 44, 0.95),
    )
    assert np.allclose(middles(table), [(14, 46), (26, 46), (38, 46)], atol=1)


@pytest.mark.parametrize(
    "patches",
    [
        pytest.param([(40, 10, 50, 100, 0.95)], id="vertical text"),
        pytest.param(
            [(40, 10, 50, 40, 0.95), (40, 40, 50, 44, 0.6), (40, 44, 50, 100, 0.95)], id="words on their side"
        ),
        pytest.param([(20, 20, 80, 34, 0.95), (80, 20, 90, 34, 0.6), (90, 20, 160, 34, 0.95)], id="a gap in a heading"),
        pytest.param([(20, 20, 160, 34, 0.95), (60, 24, 64, 26, 0.3)], id="a hole in a heading"),
    ],
)
def test_one_line_stays_one(patches: list[Patch]) -> None:
    assert len(middles(drawn(*patches))) == 1


def test_lines_that_touch_at_a_corner_and_make_no_rectangle_are_taken_apart() -> None:
    table = drawn((20, 20, 60, 28, 0.9), (58, 28, 62, 60, 0.3), (60, 60, 200, 68, 0.9))
    assert np.allclose(middles(table), [(24, 40), (64, 130)], atol=1)


@pytest.mark.parametrize("edge", [0.0, 0.2005])
def test_the_lines_are_the_same_from_a_map_of_one_byte_a_pixel(edge: float) -> None:
    rows = [(40, 10 + 10 * row, 52, 18 + 10 * row, 0.95) for row in range(5)]
    seams = [(42, 18 + 10 * row, 50, 20 + 10 * row, 0.6) for row in range(4)]
    table = drawn((39, 9, 53, 59, edge), *rows, *seams)
    mask, likely = unpack_map(pack_map(np, table, MAP_THRESHOLD))
    packed = lines_from_mask(mask, likely, WIDTH, HEIGHT, certain=CERTAIN)
    assert np.array_equal(packed.outlines, lines_from_map(table, WIDTH, HEIGHT).outlines)


def test_frames_within_frames_are_not_each_looked_at_whole() -> None:
    table = np.zeros((HEIGHT * 2, WIDTH * 2), np.float32)
    for edge in range(0, HEIGHT - 8, 6):
        table[edge : HEIGHT * 2 - edge, edge : WIDTH * 2 - edge] = 0.9
        table[edge + 3 : HEIGHT * 2 - edge - 3, edge + 3 : WIDTH * 2 - edge - 3] = 0
    # What matters is that it ends; the four longest sides of a frame are no line.
    assert len(lines_from_map(table, WIDTH, HEIGHT).outlines) < HEIGHT


def test_frames_that_come_apart_into_frames_again_cost_no_more_than_the_map() -> None:
    side, step = 2048, 12
    places = range(16, side // 2 - 20, step)
    found = np.zeros((side, side), np.float32)
    for place in places:
        cv2.rectangle(found, (place, place), (side - 1 - place, side - 1 - place), 0.95, 3)
    for number, place in enumerate(places[:-1], 1):
        # Bridges that are the less sure the more frames are on both sides of them.
        bridge = min([0.8, *(level for count, level in ((3, 0.65), (9, 0.45), (27, 0.27)) if number % count == 0)])
        middle = found[side // 2 - 2 : side // 2 + 3, place + 2 : place + step - 1]
        np.maximum(middle, bridge, out=middle)
    began_s = time.thread_time()
    lines_from_map(found, side, side)
    # Looked at whole at every level, it takes 3 s.
    assert time.thread_time() - began_s < 1.5
