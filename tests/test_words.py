"""Words and characters of lines: where words begin in each script, and how well their boxes match the ink."""

import itertools
import time
from collections.abc import Sequence
from typing import get_args

import cv2
import numpy as np
import pytest
from ppocr_support import frame_of, load, read
from support import data_of, read_data

from ocrsvc.engines.line_recognizer import Path
from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.engines.ppocr.pipeline.words import ink_columns, place_characters
from ocrsvc.imaging.word_split import open_jieba, word_begins
from ocrsvc.results import Decoder, Line, Page, Pixels, Word

LETTER_GAP_PX = 8  # in line.png and notice.png, at most 6 between letters and at least 10 between words
NOTICE = [
    "通|知|Notice",
    "图|书|馆|今|天|下|午|三|点|关|门|。",
    "The|library|closes|at|15:00|today.",
    "编|号|2026-1121|电|话|010-5550142",
]


def words_of(line: Line) -> tuple[Word, ...]:
    assert line.words is not None
    return line.words


def texts(page: Page) -> list[str]:
    return ["|".join(word.text for word in words_of(line)) for line in page.lines]


def assert_between_gaps(words: Sequence[Word], rows: Pixels) -> None:
    inked = np.flatnonzero((rows.min(axis=2) < 128).any(axis=0))
    breaks = np.flatnonzero(np.diff(inked) > LETTER_GAP_PX)
    runs = np.stack([inked[[0, *(breaks + 1)]], inked[[*breaks, -1]] + 1], axis=1)
    found = np.array([frame_of(word.box)[[0, 2]] for word in words])
    assert np.abs(found - runs).max() <= 2


@pytest.mark.parametrize("decoder", get_args(Decoder))
def test_word_boxes_end_at_their_ink(handle: PageHandle, decoder: Decoder) -> None:
    pixels, line = load("notice.png"), load("line.png")
    page = read(handle, pixels, words=True, decoder=decoder)
    assert texts(page) == NOTICE
    assert_between_gaps(words_of(page.lines[2]), pixels[160:205])
    assert all(0.5 < word.confidence <= 1 and not word.characters for line in page.lines for word in words_of(line))
    # Read the whole image as one line; and check that words are absent by default.
    alone = read(handle, line, detect=False, words=True, decoder=decoder)
    assert texts(alone) == [NOTICE[2]]
    assert_between_gaps(words_of(alone.lines[0]), line)
    assert all(line.words is None for line in read(handle, pixels, decoder=decoder).lines)


def test_characters_match_their_words_and_are_inside_the_word_boxes(handle: PageHandle) -> None:
    page = read(handle, load("notice.png"), characters=True)
    for word in (word for line in page.lines for word in words_of(line)):
        assert "".join(character.text for character in word.characters) == word.text
        sides = np.array([frame_of(character.box) for character in word.characters])
        left, top, right, bottom = frame_of(word.box)
        assert (sides[0, 0], sides[-1, 2]) == pytest.approx((left, right), abs=0.5)
        assert (sides[1:, 0] >= sides[:-1, 2] - 0.5).all()
        assert (sides[:, 1].min(), sides[:, 3].max()) == pytest.approx((top, bottom), abs=0.5)


@pytest.mark.parametrize(("name", "degrees"), [("notice_turned_90.png", 90), ("notice_turned_180.png", 180)])
def test_words_of_a_turned_page_have_image_coordinates(handle: PageHandle, name: str, degrees: int) -> None:
    pixels = load(name)
    page = read(handle, pixels, words=True)
    assert texts(page) == NOTICE
    for word in words_of(page.lines[2]):
        left, top, right, bottom = np.rint(frame_of(word.box)).astype(int)
        assert (pixels[top:bottom, left:right] < 128).any()
        start = {90: (right, top), 180: (right, bottom)}[degrees]
        assert np.allclose(word.box[0], start, atol=1)


def test_characters_of_vertical_lines_have_boxes_in_their_cells(handle: PageHandle) -> None:
    """The page has the Chinese line of notice.png as vertical text, in columns from right to left."""
    line, corners = load("notice.png")[98:138, 32:332], []
    pixels: Pixels = np.full((460, 280, 3), 255, np.uint8)
    for column, row in itertools.product(range(3), range(10)):
        left, top = 80 * (2 - column) + 45, 10 + row * 40
        pixels[top : top + 40, left : left + 30] = line[:, row * 30 : row * 30 + 30]
        corners.append((left, top))
    page = read(handle, pixels, words=True)
    assert texts(page) == [NOTICE[1].removesuffix("|门|。")] * 3
    for word, (left, top) in zip((w for line in page.lines for w in words_of(line)), corners, strict=True):
        sides = frame_of(word.box)
        assert (sides[:2] >= (left - 3, top - 2)).all()
        assert (sides[2:] <= (left + 33, top + 42)).all()
        assert word.box[0][1] < word.box[1][1]


