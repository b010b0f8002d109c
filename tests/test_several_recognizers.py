"""Pages of several scripts: which recognizer reads a line, and how much the others may cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.ppocr.pipeline.recognizer import input_width
from ocrsvc.engines.ppocr.pipeline.several_recognizers import (
    ALWAYS_PX,
    MOST_MORE,
    SAMPLE_LINES,
    ScriptReader,
    SeveralRecognizers,
    candidates,
)
from ocrsvc.imaging.outline import Outline, extent

WIDTH_PX = input_width(90, 32)


def line(number: int, *, down: bool = False) -> Outline:
    """A line of its own, 90 px long and 32 px high; its left edge is its number."""
    quad = np.array([[number, 0], [number + 90, 0], [number + 90, 32], [number, 32]], np.float32)
    turned = np.array([[number + 32, 0], [number + 32, 90], [number, 90], [number, 0]], np.float32)
    return turned if down else quad


@dataclass
class OneScript:
    """A page reader that is sure of some lines, and how many it was asked for."""

    name: str
    confidence: Callable[[int], float]
    asked: list[int] = field(default_factory=list)
    in_batches: bool = False

    def find(self) -> list[Outline]:
        """No lines of its own."""
        return []

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """Its name and the line's number."""
        numbers = [int(outline[:, 0].min()) for outline in outlines]
        self.asked += numbers
        return [LineText(f"{self.name}{number}", self.confidence(number)) for number in numbers]


def several(
    *readers: OneScript, directions: Sequence[Direction] = (), columns_first: bool = False
) -> SeveralRecognizers:
    """A page read by these."""
    ways = directions or ["ltr"] * len(readers)
    scripts = [ScriptReader(reader, way) for reader, way in zip(readers, ways, strict=True)]
    return SeveralRecognizers(scripts, columns_first=columns_first)


def texts_of(page: SeveralRecognizers, outlines: Sequence[Outline]) -> list[str]:
    """What is read."""
    return [text.text for text in page.read(outlines)]


@pytest.mark.parametrize(
    ("lang", "chosen"),
    [(None, (0,)), ("auto", (0, 1, 2)), ("ru", (1,)), ("ja", (0, 2)), ("zh-hant", (2,)), ("th", (0,))],
)
def test_a_language_chooses_the_recognizers_that_have_it(lang: str | None, chosen: tuple[int, ...]) -> None:
    assert candidates(lang, [("zh", "en", "ja"), ("ru", "en"), ("ja", "zh-hant")]) == chosen


def test_a_page_that_the_first_is_sure_of_is_read_by_no_other() -> None:
    first, other = OneScript("a", lambda _: 0.95), OneScript("b", lambda _: 1.0)

    assert texts_of(several(first, other), [line(0), line(1)]) == ["a0", "a1"]
    assert other.asked == []


def test_the_surest_reading_is_kept_and_of_equals_the_first() -> None:
    first = OneScript("a", lambda _: 0.6)
    second = OneScript("b", lambda number: 0.99 if number == 1 else 0.6)
    third = OneScript("c", lambda number: 0.8 if number == 2 else 0.2)

    assert texts_of(several(first, second, third), [line(0), line(1), line(2)]) == ["a0", "b1", "c2"]
    assert third.asked == [0, 2]


@pytest.mark.parametrize("name", [" ", "b"])
def test_few_characters_say_little_however_sure(name: str) -> None:
    long = np.array([[0, 0], [900, 0], [900, 32], [0, 32]], np.float32)

    class Sparse(OneScript):
        def read(self, outlines: Sequence[Outline]) -> list[LineText]:
            return [LineText(self.name, 0.99) for _ in outlines]

    first, other = Sparse(name, lambda _: 0.0), OneScript("many characters: ", lambda _: 0.5)

    assert texts_of(several(first, other), [long]) == ["many characters: 0"]


def test_the_recognizer_of_most_lines_reads_those_too_that_the_first_is_sure_of() -> None:
    first = OneScript("a", lambda number: 0.95 if number % 3 == 0 else 0.5)
    second = OneScript("b", lambda number: 0.99 if number < 9 else 0.9)
    page = several(first, second)

    assert texts_of(page, [line(number) for number in range(9)]) == [f"b{number}" for number in range(9)]
    assert texts_of(page, [line(9), line(10)]) == ["a9", "b10"]


def test_after_a_few_lines_the_recognizer_of_the_page_is_asked_before_the_others() -> None:
    first, second, third = (OneScript(name, lambda _: 0.5) for name in "abc")
    third.confidence = lambda _: 0.99
    lines = [line(number) for number in range(20)]

    assert texts_of(several(first, second, third), lines) == [f"c{number}" for number in range(20)]
    assert len(second.asked) == SAMPLE_LINES


@pytest.mark.parametrize("count", [4, 100])
def test_the_others_read_no_more_than_their_share_however_many_they_are(count: int) -> None:
    readers = [OneScript(name, lambda _: 0.5) for name in "abcdef"]
    assert input_width(*extent(line(0))) == WIDTH_PX

    texts_of(several(*readers), [line(number) for number in range(count)])

    more_px = sum(len(reader.asked) for reader in readers[1:]) * WIDTH_PX
    assert more_px <= ALWAYS_PX + MOST_MORE * count * WIDTH_PX < more_px + 2 * WIDTH_PX or count == SAMPLE_LINES
    assert len(readers[0].asked) == count


def test_what_was_not_spent_on_some_lines_is_left_for_others_of_the_page() -> None:
    first = OneScript("a", lambda number: 0.5 if number >= 100 else 0.95)
    other = OneScript("b", lambda _: 0.95)
    page = several(first, other)

    texts_of(page, [line(number) for number in range(100)])

    assert texts_of(page, [line(number) for number in range(100, 200)]) == [f"b{number}" for number in range(100, 200)]


@pytest.mark.parametrize(
    ("sure", "directions", "columns_first", "read"),
    [
        # Recognizers of columns read lines that run down the page, and no others.
        ((0.5, 0.95), ("ltr", "vertical"), False, {"a": [0, 1], "b": [1]}),
        # Where a language was asked for, they read them first.
        ((0.95, 0.95), ("ltr", "vertical"), True, {"a": [0], "b": [1]}),
        # Alone, they read lines beside each other too.
        ((0.5, 0.95), ("vertical", "vertical"), False, {"a": [0, 1], "b": [0, 1]}),
    ],
)
def test_recognizers_of_columns_read_lines_that_run_down_the_page(
    sure: tuple[float, float], directions: Sequence[Direction], columns_first: bool, read: dict[str, list[int]]
) -> None:
    first, other = OneScript("a", lambda _: sure[0]), OneScript("b", lambda _: sure[1])
    page = several(first, other, directions=directions, columns_first=columns_first)

    first_line = "b0" if 0 in read["b"] else "a0"
    assert texts_of(page, [line(0), line(1, down=True)]) == [first_line, "b1"]
    assert {"a": first.asked, "b": other.asked} == read
