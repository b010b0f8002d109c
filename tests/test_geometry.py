"""Boxes, outlines and perspective of lines, checked against hand-worked results and drawn images."""

import cv2
import numpy as np
import pytest
from image_support import box
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline import perspective
from ocrsvc.imaging.geometry import Quad, restore_page, turn, turn_points
from ocrsvc.imaging.text_contour import Outline, cut, extent, parts_of
from ocrsvc.results import Box, Line, Page, Pixels, Word


def square(left: float, top: float, side: float) -> Box:
    return box(left, top, left + side, top + side)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_pixels_and_points_turn_in_the_same_way(degrees: int) -> None:
    pixels = np.zeros((30, 40), np.uint8)
    pixels[2, 1] = 255
    row, column = np.argwhere(turn(pixels, degrees))[0]
    x, y = turn_points(np.array([[1.5, 2.5]], np.float32), degrees, width=40, height=30)[0]
    assert (column + 0.5, row + 0.5) == (x, y)


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


def arc() -> Outline:
    """Return a line 20 px thick along a quarter of a circle with a radius of 100 px."""
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


# Pages photographed at an angle: the detector's rectangles become quads that follow the perspective.
SIZE = 1000


def lines(lengths: tuple[int, ...] = (700, 500, 820, 640, 760, 300, 800, 580)) -> NDArray[np.float32]:
    tops = range(80, 900, 110)
    ends = [(y, 90 + length) for y, length in zip(tops, lengths, strict=True)]
    return np.array([[[90, y], [end, y], [end, y + 40], [90, y + 40]] for y, end in ends], np.float32)


def follow_perspective(outlines: list[Quad]) -> list[Quad]:
    return perspective.follow_perspective(outlines, SIZE, SIZE)


@pytest.mark.parametrize("slant", [0.0, 0.1, 0.6])
def test_parallel_lines_stay_unchanged(slant: float) -> None:
    cos, sin = np.cos(slant), np.sin(slant)
    quads = list((lines() @ np.array([[cos, sin], [-sin, cos]])).astype(np.float32))
    assert np.array_equal(follow_perspective(quads), quads)


def test_lines_in_random_directions_stay_unchanged() -> None:
    random = np.random.default_rng(5)
    quads = []
    for quad in lines():
        angle = random.uniform(-0.5, 0.5)
        matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        quads.append((quad @ matrix).astype(np.float32))
    assert np.array_equal(follow_perspective(quads), quads)
    assert follow_perspective([]) == []
