"""Lines of pages seen from the side: the rectangles that a detector finds become the quads that they are."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline import perspective
from ocrsvc.engines.ppocr.pipeline.db_postprocess import order_clockwise
from ocrsvc.imaging.geometry import Quad

SIZE = 1000


def lines(lengths: tuple[int, ...] = (700, 500, 820, 640, 760, 300, 800, 580)) -> NDArray[np.float32]:
    tops = range(80, 900, 110)
    ends = [(y, 90 + length) for y, length in zip(tops, lengths, strict=True)]
    return np.array([[[90, y], [end, y], [end, y + 40], [90, y + 40]] for y, end in ends], np.float32)


def seen_from_the_side(far: float) -> NDArray[np.float32]:
    """The matrix that shows a page of SIZE by SIZE from its left side; the right one is `far` times as tall."""
    edge = SIZE * (1 - far) / 2
    page = np.array([[0, 0], [SIZE, 0], [SIZE, SIZE], [0, SIZE]], np.float32)
    shown = np.array([[0, 0], [SIZE * 0.6, edge], [SIZE * 0.6, SIZE - edge], [0, SIZE]], np.float32)
    return cv2.getPerspectiveTransform(page, shown).astype(np.float32)


def seen_lines(far: float = 0.6) -> tuple[NDArray[np.float32], list[Quad]]:
    """Lines seen from the side, and what a detector makes of each: the smallest rectangle, from its upper left."""
    shown = cv2.perspectiveTransform(lines(), seen_from_the_side(far)).astype(np.float32)
    found = [np.asarray(cv2.boxPoints(cv2.minAreaRect(quad)), np.float32) for quad in shown]
    return shown, [order_clockwise(quad) for quad in found]


def follow_perspective(outlines: list[Quad]) -> list[Quad]:
    return perspective.follow_perspective(outlines, SIZE, SIZE)


@pytest.mark.parametrize("slant", [0.0, 0.1, 0.6])
def test_parallel_lines_stay_unchanged(slant: float) -> None:
    cos, sin = np.cos(slant), np.sin(slant)
    quads = list((lines() @ np.array([[cos, sin], [-sin, cos]])).astype(np.float32))
    assert np.array_equal(follow_perspective(quads), quads)


def test_lines_in_random_directions_and_few_lines_stay_unchanged() -> None:
    random = np.random.default_rng(5)
    quads = []
    for quad in lines():
        angle = random.uniform(-0.5, 0.5)
        matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        quads.append((quad @ matrix).astype(np.float32))
    assert np.array_equal(follow_perspective(quads), quads)
    few = seen_lines(0.5)[1][:5]
    assert np.array_equal(follow_perspective(few), few)
    assert follow_perspective([]) == []


def test_curved_short_and_crossing_lines_stay_unchanged() -> None:
    upright = np.array([[700, 100], [730, 100], [730, 600], [700, 600]], np.float32)
    short = np.array([[700, 700], [730, 700], [730, 728], [700, 728]], np.float32)
    curved = np.array([[0, 900], [50, 880], [100, 900], [100, 930], [50, 910], [0, 930]], np.float32)
    rectangles = seen_lines()[1]
    found = follow_perspective([upright, *rectangles, short, curved])
    assert found[0] is upright
    assert found[-2] is short
    assert found[-1] is curved
    assert np.allclose(found[1:-2], follow_perspective(rectangles), atol=4)
