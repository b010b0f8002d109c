"""Words and characters of pages that the real models read, held against the ink of the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from support import page_handle

from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.records import Box, Decoder, Image, Line, Page, Pixels, ReadOptions, ReadTask, Word

PAGES = Path(__file__).parent / "pages"
LETTER_GAP_PX = 8  # between letters of line.png and notice.png there are 6 at most, between words 10 and more


@pytest.fixture(scope="module")
def handle() -> Iterator[PageHandle]:
    with page_handle() as handle:
        yield handle


def load(name: str) -> Pixels:
    return np.asarray(cv2.imread(str(PAGES / name)), np.uint8)


def read(handle: PageHandle, pixels: Pixels, options: ReadOptions) -> Page:
    (page,) = handle.read([ReadTask(Image(pixels, "png"), options)])
    assert isinstance(page, Page)
    return page


def words_of(line: Line) -> tuple[Word, ...]:
    assert line.words is not None
    return line.words


def texts(page: Page) -> list[str]:
    return ["|".join(word.text for word in words_of(line)) for line in page.lines]


def runs_of_ink(rows: Pixels) -> list[tuple[int, int]]:
    """Where words begin and end in rows of a page, by the gaps between them."""
    inked = np.flatnonzero((rows.min(axis=2) < 128).any(axis=0))
    breaks = np.flatnonzero(np.diff(inked) > LETTER_GAP_PX)
    return list(zip(inked[[0, *(breaks + 1)]].tolist(), (inked[[*breaks, -1]] + 1).tolist(), strict=True))


def sides_of(box: Box) -> NDArray[np.float64]:
    """Left, top, right and bottom of the frame around a box."""
    corners = np.array(box)
    return np.concatenate([corners.min(axis=0), corners.max(axis=0)])


def assert_between(words: Sequence[Word], runs: Sequence[tuple[int, int]]) -> None:
    found = np.array([sides_of(word.box)[[0, 2]] for word in words])
    assert np.abs(found - np.array(runs)).max() <= 2


NOTICE = [
    "通|知|Notice",
    "图|书|馆|今|天|下|午|三|点|关|门|。",
    "The|library|closes|at|15:00|today.",
    "编|号|2026-1121|电|话|010-5550142",
]


@pytest.mark.parametrize("decoder", get_args(Decoder))
def test_words_end_where_their_ink_does(handle: PageHandle, decoder: Decoder) -> None:
    pixels, line = load("notice.png"), load("line.png")
    page = read(handle, pixels, ReadOptions(words=True, decoder=decoder))
    assert texts(page) == NOTICE
    assert_between(words_of(page.lines[2]), runs_of_ink(pixels[160:205]))
    assert all(0.5 < word.confidence <= 1 and not word.characters for line in page.lines for word in words_of(line))
    # The whole image as one line; and words are not there unless they are asked for.
    alone = read(handle, line, ReadOptions(detect=False, words=True, decoder=decoder))
    assert texts(alone) == [NOTICE[2]]
    assert_between(words_of(alone.lines[0]), runs_of_ink(line))
    assert all(line.words is None for line in read(handle, pixels, ReadOptions(decoder=decoder)).lines)


def test_characters_are_those_of_the_words_and_lie_in_their_boxes(handle: PageHandle) -> None:
    page = read(handle, load("notice.png"), ReadOptions(characters=True))
    for word in (word for line in page.lines for word in words_of(line)):
        assert "".join(character.text for character in word.characters) == word.text
        sides = np.array([sides_of(character.box) for character in word.characters])
        left, top, right, bottom = sides_of(word.box)
        assert (sides[0, 0], sides[-1, 2]) == pytest.approx((left, right), abs=0.5)
        assert (sides[1:, 0] >= sides[:-1, 2] - 0.5).all()
        assert (sides[:, 1].min(), sides[:, 3].max()) == pytest.approx((top, bottom), abs=0.5)


@pytest.mark.parametrize(("name", "degrees"), [("notice_turned_90.png", 90), ("notice_turned_180.png", 180)])
def test_words_of_a_turned_page_stand_where_they_are_and_begin_where_reading_does(
    handle: PageHandle, name: str, degrees: int
) -> None:
    pixels = load(name)
    page = read(handle, pixels, ReadOptions(words=True))
    assert texts(page) == NOTICE
    for word in words_of(page.lines[2]):
        left, top, right, bottom = np.rint(sides_of(word.box)).astype(int)
        assert (pixels[top:bottom, left:right] < 128).any()
        start = {90: (right, top), 180: (right, bottom)}[degrees]
        assert np.allclose(word.box[0], start, atol=1)


def vertical_page(columns: int = 3) -> tuple[Pixels, list[tuple[int, int]]]:
    """The Chinese line of notice.png set downwards, in columns from right to left; and each character's corner."""
    line = load("notice.png")[98:138, 32:332]
    characters = [line[:, begin : begin + 30] for begin in range(0, 300, 30)]
    page: Pixels = np.full((460, 80 * columns + 40, 3), 255, np.uint8)
    corners = []
    for column in range(columns):
        for row, character in enumerate(characters):
            left, top = 80 * (columns - 1 - column) + 45, 10 + row * 40
            page[top : top + 40, left : left + 30] = character
            corners.append((left, top))
    return page, corners


def test_characters_of_vertical_lines_stand_in_their_cells(handle: PageHandle) -> None:
    pixels, corners = vertical_page()
    page = read(handle, pixels, ReadOptions(words=True))
    assert texts(page) == [NOTICE[1].removesuffix("|门|。")] * 3
    for word, (left, top) in zip((w for line in page.lines for w in words_of(line)), corners, strict=True):
        sides = sides_of(word.box)
        assert (sides[:2] >= (left - 3, top - 2)).all()
        assert (sides[2:] <= (left + 33, top + 42)).all()
        assert word.box[0][1] < word.box[1][1]


@pytest.mark.parametrize("upright", [False, True])
def test_words_of_a_slanted_line_are_slanted_unless_upright_boxes_are_asked_for(
    handle: PageHandle, *, upright: bool
) -> None:
    turn = cv2.getRotationMatrix2D((320, 150), -3, 1)
    pixels = np.asarray(cv2.warpAffine(load("notice.png"), turn, (640, 300), borderValue=(255, 255, 255)), np.uint8)
    page = read(handle, pixels, ReadOptions(words=True, upright_boxes=upright))
    library = words_of(page.lines[2])[1]
    (left, top), (right, down) = library.box[0], library.box[1]
    assert np.degrees(np.arctan2(down - top, right - left)) == pytest.approx(0 if upright else 3, abs=0.7)
    assert library.text == "library"
