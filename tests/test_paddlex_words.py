"""PaddleX's grouping of words and their boxes."""

from dataclasses import replace
from typing import Any

import pytest
from support import data_of

from ocrsvc.adapters.paddlex.word_boxes import to_word_members
from ocrsvc.results import Box, Character, Line, Word


def line_of(text: str, *, upright: bool = False) -> Line:
    """Return a line of characters 10 px wide and 20 px high; an `upright` line runs from bottom to top."""

    def box(begin: int, end: int) -> Box:
        corners = [(10.0 * begin, 0.0), (10.0 * end, 0.0), (10.0 * end, 20.0), (10.0 * begin, 20.0)]
        turned = [(y, 1000.0 - x) for x, y in corners] if upright else corners
        return turned[0], turned[1], turned[2], turned[3]

    letters = [Character(each, 1.0, box(place, place + 1)) for place, each in enumerate(text) if not each.isspace()]
    return Line(text, 1.0, box(0, len(text)), (Word(text, 1.0, box(0, len(text)), tuple(letters)),))


@pytest.mark.parametrize(("text", "groups"), data_of("paddlex_words")["groups"])
def test_words_are_grouped_as_paddlex_groups_them(text: str, groups: list[str]) -> None:
    members: Any = to_word_members([line_of(text)])
    assert members["text_word"] == [groups]
    assert [len(boxes) for boxes in members["text_word_boxes"]] == [len(groups)]


@pytest.mark.parametrize(
    ("upright", "boxes"),
    [
        (False, [[0, 0, 20, 20], [20, 0, 30, 20], [30, 0, 50, 20]]),
        (True, [[0, 980, 20, 1000], [0, 970, 20, 980], [0, 950, 20, 970]]),
    ],
)
def test_space_box_fills_the_gap_between_neighbours(upright: bool, boxes: list[list[int]]) -> None:
    assert to_word_members([line_of("ab cd", upright=upright)])["text_word_boxes"] == [boxes]


def test_line_without_character_boxes_is_one_group() -> None:
    known = line_of("ab 1")
    lines = [replace(known, words=None), replace(known, text="** *")]
    assert to_word_members(lines) == {"text_word": [["ab 1"], ["** *"]], "text_word_boxes": [[[0, 0, 40, 20]]] * 2}
