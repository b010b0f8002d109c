"""Spaces between Chinese and Latin, on lines drawn as blocks of ink."""

from __future__ import annotations

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.pipeline.spaces import with_spaces
from ocrsvc.records import Pixels


def line(characters: str, gap_px: int, *, colour: bool = False) -> tuple[Path, Pixels]:
    """Blocks 24 px wide, 8 px a step, the second one `gap_px` after the first and the others 2 px apart."""
    crop: Pixels = np.full((48, 240), 240, np.uint8)
    lefts = [8, 32 + gap_px, 58 + gap_px, 84 + gap_px][: len(characters)]
    for left in lefts:
        crop[8:40, left : left + 24] = 20
    middles = np.array([(left + 12) // 8 for left in lefts])
    path = Path(list(characters), middles, middles, 30, 0.9)
    return path, np.repeat(crop[:, :, None], 3, axis=2) if colour else crop


@pytest.mark.parametrize(
    ("characters", "gap_px", "text"),
    [
        ("x文", 14, "x 文"),
        ("文x", 14, "文 x"),
        ("7个", 14, "7 个"),
        ("x文", 3, "x文"),
        ("文字", 14, "文字"),
        ("xy", 14, "xy"),
        ("x。", 14, "x。"),
        ("x文字y", 14, "x 文字y"),
        ("", 0, ""),
    ],
)
@pytest.mark.parametrize("colour", [False, True])
def test_a_visible_gap_between_the_scripts_is_a_space(characters: str, gap_px: int, text: str, colour: bool) -> None:
    path, crop = line(characters, gap_px, colour=colour)
    assert "".join(with_spaces(path, lambda: crop).characters) == text


def test_light_text_on_dark_ground_shows_its_gaps_too() -> None:
    path, crop = line("x文", 14)
    spaced = with_spaces(path, lambda: 255 - crop)
    assert spaced.characters == ["x", " ", "文"]
    assert spaced.first.tolist() == spaced.last.tolist() == [2, 4, 7]
