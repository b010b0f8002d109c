"""Curved lines: their outlines on maps drawn by hand, and lines that are bent by arithmetic and straightened again."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from bent_page import bend
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.db_postprocess import lines_from_map
from ocrsvc.imaging.geometry import crop, heading, sides
from ocrsvc.imaging.outline import Outline, corners, cut, ends, extent, is_curved, turned_round

SIZE = 400


def arc(radius: float, thickness: int, half_angle: float, turned: float = 0.0) -> NDArray[np.float32]:
    """A map with a strip of 0.9 along a part of a circle, arched to the top; `turned` clockwise, all in degrees."""
    table = np.zeros((SIZE, SIZE), np.float32)
    middle = (SIZE // 2, SIZE // 2)
    begin, end = -90 - half_angle + turned, -90 + half_angle + turned
    cv2.ellipse(table, middle, (round(radius), round(radius)), 0, begin, end, 0.9, thickness)
    return table


def only_line(table: NDArray[np.float32]) -> Outline:
    (outline,) = lines_from_map(table, SIZE, SIZE).outlines
    return outline


def test_a_strip_along_an_arc_is_one_curved_line_around_it() -> None:
    outline = only_line(arc(150, 10, 50))
    assert is_curved(outline)
    along, across = extent(outline)
    # 150 px x 100 degrees = 262 px; the strip is 10 px thick, so d = 262 * 10 * 1.5 / (2 * 272) = 7.2 px.
    assert along == pytest.approx(262 + 14, rel=0.04)
    assert across == pytest.approx(10 + 14, rel=0.1)
    radii = np.hypot(*(outline - SIZE / 2).T)
    middle = len(outline) // 2
    assert np.allclose(radii[1 : middle - 1], 150 + 12, atol=3)
    assert np.allclose(radii[middle + 1 : -1], 150 - 12, atol=3)


@pytest.mark.parametrize(("turned", "direction"), [(0, 0), (90, 90), (180, 0), (270, 90)])
def test_a_curved_line_begins_at_its_left_end_or_at_its_top_in_the_rectangle_around_it(
    turned: float, direction: int
) -> None:
    outline = only_line(arc(150, 10, 40, turned))
    quad = corners(outline)
    assert heading(quad) == heading(ends(outline)) == direction
    assert heading(ends(turned_round(outline))) == heading(corners(turned_round(outline))) == direction + 180
    assert np.allclose(quad.min(axis=0), outline.min(axis=0), atol=1)
    assert np.allclose(quad.max(axis=0), outline.max(axis=0), atol=1)


def test_a_slanted_line_and_one_that_is_hardly_bent_are_rectangles() -> None:
    slanted = cv2.line(np.zeros((SIZE, SIZE), np.float32), (50, 60), (350, 200), 0.9, 10)
    hardly_bent = np.zeros((SIZE, SIZE), np.float32)
    cv2.ellipse(hardly_bent, (200, 900), (800, 800), 0, -96, -84, 0.9, 10)
    assert not is_curved(only_line(slanted.astype(np.float32)))
    assert not is_curved(only_line(hardly_bent))


def cross() -> NDArray[np.float32]:
    table = np.zeros((SIZE, SIZE), np.float32)
    table[195:205, 50:350] = table[50:350, 195:205] = 0.9
    return table


def test_a_cross_and_a_ring_are_no_curved_lines() -> None:
    ring = cv2.circle(np.zeros((SIZE, SIZE), np.float32), (200, 200), 120, 0.9, 8)
    assert lines_from_map(cross(), SIZE, SIZE).outlines == []
    assert lines_from_map(ring.astype(np.float32), SIZE, SIZE).outlines == []


def test_what_the_map_takes_for_text_and_is_in_no_line_is_counted() -> None:
    table = cross()
    table[380:390, 50:350] = 0.9
    found = lines_from_map(table, SIZE, SIZE)
    assert len(found.outlines) == 1
    # Between pixel centres: a cross of 2 * 299 * 9 - 81 = 5301 and a line of 299 * 9 = 2691 px.
    assert found.unclaimed == pytest.approx(5301 / (5301 + 2691), rel=0.01)


def test_a_bent_line_is_cut_out_as_it_was_before() -> None:
    sharp = np.full((24, 240), 255, np.uint8)
    cv2.putText(sharp, "Curved lines 1234567", (4, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.6, 0, 1, cv2.LINE_AA)
    strip = np.asarray(cv2.GaussianBlur(sharp, (5, 5), 0), np.uint8)
    places = np.linspace(-120, 120, 17) / 150
    circle = np.stack([np.sin(places), -np.cos(places)], axis=1)
    outline = np.concatenate([200 + 162 * circle, (200 + 138 * circle)[::-1]]).astype(np.float32)
    straightened = cut(bend(strip, 150, (400, 200)), outline, 240, 24)
    assert straightened.shape == (24, 240)
    assert np.corrcoef(straightened.ravel(), strip.ravel())[0, 1] > 0.95


def test_a_straight_outline_is_cut_as_the_quad_that_it_is() -> None:
    page = np.random.default_rng(2).integers(0, 256, (80, 120, 3), np.uint8)
    quad = np.array([[10, 12], [90, 20], [88, 44], [8, 36]], np.float32)
    assert np.array_equal(cut(page, quad, 96, 48), crop(page, quad, 96, 48))
    assert extent(quad) == pytest.approx(sides(quad))
    assert corners(quad) is quad


def test_pieces_that_are_less_than_a_column_wide_are_left_out() -> None:
    places = np.linspace(-0.5, 0.5, 17)
    circle = np.stack([np.sin(places), -np.cos(places)], axis=1)
    outline = np.concatenate([50 + 40 * circle, (50 + 30 * circle)[::-1]]).astype(np.float32)
    assert cut(np.zeros((100, 100), np.uint8), outline, 5, 48).shape == (48, 5)
