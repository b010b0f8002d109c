"""Flattening by a known grid, and boxes put back."""

from __future__ import annotations

import numpy as np
import pytest
from curved_pages import HEIGHT, WIDTH, bent, flat_page

from ocrsvc.engines.ppocr.pipeline.page_grid import PageGrid, make_grid
from ocrsvc.records import Pixels

SAG_PX = 80.0


def even_grid(left: float, top: float, width: int, height: int, *, flat: tuple[int, int]) -> PageGrid:
    """A page that lies flat in its picture, in a rectangle."""
    x, y = np.meshgrid(np.linspace(left, left + width, 31), np.linspace(top, top + height, 45))
    return PageGrid(np.stack([x, y], axis=-1).astype(np.float32), *flat)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[[left, top], [right, top], [right, bottom], [left, bottom]]], np.float32)


def test_a_page_that_lies_flat_is_cut_out_pixel_by_pixel() -> None:
    picture: Pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    assert np.array_equal(even_grid(0, 0, 200, 300, flat=(200, 300)).flatten(picture), picture)
    assert np.array_equal(even_grid(20, 30, 100, 150, flat=(100, 150)).flatten(picture), picture[30:180, 20:120])


def test_a_gray_page_stays_gray_and_points_outside_the_picture_repeat_its_edge() -> None:
    picture: Pixels = np.full((50, 40), 7, np.uint8)
    flat = even_grid(-30, -30, 100, 110, flat=(100, 110)).flatten(picture)
    assert flat.shape == (110, 100)
    assert (flat == 7).all()


def test_a_bent_page_is_flattened_to_what_it_was() -> None:
    page = flat_page()[0]
    picture, grid = bent(page, SAG_PX)
    flat = grid.flatten(picture)
    shade = 0.7 + 0.3 * np.sin(np.pi * (np.arange(WIDTH) + 0.5) / WIDTH)
    # Between rows of the grid and by two interpolations, the edges of strokes differ a little.
    assert np.abs(flat - page * shade).mean() < 4


def test_points_are_where_the_page_was_bent_to() -> None:
    grid = bent(flat_page()[0], SAG_PX)[1]
    border = SAG_PX + 40
    points = np.array([[0, 0], [WIDTH / 2, 500], [WIDTH, HEIGHT], [WIDTH / 4, 300]], np.float32)
    expected = points + border + np.array([[0, 0], [0, SAG_PX], [0, 0], [0, 0.75 * SAG_PX]], np.float32)
    assert np.allclose(grid.locate(points), expected, atol=0.5)


def test_a_box_put_back_holds_the_strip_of_its_line_and_begins_where_it_began() -> None:
    grid = bent(flat_page()[0], SAG_PX)[1]
    line = box(100, 400, 800, 430)
    for start in (0, 2):
        (put,) = grid.put_back(np.roll(line, -start, axis=1))
        corner = grid.locate(np.roll(line[0], -start, axis=0))[0]
        assert np.abs(put[0] - corner).max() < SAG_PX + 1
        edges = np.roll(put, -1, axis=0) - put
        strip = np.concatenate([grid.locate(np.linspace(line[0, a], line[0, b], 50)) for a, b in ((0, 1), (3, 2))])
        to_points = strip[:, None] - put[None]
        # Clockwise, so every point of the strip is to the right of every edge.
        assert (edges[:, 0] * to_points[..., 1] - edges[:, 1] * to_points[..., 0] > -30).all()


def test_a_short_box_put_back_is_its_corners() -> None:
    grid = bent(flat_page()[0], SAG_PX)[1]
    word = box(440, 400, 460, 430)
    assert np.allclose(grid.put_back(word)[0], grid.locate(word[0]), atol=0.5)


def test_no_boxes_stay_no_boxes() -> None:
    grid = even_grid(0, 0, 20, 30, flat=(20, 30))
    assert grid.put_back(np.empty((0, 4, 2), np.float32)).shape == (0, 4, 2)
    assert grid.holds(np.empty((0, 2), np.float32)).shape == (0,)


def test_the_grid_knows_what_lies_on_the_page() -> None:
    grid = even_grid(20, 30, 100, 150, flat=(100, 150))
    assert grid.holds(np.array([[21, 31], [119, 179], [70, 100], [10, 100], [70, 190]], np.float32)).tolist() == [
        *[True] * 3,
        *[False] * 2,
    ]


@pytest.mark.parametrize(("most_pixels", "size"), [(10**9, (100, 150)), (3750, (50, 75)), (1, (1, 1))])
def test_the_flat_page_is_as_large_as_in_its_picture_and_no_larger_than_allowed(
    most_pixels: int, size: tuple[int, int]
) -> None:
    grid = make_grid(even_grid(20, 30, 100, 150, flat=(1, 1)).points, most_pixels)
    assert (grid.width, grid.height) == pytest.approx(size, abs=1)


def test_a_long_flat_page_has_sides_that_can_be_resampled() -> None:
    y, x = np.meshgrid(np.linspace(0, 30_000, 5), np.linspace(0, 100, 4), indexing="ij")
    winding = np.stack([x + np.where(np.arange(5) % 2, 20_000, 0)[:, None], y], axis=-1).astype(np.float32)
    grid = make_grid(winding, 16_000_000)
    assert max(grid.width, grid.height) <= 32_766
    assert grid.flatten(np.zeros((20_000, 120), np.uint8)).shape == (grid.height, grid.width)


def test_a_page_folded_to_a_point_is_a_pixel() -> None:
    grid = make_grid(np.zeros((45, 31, 2), np.float32), 10**6)
    assert grid.flatten(np.zeros((10, 10, 3), np.uint8)).shape == (1, 1, 3)
