"""Parts of lines: where what stands in a straightened crop is on the page."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ocrsvc.imaging.outline import Outline, cut, extent, parts_of
from ocrsvc.records import Pixels


def test_parts_of_a_quad_seen_at_a_slant_are_nearer_where_it_is_far() -> None:
    # The left side is twice as far away as the right: where its diagonals meet is the middle of what it shows.
    trapezium = np.array([[0, 10], [60, 0], [60, 40], [0, 30]], np.float32)
    (left,) = parts_of(trapezium, np.array([[0.0, 0.0, 0.5, 1.0]]))
    assert np.allclose(left, np.array([[0, 10], [20, 20 / 3], [20, 100 / 3], [0, 30]]), atol=1e-3)


def test_parts_of_a_quad_are_the_same_parts_of_its_crop() -> None:
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
def test_parts_of_a_curved_line_are_the_same_parts_of_its_crop(begin: float) -> None:
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
def test_parts_of_a_quad_without_an_area_are_on_it(corners: list[tuple[int, int]]) -> None:
    quad = np.array(corners, np.float32)
    (part,) = parts_of(quad, np.array([[0.2, 0.2, 0.6, 0.6]]))
    assert (part >= quad.min(axis=0)).all()
    assert (part <= quad.max(axis=0)).all()
