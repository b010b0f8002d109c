"""Where characters stand in a crop, on lines drawn as blocks of ink."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.pipeline.character_places import ink_columns, place_characters
from ocrsvc.records import Pixels

HEIGHT, WIDTH, STEP_PX = 48, 320, 8


def path_of(text: str, *steps: int, width: int = WIDTH) -> Path:
    """A path whose characters stand on one step each."""
    places = np.array(steps, np.intp)
    return Path(list(text), places, places, width // STEP_PX, 0.9, np.full(len(text), 0.9))


def blocks(*sides: tuple[int, int, int, int], ink: int = 20, paper: int = 240) -> Pixels:
    """A line with blocks of ink: left, top, right, bottom of each."""
    crop: Pixels = np.full((HEIGHT, WIDTH), paper, np.uint8)
    for left, top, right, bottom in sides:
        crop[top:bottom, left:right] = ink
    return crop


def placed(path: Path, crop: Pixels) -> list[list[int]]:
    """The characters' sides in pixels: left, top, right, bottom."""
    (found,) = place_characters([(path, ink_columns(crop))], HEIGHT)
    assert found is not None
    shares = np.stack([found.left, found.top, found.right, found.bottom], axis=1)
    return [[round(side) for side in sides] for sides in (shares * [WIDTH, HEIGHT, WIDTH, HEIGHT]).tolist()]


THREE = [(20, 12, 40, 38), (44, 20, 60, 38), (90, 12, 112, 44)]


@pytest.mark.parametrize("colours", [(20, 240), (240, 20), (120, 160)])
def test_characters_end_where_their_ink_does(colours: tuple[int, int]) -> None:
    crop = blocks(*THREE, ink=colours[0], paper=colours[1])
    expected = [list(block) for block in THREE]
    assert placed(path_of("ab c", 3, 6, 9, 12), crop) == expected
    assert placed(path_of("ab c", 3, 6, 9, 12), np.repeat(crop[:, :, None], 3, axis=2)) == expected


def test_steps_that_are_a_little_off_change_nothing() -> None:
    assert placed(path_of("ab c", 4, 5, 8, 11), blocks(*THREE)) == [list(block) for block in THREE]


def test_a_character_of_two_parts_stays_whole() -> None:
    crop = blocks((20, 10, 28, 38), (34, 10, 42, 38), (46, 10, 70, 38))
    assert placed(path_of("川一", 3, 7), crop) == [[20, 10, 42, 38], [46, 10, 70, 38]]


def test_characters_that_touch_are_cut_where_the_ink_is_thinnest() -> None:
    crop = blocks((20, 12, 40, 38), (40, 34, 44, 38), (44, 12, 64, 38))
    (_, _, right, _), (left, _, _, _) = placed(path_of("ru", 3, 6), crop)
    assert left == right
    assert 40 <= left <= 44


def test_ink_of_the_lines_above_and_below_is_not_the_lines_own() -> None:
    crop = blocks((20, 12, 40, 38), (24, 0, 30, 4), (22, 45, 28, 48))
    assert placed(path_of("a", 3), crop) == [[20, 12, 40, 38]]


def test_what_stands_far_from_the_first_and_last_character_is_not_theirs() -> None:
    crop = blocks((4, 10, 10, 40), (100, 12, 120, 38), (300, 10, 318, 40))
    assert placed(path_of("a", 13), crop) == [[100, 12, 120, 38]]


def test_a_mark_that_was_reported_late_keeps_its_ink() -> None:
    crop = blocks((20, 12, 40, 38), (42, 34, 46, 38))
    (_, _, letter, _), (mark, _, end, _) = placed(path_of("y.", 4, 5), crop)
    assert letter <= mark < end == 46


def test_characters_without_ink_stand_about_where_they_were_reported() -> None:
    (first, second) = placed(path_of("ab", 3, 9), blocks())
    assert first == [22, 0, 30, 48]
    assert second == [70, 0, 78, 48]


def test_a_line_of_spaces_has_no_places() -> None:
    lines = [(path_of(" ", 3), ink_columns(blocks())), (path_of("a", 3), ink_columns(blocks(THREE[0])))]
    none, one = place_characters(lines, HEIGHT)
    assert none is None
    assert one is not None
    assert place_characters([], HEIGHT) == []


def test_a_line_is_placed_alone_as_beside_others() -> None:
    random = np.random.default_rng(3)
    lines = []
    for _ in range(20):
        crop = np.asarray(random.integers(0, 2, (HEIGHT, WIDTH)) * random.integers(0, 2, WIDTH) * 255, np.uint8)
        steps = np.sort(random.choice(WIDTH // STEP_PX, int(random.integers(1, 40)), replace=False)).tolist()
        lines.append((path_of("x" * len(steps), *steps), ink_columns(crop)))
    for line, beside in zip(lines, place_characters(lines, HEIGHT), strict=True):
        (alone,) = place_characters([line], HEIGHT)
        assert alone is not None
        assert beside is not None
        assert np.array_equal(alone.left, beside.left)
        assert np.array_equal(alone.right, beside.right)
        assert (alone.line_top, alone.line_bottom) == (beside.line_top, beside.line_bottom)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_read_boxes_are_in_order_and_in_the_crop(seed: int) -> None:
    random = np.random.default_rng(seed)
    crop = np.asarray(random.integers(0, 256, (HEIGHT, WIDTH)), np.uint8)
    steps = np.sort(random.choice(WIDTH // STEP_PX, int(random.integers(1, 40)), replace=False))
    text = "".join(random.choice(list("a 中"), len(steps) - 1)) + "b"
    sides = np.array(placed(path_of(text, *steps.tolist()), crop))
    assert (sides[:, 0] <= sides[:, 2]).all()
    assert (sides[1:, 0] >= sides[:-1, 2]).all()
    assert (sides[:, 1] < sides[:, 3]).all()
    assert sides.min() >= 0
    assert (sides <= [WIDTH, HEIGHT, WIDTH, HEIGHT]).all()


def test_the_longest_line_costs_a_few_milliseconds() -> None:
    crop = np.asarray(np.random.default_rng(1).integers(0, 256, (HEIGHT, 3200, 3)), np.uint8)
    path = path_of("a" * 400, *range(400), width=3200)
    times_s = []
    for _ in range(3):
        began_s = time.thread_time()
        place_characters([(path, ink_columns(crop))], HEIGHT)
        times_s.append(time.thread_time() - began_s)
    assert min(times_s) < 0.1