@pytest.mark.parametrize("upright", [False, True])
def test_words_of_slanted_lines_are_slanted_unless_asked_upright(handle: PageHandle, *, upright: bool) -> None:
    turn = cv2.getRotationMatrix2D((320, 150), -3, 1)
    pixels = np.asarray(cv2.warpAffine(load("notice.png"), turn, (640, 300), borderValue=(255, 255, 255)), np.uint8)
    library = words_of(read(handle, pixels, words=True, upright_boxes=upright).lines[2])[1]
    (left, top), (right, down) = library.box[0], library.box[1]
    assert np.degrees(np.arctan2(down - top, right - left)) == pytest.approx(0 if upright else 3, abs=0.7)
    assert library.text == "library"


@pytest.mark.parametrize(("text", "expected"), read_data("word_splits.json")["words by text"].items())
def test_words_split_at_spaces_and_chinese_by_character(text: str, expected: str) -> None:
    ends = [*word_begins(text), len(text)]
    assert "|".join(text[begin:end].rstrip() for begin, end in itertools.pairwise(ends)) == expected


def test_jieba_splits_runs_of_chinese_into_dictionary_words() -> None:
    pytest.importorskip("jieba")
    text = "图书馆今天 keeps 3关门"
    ends = [*word_begins(text, open_jieba()), len(text)]
    found = [text[begin:end].rstrip() for begin, end in itertools.pairwise(ends)]
    assert found == ["图书馆", "今天", "keeps", "3", "关门"]


HEIGHT, WIDTH, STEP_PX = 48, 320, 8
INK = data_of("character_ink")
THREE = [(20, 12, 40, 38), (44, 20, 60, 38), (90, 12, 112, 44)]


def path_of(text: str, *steps: int, width: int = WIDTH) -> Path:
    """A path with one step per character."""
    places = np.array(steps, np.intp)
    return Path(list(text), places, places, width // STEP_PX, 0.9, np.full(len(text), 0.9))


def blocks(*sides: tuple[int, int, int, int], ink: int = 20, paper: int = 240) -> Pixels:
    crop: Pixels = np.full((HEIGHT, WIDTH), paper, np.uint8)
    for left, top, right, bottom in sides:
        crop[top:bottom, left:right] = ink
    return crop


def placed(path: Path, crop: Pixels) -> list[tuple[int, ...]]:
    """The characters' boxes in pixels: left, top, right, bottom."""
    (found,) = place_characters([(path, ink_columns(crop))], HEIGHT)
    assert found is not None
    return [tuple(map(round, sides)) for sides in (found.boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT]).tolist()]


@pytest.mark.parametrize("colours", [(20, 240), (240, 20), (120, 160)])
def test_character_boxes_end_at_their_ink(colours: tuple[int, int]) -> None:
    crop = blocks(*THREE, ink=colours[0], paper=colours[1])
    assert placed(path_of("ab c", 3, 6, 9, 12), crop) == THREE
    assert placed(path_of("ab c", 3, 6, 9, 12), np.repeat(crop[:, :, None], 3, axis=2)) == THREE


@pytest.mark.parametrize(("text", "steps", "ink", "expected"), INK.values(), ids=INK.keys())
def test_ink_is_assigned_to_the_right_character(
    text: str, steps: list[int], ink: list[tuple[int, int, int, int]], expected: list[list[int]]
) -> None:
    assert list(map(list, placed(path_of(text, *steps), blocks(*ink)))) == expected


def test_touching_characters_are_split_at_the_thinnest_ink_and_a_full_stop_keeps_its_box() -> None:
    crop = blocks((20, 12, 40, 38), (40, 34, 44, 38), (44, 12, 64, 38))
    (_, _, right, _), (left, _, _, _) = placed(path_of("ru", 3, 6), crop)
    assert 40 <= left == right <= 44
    (_, _, letter, _), (mark, _, end, _) = placed(path_of("y.", 4, 5), blocks((20, 12, 40, 38), (42, 34, 46, 38)))
    assert letter <= mark < end == 46


def test_a_line_of_spaces_has_no_characters() -> None:
    lines = [(path_of(" ", 3), ink_columns(blocks())), (path_of("a", 3), ink_columns(blocks(THREE[0])))]
    assert [found is None for found in place_characters(lines, HEIGHT)] == [True, False]
    assert place_characters([], HEIGHT) == []


@pytest.mark.parametrize("seed", range(30))
def test_boxes_are_always_ordered_and_inside_the_crop(seed: int) -> None:
    random = np.random.default_rng(seed)
    crop = np.asarray(random.integers(0, 256, (HEIGHT, WIDTH)), np.uint8)
    steps = np.sort(random.choice(WIDTH // STEP_PX, int(random.integers(1, 40)), replace=False))
    text = "".join(random.choice(list("a 中"), len(steps) - 1)) + "b"
    sides = np.array(placed(path_of(text, *steps.tolist()), crop))
    assert (sides[:, :2] <= sides[:, 2:]).all()
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
