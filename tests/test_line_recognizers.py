"""A package's line recognizer becomes an engine; another one reads the Latin words that it cannot read."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ppocr_support import frame_of, load, read, rectangle
from support import data_of

from ocrsvc import plugins
from ocrsvc.engines.latin_words import LatinWords
from ocrsvc.engines.line_recognizer import LineText, RecognizerInfo, crop_of_height, path_at
from ocrsvc.engines.open_engine import open_engine_in_process, runs_isolated
from ocrsvc.errors import EngineUnavailable
from ocrsvc.imaging.text_contour import Outline, extent
from ocrsvc.plugins import EntryError, RecognizerEntry
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

CASES = data_of("line_recognizers")
HEIGHT_PX = 40


class SizeReader:
    """Reads "line" and the crop's height, in logical order; the characters' boxes overlap."""

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        return crop_of_height(along, across, HEIGHT_PX)

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        check()
        text = f"line {crops[0].shape[0]}" if crops else ""
        middles = np.linspace(0.1, 0.9, len(text)).tolist()
        paths = [path_at(list(text), middles, [0.9] * len(text), crop.shape[1]) for crop in crops]
        return [LineText(text, 0.9, path, order="logical") for path in paths]

    def close(self) -> None:
        pass


class SizeRecognizer:
    """A LineRecognizer that needs no model."""

    info = RecognizerInfo("sizes", "1", "nothing", ("en",))

    def open_reader(self) -> SizeReader:
        return SizeReader()


def open_sizes(_settings: Settings, _model: object) -> SizeRecognizer:
    return SizeRecognizer()


SIZES = RecognizerEntry("sizes", f"{__name__}:open_sizes", languages=("en",), is_interruptible=False)
TAKEN = RecognizerEntry("fake", f"{__name__}:open_sizes")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that installs a package; its line recognizer is an attribute of this module."""

    def installed(attribute: str) -> None:
        point = EntryPoint(attribute.lower(), f"{__name__}:{attribute}", "ocrsvc.recognizers")
        monkeypatch.setattr(plugins, "entry_points", lambda group: (point,) if group == point.group else ())
        plugins.recognizers.cache_clear()
        plugins.engines.cache_clear()

    yield installed
    monkeypatch.undo()
    plugins.recognizers.cache_clear()
    plugins.engines.cache_clear()


def test_error_names_the_extra_of_a_missing_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ocrsvc.engines.line_engine", None)  # importing it fails from here on
    with pytest.raises(EngineUnavailable, match=r"pip install '\.\[cpu\]'"):
        open_engine_in_process(Settings(engine="tesseract"), ThreadPlan(1, 1, 1))


def test_a_line_recognizer_of_a_package_is_an_engine_with_words(install: Callable[[str], None]) -> None:
    install("SIZES")
    settings = Settings(engine="sizes")
    assert (plugins.engines()["sizes"].languages, runs_isolated(settings, "sizes")) == (("en",), True)
    engine = open_engine_in_process(settings, ThreadPlan(1, 1, 1))
    assert (engine.describe().name, engine.describe().version) == ("sizes", "1")
    handle = engine.open_handle()
    page = read(handle, load("notice.png"), words=True)
    handle.close()
    engine.close()
    assert [line.text for line in page.lines] == [f"line {HEIGHT_PX}"] * 4
    for line in page.lines:
        assert [word.text for word in line.words or ()] == ["line", str(HEIGHT_PX)]


def test_a_line_recognizer_may_not_take_the_name_of_an_engine(install: Callable[[str], None]) -> None:
    install("TAKEN")
    with pytest.raises(EntryError, match="adds the line recognizer fake, which has the name of an engine"):
        plugins.engines()


@pytest.mark.parametrize(
    "middles", [[0.1, 0.5, 0.9], [0.5, 0.5, 0.5], [0.9, 0.1, 0.2], [1.0, 1.0, 1.0], [-1.0, 2.0, 0.0]]
)
def test_characters_keep_their_order_and_have_different_positions(middles: list[float]) -> None:
    path = path_at("abc", middles, [1.0, 0.5, 0.0], 60)
    assert path is not None
    places = path.first[np.argsort(middles, kind="stable")].tolist()
    assert all(after - before >= 2 for before, after in pairwise(places))
    assert (min(places) >= 0, max(places) < 60, path.confidence) == (True, True, 0.5)
    assert path_at("abc", middles, [1.0] * 3, 5) is None, "too narrow for three characters"


def recognized(text: str, sure: Sequence[bool], *, from_right: bool = False) -> LineText:
    """A line of equally spaced characters; in words that are not sure, their confidence is 0.5."""
    words, count = text.split(" "), len(text)
    values = [0.95 if is_sure else 0.5 for word, is_sure in zip(words, sure, strict=True) for _ in f"{word} "][:count]
    middles = (np.arange(count) + 0.5) / count
    path = path_at(list(text), (1 - middles if from_right else middles).tolist(), values, 20 * count)
    return LineText(text, float(np.mean(values)), path, direction="rtl" if from_right else "ltr", order="logical")


@dataclass
class PageDouble:
    """Returns the given lines one after the other, and records where it was asked to read."""

    texts: list[LineText]
    asked: list[Outline] = field(default_factory=list)
    in_batches: bool = False

    def find(self) -> list[Outline]:
        return []

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        self.asked += outlines
        return [self.texts.pop(0) if self.texts else LineText("", 0.0) for _ in outlines]


@pytest.mark.parametrize("case", CASES["latin words"], ids=lambda case: str(case["says"]))
def test_doubtful_words_are_replaced_if_they_are_latin(case: Any) -> None:
    line = recognized(case["line"], case["sure"], from_right=case.get("from_right", False))
    latin = PageDouble(
        [replace(recognized(text, [True] * len(text.split())), confidence=sure) for text, sure in case["latin"]]
    )
    outline = rectangle(0, 0, 12 * len(line.text), 24)
    [found] = LatinWords(PageDouble([line]), latin).read([outline])
    assert found.text == case["expected"]
    assert found.path is not None
    assert "".join(found.path.characters) == found.text
    read_px = [tuple(round(float(side)) for side in frame_of(part.tolist())[[0, 2]]) for part in latin.asked]
    assert read_px == [tuple(sides) for sides in case["read"]]
    assert sum(extent(part)[0] for part in latin.asked) <= extent(outline)[0]
