"""Spaces between Chinese and Latin, in drawn lines and pages and with the real model."""

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from ppocr_support import load, read, rectangle, text_of

from ocrsvc.engines.line_recognizer import LineText, Path, ScriptGaps
from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.engines.ppocr.pipeline.spaces import blank_columns, decide_spaces, measure_gaps
from ocrsvc.imaging.geometry import Quad
from ocrsvc.results import Pixels, Spaces

STEP_PX = 8
LEFT_PX = 8
QUAD = rectangle(0, 0, 1200, 44)
# Gaps between scripts at 40 px type: side bearings only, added by a browser or a word processor, and a typed space.
CLOSE, BROWSER, OFFICE, TYPED = 4, 9, 11, 14


def draw(characters: str, gaps_px: Sequence[int], *, ink: int = 20, ground: int = 240) -> tuple[Path, Pixels]:
    """Draw blocks of ink 36 px wide with these gaps between them; spaces draw nothing."""
    crop: Pixels = np.full((48, 1200), ground, np.uint8)
    left, middles = LEFT_PX, list[int]()
    gaps = iter(gaps_px)
    for number, character in enumerate(characters):
        if character == " ":
            middles.append(middles[-1] + 3)
            continue
        left += 36 + next(gaps) if number else 0
        crop[7:41, left : left + 36] = ink
        middles.append((left + 18) // STEP_PX)
    steps = np.array(middles)
    return Path(list(characters), steps, steps, 150, 0.9, np.full(len(characters), 0.9)), crop


def line(characters: str, gap_px: int) -> tuple[LineText, Quad]:
    """Return a recognized line; gaps are 4 px within a script and `gap_px` between scripts."""
    shown = characters.replace(" ", "")
    gaps = [CLOSE if one.isascii() == other.isascii() else gap_px for one, other in pairwise(shown)]
    path, crop = draw(characters, gaps)
    return LineText(characters, 0.9, path, measure_gaps(path, lambda: crop)), QUAD


def texts_of(lines: Sequence[tuple[LineText, Quad]], spaces: Spaces = "auto") -> list[str]:
    return [text.text for text in decide_spaces(lines, spaces)]


def test_lines_without_visible_gaps_or_contrast_are_left_to_the_model() -> None:
    path, crop = draw("中 x文", [TYPED, CLOSE])
    rough = np.random.default_rng(3).integers(0, 256, crop.shape, np.uint8)
    assert measure_gaps(path, lambda: rough) is None
    for one in (np.zeros((48, 48), np.uint8), np.full((48, 7, 3), 255, np.uint8)):
        assert blank_columns(one).shape == (one.shape[1],)


@pytest.mark.parametrize(("gap_px", "typed"), [(CLOSE, False), (BROWSER, False), (OFFICE, False), (TYPED, True)])
@pytest.mark.parametrize("characters", ["中文x文字里", "有3个建议", "x文", "文x"])
def test_spaces_of_a_single_line_depend_on_its_gaps(characters: str, gap_px: int, typed: bool) -> None:
    (text,) = texts_of([line(characters, gap_px)])
    assert (" " in text) == typed
    assert text.replace(" ", "") == characters


def test_an_uncertain_gap_follows_the_rest_of_its_page() -> None:
    doubtful = line("中文字x", 12)
    closed, typed = ([line("中文字里有x和3个y们", gap_px)] * 5 for gap_px in (CLOSE, TYPED))
    assert texts_of([doubtful, *closed])[0] == "中文字x"
    assert texts_of([doubtful, *typed])[0] == "中文字 x"


def test_wider_gaps_of_narrow_characters_are_no_spaces() -> None:
    assert texts_of([line("于1月1日到", 11)]) == ["于1月1日到"]
    assert texts_of([line("于5年6号到", 15)]) == ["于 5 年 6 号到"]


def test_unsupported_spaces_are_removed_and_new_ones_are_placed_in_their_gap() -> None:
    lines = [line("中文 x文", CLOSE)] + [line("中文字里有x和3个y们", CLOSE)] * 5
    removed, added = decide_spaces(lines, "auto")[0], decide_spaces([line("中文字x文 x", TYPED)], "auto")[0]
    assert (removed.text, added.text) == ("中文x文", "中文字 x 文 x")
    for text in (removed, added):
        assert text.path is not None
        assert "".join(text.path.characters) == text.text
        assert len(text.path.first) == len(text.path.last) == len(text.text)
        assert (np.diff(text.path.first) >= 0).all()
        assert (text.path.first <= text.path.last).all()


def test_spaces_option_model_keeps_the_models_and_visible_fills_every_gap() -> None:
    assert texts_of([line("中文x文 字y", TYPED), line("中 x", CLOSE)], "model") == ["中文x文 字y", "中 x"]
    lines = [line("中文字x", gap_px) for gap_px in (TYPED, OFFICE, BROWSER, CLOSE)]
    assert texts_of(lines, "visible") == ["中文字 x", "中文字 x", "中文字 x", "中文字x"]


def test_time_is_linear_in_the_number_of_lines() -> None:
    path = Path(list("中x" * 100), np.arange(200), np.arange(200), 400, 0.9, np.full(200, 0.9))
    places = np.arange(199)
    gaps = ScriptGaps(0.0, np.zeros(0, np.float32), places, np.full(199, 14, np.float32), 3200)
    began_s = time.thread_time()
    decide_spaces([(LineText("中x" * 100, 0.9, path, gaps), QUAD)] * 1000, "auto")
    # 200,000 gaps, more than 100 full pages have, took 0.4 s.
    assert time.thread_time() - began_s < 4


@pytest.mark.parametrize("name", ["closed", "spaced"])
@pytest.mark.parametrize("light", [False, True], ids=["dark on light", "light on dark"])
def test_a_page_is_read_with_its_typed_spaces(handle: PageHandle, name: str, light: bool) -> None:
    pixels = load(f"{name}.png")
    assert read(handle, 255 - pixels if light else pixels).text.splitlines() == text_of(name).splitlines()


@pytest.mark.parametrize(("name", "number"), [("closed", 0), ("closed", 1), ("spaced", 3), ("spaced", 4)])
def test_a_single_line_is_read_with_its_typed_spaces(handle: PageHandle, name: str, number: int) -> None:
    top = 10 + 42 * number
    assert read(handle, load(f"{name}.png")[top : top + 50]).text == text_of(name).splitlines()[number]
