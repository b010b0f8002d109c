"""Boxes and outlines of lines, against worked sums and hand-made pictures."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from image_support import box

from ocrsvc.imaging.geometry import (
    crop,
    map_boxes,
    restore_page,
    shrink,
    turn,
    turn_points,
    upright_boxes,
)
from ocrsvc.imaging.text_contour import Outline, cut, extent, parts_of
from ocrsvc.results import Box, Character, Line, Page, Pixels, Word


def square(left: float, top: float, side: float) -> Box:
    return box(left, top, left + side, top + side)


LEANING = np.array([[10, 5], [30, 15], [28, 20], [8, 10]], np.float32)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_pixels_and_points_turn_in_the_same_way(degrees: int) -> None:
    pixels = np.zeros((30, 40), np.uint8)
    pixels[2, 1] = 255
    row, column = np.argwhere(turn(pixels, degrees))[0]
    x, y = turn_points(np.array([[1.5, 2.5]], np.float32), degrees, width=40, height=30)[0]
    assert (column + 0.5, row + 0.5) == (x, y)


@pytest.mark.parametrize(("shape", "size", "scale"), [((600, 800, 3), (300, 400, 3), 0.5), ((60, 80), (60, 80), 1.0)])
def test_shrink_limits_the_longest_side(shape: tuple[int, ...], size: tuple[int, ...], scale: float) -> None:
    pixels, found = shrink(np.zeros(shape, np.uint8), 400)
    assert (pixels.shape, found) == (size, scale)


@pytest.mark.parametrize(
    ("degrees", "page_size", "on_image"),
    [
        (0, (40, 30), box(2, 4, 10, 12)),
        (90, (30, 40), ((4, 58), (4, 50), (12, 50), (12, 58))),
        (180, (40, 30), ((78, 56), (70, 56), (70, 48), (78, 48))),
    ],
)
def test_boxes_of_a_turned_half_size_copy_are_restored(degrees: int, page_size: tuple[int, int], on_image: Box) -> None:
    page = Page(*page_size, 0, (Line("x", 1.0, square(1, 2, 4), (Word("x", 1.0, square(1, 2, 4)),)),))
    back = restore_page(page, degrees, width=80, height=60)
    assert back == Page(80, 60, degrees, (Line("x", 1.0, on_image, (Word("x", 1.0, on_image),)),))


def test_boxes_of_words_and_characters_move_with_their_line() -> None:
    characters = (Character("a", 0.5, square(1, 1, 1)), Character("b", 0.7, square(2, 1, 1)))
    words = (Word("ab", 0.6, square(1, 1, 2), characters), Word("c", 0.9, square(4, 1, 1)))
    line = Line("ab c", 0.7, square(0, 0, 6), words)
    plain, moved = map_boxes([Line("", 0.1, square(1, 1, 1)), line], lambda quads: quads * 2 + 10)
    assert plain == Line("", 0.1, square(12, 12, 2))
    twice = Character("a", 0.5, square(12, 12, 2)), Character("b", 0.7, square(14, 12, 2))
    there = (Word("ab", 0.6, square(12, 12, 4), twice), Word("c", 0.9, square(18, 12, 2)))
    assert moved == Line("ab c", 0.7, square(10, 10, 12), there)


@pytest.mark.parametrize(
    ("begin", "expected"), [(0, [[8, 5], [30, 5], [30, 20], [8, 20]]), (1, [[30, 5], [30, 20], [8, 20], [8, 5]])]
)
def test_an_upright_box_contains_its_quad_and_keeps_the_first_corner(begin: int, expected: list[list[float]]) -> None:
    assert upright_boxes(np.roll(LEANING, -begin, axis=0)).tolist() == expected


def test_a_quad_is_cropped_and_straightened() -> None:
    pixels: Pixels = np.zeros((50, 50), np.uint8)
    pixels[10:20, 30:34] = 200  # 4 wide, 10 tall
    tall = np.array([[34, 10], [34, 20], [30, 20], [30, 10]], np.float32)  # read downwards
    piece = crop(pixels, tall, width=10, height=4)
    assert piece.shape == (4, 10)
    assert (piece[1:-1, 1:-1] == 200).all()
    stripes: Pixels = np.zeros((400, 400), np.uint8)
    stripes[:, ::2] = 200
    small = crop(stripes, np.array(box(0, 0, 400, 400), np.float32), width=40, height=40)[5:-5, 5:-5]
    assert abs(float(small.mean()) - 100) < 5
    assert float(small.std()) < 5


def test_parts_of_a_quad_match_the_parts_of_its_crop() -> None:
    pixels: Pixels = np.zeros((100, 200), np.uint8)
    quad = np.array([[30, 30], [170, 45], [165, 80], [25, 70]], np.float32)
    (part,) = parts_of(quad, np.array([[0.25, 0.5, 0.5, 1.0]]))
    cv2.fillPoly(pixels, [np.rint(part).astype(np.int32)], (255,))
    rows, columns = np.nonzero(cut(pixels, quad, width=80, height=20) > 127)
    assert np.allclose([columns.min(), rows.min(), columns.max(), rows.max()], [20, 10, 40, 19], atol=1)


def arc() -> Outline:
    """A line 20 px thick along a quarter of a circle of 100 px."""
    angles = np.radians(np.linspace(-135, -45, 9))
    rim = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([150 + 110 * rim, (150 + 90 * rim)[::-1]]).astype(np.float32)


@pytest.mark.parametrize("begin", [0.0, 0.1, 0.45, 0.8])
def test_parts_of_a_curved_line_match_the_parts_of_its_crop(begin: float) -> None:
    outline = arc()
    (part,) = parts_of(outline, np.array([[begin, 0.25, begin + 0.1, 0.75]]))
    pixels: Pixels = np.zeros((200, 300), np.uint8)
    cv2.fillPoly(pixels, [np.rint(part * 16).astype(np.int32)], (255,), shift=4)
    width = round(extent(outline)[0])
    rows, columns = np.nonzero(cut(pixels, outline, width, 20) > 127)
    assert np.allclose([columns.min() / width, (columns.max() + 1) / width], [begin, begin + 0.1], atol=0.02)
    assert np.allclose([rows.min(), rows.max() + 1], [5, 15], atol=2)


@pytest.mark.parametrize(
    "corners", [[(5, 5)] * 4, [(0, 0), (10, 0), (10, 0), (0, 0)], [(0, 0), (5, 5), (9, 9), (2, 2)]]
)
def test_parts_of_a_quad_without_an_area_are_inside_it(corners: list[tuple[int, int]]) -> None:
    quad = np.array(corners, np.float32)
    (part,) = parts_of(quad, np.array([[0.2, 0.2, 0.6, 0.6]]))
    assert (part >= quad.min(axis=0)).all()
    assert (part <= quad.max(axis=0)).all()
