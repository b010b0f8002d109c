"""Text boxes from the detector's probability map, with maps drawn by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.db_postprocess import (
    FoundLines,
    find_lines,
    first_scale,
    lines_from_map,
    order_clockwise,
    second_scale,
)
from ocrsvc.records import Pixels


def drawn_map(*rectangles: tuple[int, int, int, int], size: tuple[int, int] = (64, 160)) -> NDArray[np.float32]:
    """A probability map of (height, width) `size` with 0.9 inside each (left, top, right, bottom)."""
    table = np.zeros(size, np.float32)
    for left, top, right, bottom in rectangles:
        table[top:bottom, left:right] = 0.9
    return table


def test_a_shape_on_the_map_grows_by_the_unclip_distance() -> None:
    # 101 x 11 px counts as 100 x 10 between pixel centres: d = 1000 * 1.5 / 220 = 6.82.
    (quad,) = lines_from_map(drawn_map((30, 20, 131, 31)), 160, 64).outlines
    assert np.allclose(quad, [[23.2, 13.2], [136.8, 13.2], [136.8, 36.8], [23.2, 36.8]], atol=0.1)


def test_quads_come_back_in_the_pixels_of_the_image() -> None:
    (small,) = lines_from_map(drawn_map((30, 20, 130, 30)), 160, 64).outlines
    (large,) = lines_from_map(drawn_map((30, 20, 130, 30)), 320, 128).outlines
    assert np.allclose(large, small * 2)


def test_lines_one_pixel_apart_on_the_map_stay_two() -> None:
    quads = lines_from_map(drawn_map((30, 20, 130, 28), (30, 29, 130, 37)), 160, 64).outlines
    assert sorted(round(float(quad[:, 1].mean())) for quad in quads) == [24, 32]


def test_faint_shapes_and_specks_are_no_lines() -> None:
    faint = drawn_map((30, 20, 130, 30)) * 0.45
    assert lines_from_map(faint, 160, 64).outlines == []
    assert lines_from_map(drawn_map((30, 20, 31, 21)), 160, 64).outlines == []


def test_quads_never_leave_the_image() -> None:
    (quad,) = lines_from_map(drawn_map((0, 0, 160, 10)), 160, 64).outlines
    assert quad.min() >= 0
    assert (quad.max(axis=0) <= (160, 64)).all()


@pytest.mark.parametrize("first", range(4))
def test_corners_are_ordered_clockwise_from_the_top_left(first: int) -> None:
    corners = np.array([[1, 1], [9, 2], [9, 6], [1, 5]], np.float32)
    assert order_clockwise(np.roll(corners, first, axis=0)).tolist() == corners.tolist()


def quad_of_height(height: float) -> NDArray[np.float32]:
    return np.array([[0, 0], [100, 0], [100, height], [0, height]], np.float32)


@pytest.mark.parametrize(
    ("height", "scale", "longest", "expected"),
    [
        (60.0, 0.5, 2000, 0.5),  # tall text: what was seen is enough
        (12.0, 0.5, 2000, 1.024),  # wants 1.67, but 2048 px is the most
        (12.0, 1.0, 300, 1.667),  # a small image is enlarged
        (4.0, 1.0, 300, 2.5),  # but not beyond the limit
    ],
)
def test_the_scale_follows_the_height_of_the_text(height: float, scale: float, longest: int, expected: float) -> None:
    assert second_scale(FoundLines([quad_of_height(height)], 0.0), scale, longest) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("unclaimed", "expected"), [(0.05, 0.5), (0.2, 1.0), (1.0, 1.0)])
def test_text_that_is_in_no_line_is_looked_at_again_larger(unclaimed: float, expected: float) -> None:
    assert second_scale(FoundLines([quad_of_height(60.0)], unclaimed), 0.5, 1500) == expected
    assert second_scale(FoundLines([], 1.0), 0.5, 1500) == 1.0


def test_specks_are_text_that_is_much_too_small() -> None:
    streaks = [(left, top, left + 20, top + 2) for left in (10, 50, 90) for top in (8, 18)]
    found = lines_from_map(drawn_map((30, 40, 130, 60), *streaks), 160, 64)
    assert (len(found.outlines), found.specks) == (1, 6)
    assert second_scale(found, 1.0, 1600) == 2048 / 1600
    assert second_scale(FoundLines(found.outlines, 0.0), 1.0, 1600) == 1.0


def test_where_nothing_was_found_there_is_no_second_pass() -> None:
    assert second_scale(FoundLines([], 0.0), 0.5, 2000) == 0.5


@pytest.mark.parametrize(("longest", "expected"), [(1920, 0.5), (960, 1.0), (700, 1.0), (320, 2.0), (100, 2.5)])
def test_the_first_pass_shrinks_large_images_and_enlarges_small_ones(longest: int, expected: float) -> None:
    assert first_scale(longest, longest // 2) == pytest.approx(expected)


def test_a_long_strip_keeps_its_width() -> None:
    # 400 x 6400 px has as many pixels as 800 x 3200: three tenths, so that it is 120 px wide and not 60.
    assert first_scale(6400, 400) == first_scale(400, 6400) == pytest.approx(0.3)


def test_small_text_gets_a_second_finer_pass_and_large_text_does_not() -> None:
    seen: list[tuple[int, ...]] = []

    def run(pixels: Pixels) -> NDArray[np.float32]:
        """Takes everything dark for text."""
        seen.append(pixels.shape)
        return (pixels < 128).astype(np.float32)

    page = np.full((704, 704), 255, np.uint8)
    page[100:160, 20:680] = 0
    find_lines(page, run)
    assert [shape[-1] for shape in seen] == [704]
    page[100:160] = 255
    page[100:105, 20:680] = 0
    find_lines(page, run)
    assert len(seen) == 3
    assert seen[2][-1] > seen[1][-1] == 704
