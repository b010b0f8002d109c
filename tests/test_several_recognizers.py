"""Pages of several scripts: which recognizer reads a line, and at what cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import pytest
from models_support import make_version
from ppocr_support import frame_of, load, read, rectangle
from stand_in_scripts import ARABIC, COLUMNS, CYRILLIC, Frame, StandIn

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.model.version import DETECTION, RECOGNITION, ModelVersion, built_in_model
from ocrsvc.engines.ppocr.engine import PageHandle, PpocrEngine
from ocrsvc.engines.ppocr.pipeline.recognizer import (
    MAX_EXTRA_SHARE,
    MIN_EXTRA_PX,
    SAMPLE_LINES,
    SeveralRecognizers,
    candidates,
    input_width,
)
from ocrsvc.engines.ppocr.runtime.model_parts import read_parts
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.imaging.text_contour import Outline
from ocrsvc.results import Box, Pixels

WIDTH_PX = input_width(90, 32)


def line(number: int, *, down: bool = False) -> Outline:
    """Return a line 90 px long and 32 px high whose left edge is at x = `number`."""
    return np.roll(rectangle(number, 0, number + 32, 90), -1, axis=0) if down else rectangle(number, 0, number + 90, 32)


def lines(count: int, begin: int = 0) -> list[Outline]:
    return [line(number) for number in range(begin, begin + count)]


@dataclass
class OneScript:
    """A fake recognizer: the text is its name and the line's number; `asked` records the lines."""

    name: str
    confidence: Callable[[int], float]
    asked: list[int] = field(default_factory=list)
    in_batches: bool = False

    def find(self) -> list[Outline]:
        return []

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        numbers = [int(outline[:, 0].min()) for outline in outlines]
        self.asked += numbers
        return [LineText(f"{self.name}{number}", self.confidence(number)) for number in numbers]


def several(
    *readers: OneScript, directions: Sequence[Direction] = (), columns_first: bool = False
) -> SeveralRecognizers:
    return SeveralRecognizers(readers, directions or ["ltr"] * len(readers), columns_first=columns_first)


def texts_of(page: SeveralRecognizers, outlines: Sequence[Outline]) -> list[str]:
    return [text.text for text in page.read(outlines)]


@pytest.mark.parametrize(
    ("lang", "chosen"),
    [(None, (0,)), ("auto", (0, 1, 2)), ("ru", (1,)), ("ja", (0, 2)), ("zh-hant", (2,)), ("th", (0,))],
)
def test_a_language_selects_the_recognizers_that_support_it(lang: str | None, chosen: tuple[int, ...]) -> None:
    assert candidates(lang, [("zh", "en", "ja"), ("ru", "en"), ("ja", "zh-hant")]) == chosen


def test_the_most_confident_result_wins_and_confident_lines_skip_the_other_recognizers() -> None:
    first, other = OneScript("a", lambda _: 0.95), OneScript("b", lambda _: 1.0)
    assert texts_of(several(first, other), lines(2)) == ["a0", "a1"]
    assert other.asked == []
    first.confidence = lambda _: 0.6
    second = OneScript("b", lambda number: 0.99 if number == 1 else 0.6)
    third = OneScript("c", lambda number: 0.8 if number == 2 else 0.2)
    assert texts_of(several(first, second, third), lines(3)) == ["a0", "b1", "c2"]
    assert third.asked == [0, 2]


@pytest.mark.parametrize("count", [4, 100])
def test_other_recognizers_stay_within_their_share(count: int) -> None:
    readers = [OneScript(name, lambda _: 0.5) for name in "abcdef"]
    texts_of(several(*readers), lines(count))
    more_px = sum(len(reader.asked) for reader in readers[1:]) * WIDTH_PX
    assert (
        more_px <= MIN_EXTRA_PX + MAX_EXTRA_SHARE * count * WIDTH_PX < more_px + 2 * WIDTH_PX or count == SAMPLE_LINES
    )
    assert len(readers[0].asked) == count


MAX_PX = 4
SCRIPTS = {"cyrillic": CYRILLIC, "arabic": ARABIC, "columns": COLUMNS}
DETECTOR = f'[detection]\nfile = "{DETECTION}"'
MAIN = f'[[recognition]]\nname = "main"\nfile = "{RECOGNITION}"\nlanguages = ["zh", "en"]'
CYRILLIC_ROWS = ["аввб ааава двгг", "бдваб ввдг бдбд", "ддгб гга бгга"]


def describe(name: str, script: StandIn) -> str:
    languages = ", ".join(f'"{tag}"' for tag in script.languages)
    return (
        f'[[recognition]]\nname = "{name}"\nfile = "{name}.onnx"\ndictionary = "{name}.txt"\n'
        f'languages = [{languages}]\ndirection = "{script.direction}"\n'
    )


def make_model(folder: Path, scripts: Mapping[str, StandIn], *, with_main: bool = True) -> ModelVersion:
    """Create a version with the real detector, optionally the real recognizer, and stand-in scripts."""
    built_in = built_in_model()
    files = {file: built_in.read(file) for file in ((DETECTION, RECOGNITION) if with_main else (DETECTION,))}
    for name, script in scripts.items():
        files |= {f"{name}.onnx": script.model(), f"{name}.txt": script.dictionary}
    tables = [DETECTOR, *([MAIN] if with_main else []), *(describe(*one) for one in scripts.items())]
    return make_version(folder, "scripts", 1, "\n".join(tables), files)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageHandle]:
    model = make_model(tmp_path_factory.mktemp("models"), SCRIPTS)
    engine = PpocrEngine(SessionConfig("cpu"), parts=read_parts(model))
    yield engine.open_handle()
    engine.close()


