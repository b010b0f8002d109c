"""Lines of pages seen from the side: the rectangles that a detector finds become the quads that they are."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline import perspective
from ocrsvc.imaging.geometry import Quad

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