def paper(width: int = 900, height: int = 600) -> Pixels:
    return np.full((height, width, 3), 255, np.uint8)


def assert_near(boxes: Sequence[Box], frames: Sequence[Frame]) -> None:
    assert np.abs(np.array([frame_of(box) for box in boxes]) - np.array(frames)).max() <= MAX_PX


@pytest.mark.parametrize(("lang", "decoder"), [("ru", "greedy"), ("auto", "greedy"), ("auto", "beam")])
def test_a_cyrillic_page_is_read_with_word_boxes(handle: PageHandle, lang: str, decoder: str) -> None:
    pixels = paper()
    frames = [CYRILLIC.draw(pixels, text, 60, 60 + 100 * number, 40) for number, text in enumerate(CYRILLIC_ROWS)]
    page = read(handle, pixels, lang=lang, words=True, decoder=decoder)
    assert (page.text, page.angle) == ("\n".join(CYRILLIC_ROWS), 0)
    for of_page, text, of_line in zip(page.lines, CYRILLIC_ROWS, frames, strict=True):
        assert [word.text for word in of_page.words or ()] == text.split()
        assert_near([word.box for word in of_page.words or ()], of_line)
    # Without a language only the first recognizer is used.
    assert "аввб" not in read(handle, pixels, min_confidence=0.0).text


@pytest.mark.parametrize("lang", ["ar", "auto"])
def test_an_arabic_page_is_read_from_the_right_with_word_and_character_boxes(handle: PageHandle, lang: str) -> None:
    pixels, rows = paper(1300), [("جحجت اثذذا", "جتدا احرخب"), ("تجا خذح", "ححبخ ذحاد")]
    frames = [
        ARABIC.draw(pixels, text, left, 60 + 100 * number, 40)
        for number, row in enumerate(rows)
        for text, left in zip(row, (720, 80), strict=True)
    ]
    page = read(handle, pixels, lang=lang, characters=True)
    assert (page.text.split("\n"), page.angle) == ([text for row in rows for text in row], 0)
    for of_page, of_line in zip(page.lines, frames, strict=True):
        words = of_page.words or ()
        assert [word.text for word in words] == of_page.text.split()
        assert_near([word.box for word in words], of_line)
        lefts = [each.box[0][0] for each in words[0].characters]
        assert lefts == sorted(lefts, reverse=True)
    assert page.lines[0].box[0][0] < page.lines[0].box[1][0]


@pytest.mark.parametrize("lang", ["ja", "auto"])
def test_a_page_of_columns_is_read_from_the_right_and_is_upright(handle: PageHandle, lang: str) -> None:
    pixels, columns = paper(1100, 1100), ["いおう おういお あえあ", "ういいお ああうあ いああ", "おあいいあ えいあ お"]
    frames = [COLUMNS.draw(pixels, text, 900 - 90 * number, 40, 32) for number, text in enumerate(columns)]
    page = read(handle, pixels, lang=lang, characters=True)
    assert (page.text, page.angle) == ("\n".join(columns), 0)
    for of_page, of_line in zip(page.lines, frames, strict=True):
        upper, lower = of_page.box[:2]
        assert abs(upper[0] - lower[0]) < 5
        assert lower[1] - upper[1] > 200
        letters = np.array([frame_of(each.box) for word in of_page.words or () for each in word.characters])
        assert (np.diff(letters[:, 1]) > 0).all()
        assert np.abs(letters[:, [0, 2]] - np.array(of_line[0])[[0, 2]]).max() <= MAX_PX


def test_each_line_of_a_mixed_page_is_read_by_the_recognizer_of_its_script(handle: PageHandle) -> None:
    pixels, rows = paper(), ["аввб ааава двгг", "Plain text in English, 2026", "جحجت اثذذا ابب", "ддгб гга бгга"]
    for text, top in zip(rows, (60, 160, 260, 360), strict=True):
        if text.isascii():
            cv2.putText(pixels, text, (60, top + 38), cv2.FONT_HERSHEY_SIMPLEX, 1.3, (0, 0, 0), 3, cv2.LINE_AA)
        else:
            (CYRILLIC if text[0] in CYRILLIC.letters else ARABIC).draw(pixels, text, 60, top, 40)
    assert read(handle, pixels, lang="auto").text == "\n".join(rows)


def test_a_page_of_the_first_script_is_bit_identical_with_more_recognizers(handle: PageHandle) -> None:
    pixels = load("notice.png")
    assert read(handle, pixels, lang="auto", characters=True) == read(handle, pixels, characters=True)


def test_gpu_code_uses_the_same_recognizers(tmp_path: Path) -> None:
    model = make_model(tmp_path, {name: SCRIPTS[name] for name in ("cyrillic", "arabic")}, with_main=False)
    engine = PpocrEngine(SessionConfig("cpu", batched=True), parts=read_parts(model), imaging="numpy")
    pixels = paper()
    rows = {"аввб ааава двгг": CYRILLIC, "جحجت اثذذا ابب": ARABIC}
    frames = [script.draw(pixels, text, 60, 60 + 100 * at, 40) for at, (text, script) in enumerate(rows.items())]
    try:
        assert "numpy" in engine.describe().provider
        page = read(engine.open_handle(), pixels, lang="auto", words=True)
    finally:
        engine.close()
    assert page.text == "\n".join(rows)
    for of_page, of_line in zip(page.lines, frames, strict=True):
        assert_near([word.box for word in of_page.words or ()], of_line)
