"""Pages of several scripts through the real detector: stand-ins for recognizers of Cyrillic, Arabic and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from models_support import make_version
from stand_in_scripts import ARABIC, COLUMNS, CYRILLIC, Frame, StandIn

from ocrsvc.engines.model.version import DETECTION, RECOGNITION, ModelVersion, built_in_model
from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.runtime.model_parts import read_parts
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.records import Box, Image, Page, Pixels, ReadOptions, ReadTask

PAGES = Path(__file__).parent / "pages"
MOST_PX = 4

SCRIPTS = {"cyrillic": CYRILLIC, "arabic": ARABIC, "columns": COLUMNS}
DETECTOR = f'[detection]\nfile = "{DETECTION}"'
MAIN = f'[[recognition]]\nname = "main"\nfile = "{RECOGNITION}"\nlanguages = ["zh", "en"]'


def describe(name: str, script: StandIn) -> str:
    """Its table in model.toml."""
    languages = ", ".join(f'"{tag}"' for tag in script.languages)
    return (
        f'[[recognition]]\nname = "{name}"\nfile = "{name}.onnx"\ndictionary = "{name}.txt"\n'
        f'languages = [{languages}]\ndirection = "{script.direction}"\n'
    )


def make_model(folder: Path, scripts: Mapping[str, StandIn], *, with_main: bool = True) -> ModelVersion:
    """A version with the real detector, the real recognizer first or without it, and stand-ins."""
    built_in = built_in_model()
    files = {file: built_in.read(file) for file in ((DETECTION, RECOGNITION) if with_main else (DETECTION,))}
    for name, script in scripts.items():
        files |= {f"{name}.onnx": script.model(), f"{name}.txt": script.dictionary}
    tables = [DETECTOR, *([MAIN] if with_main else []), *(describe(*one) for one in scripts.items())]
    return make_version(folder, "scripts", 1, "\n".join(tables), files)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    return make_model(tmp_path_factory.mktemp("models"), SCRIPTS)


@pytest.fixture(scope="module")
def handle(model: ModelVersion) -> Iterator[PageHandle]:
    engine = PpocrEngine(SessionConfig("cpu"), parts=read_parts(model))
    yield engine.open_handle()
    engine.close()


def read(handle: PageHandle, pixels: Pixels, **options: object) -> Page:
    (page,) = handle.read([ReadTask(Image(pixels, "png"), ReadOptions(**options))])  # type: ignore[arg-type]
    assert isinstance(page, Page)
    return page


def paper(width: int = 900, height: int = 600) -> Pixels:
    return np.full((height, width, 3), 255, np.uint8)


def frame_of(box: Box) -> list[float]:
    """Left, top, right and bottom."""
    corners = np.array(box)
    return [*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()]


def assert_near(boxes: Sequence[Box], frames: Sequence[Frame]) -> None:
    """Each box is where it was drawn, but for the soft edges of ink."""
    assert np.abs(np.array([frame_of(box) for box in boxes]) - np.array(frames)).max() <= MOST_PX


@pytest.mark.parametrize(("lang", "decoder"), [("ru", "greedy"), ("auto", "greedy"), ("auto", "beam")])
def test_a_page_of_cyrillic_is_read_with_words_in_their_places(handle: PageHandle, lang: str, decoder: str) -> None:
    pixels, rows = paper(), ["аввб ааава двгг", "бдваб ввдг бдбд", "ддгб гга бгга"]
    frames = [CYRILLIC.draw(pixels, text, 60, 60 + 100 * number, 40) for number, text in enumerate(rows)]

    page = read(handle, pixels, lang=lang, words=True, decoder=decoder)

    assert (page.text, page.angle) == ("\n".join(rows), 0)
    for line, text, of_line in zip(page.lines, rows, frames, strict=True):
        assert [word.text for word in line.words or ()] == text.split()
        assert_near([word.box for word in line.words or ()], of_line)


def test_without_a_language_a_page_is_read_by_the_first_recognizer_alone(handle: PageHandle) -> None:
    pixels = paper()
    CYRILLIC.draw(pixels, "аввб ааава двгг", 60, 60, 40)

    assert "аввб" not in read(handle, pixels, min_confidence=0.0).text


@pytest.mark.parametrize("lang", ["ar", "auto"])
def test_a_page_of_arabic_is_read_from_the_right_with_words_and_letters_in_their_places(
    handle: PageHandle, lang: str
) -> None:
    pixels, rows = paper(1300), [("جحجت اثذذا", "جتدا احرخب"), ("تجا خذح", "ححبخ ذحاد")]
    frames = [
        ARABIC.draw(pixels, text, left, 60 + 100 * number, 40)
        for number, row in enumerate(rows)
        for text, left in zip(row, (720, 80), strict=True)
    ]

    page = read(handle, pixels, lang=lang, characters=True)

    assert (page.text.split("\n"), page.angle) == ([text for row in rows for text in row], 0)
    for line, of_line in zip(page.lines, frames, strict=True):
        words = line.words or ()
        assert [word.text for word in words] == line.text.split()
        assert_near([word.box for word in words], of_line)
        lefts = [each.box[0][0] for each in words[0].characters]
        assert lefts == sorted(lefts, reverse=True)
    assert page.lines[0].box[0][0] < page.lines[0].box[1][0]


@pytest.mark.parametrize("lang", ["ja", "auto"])
def test_a_page_of_columns_is_read_from_the_right_and_stands_upright(handle: PageHandle, lang: str) -> None:
    pixels, columns = paper(1100, 1100), ["いおう おういお あえあ", "ういいお ああうあ いああ", "おあいいあ えいあ お"]
    frames = [COLUMNS.draw(pixels, text, 900 - 90 * number, 40, 32) for number, text in enumerate(columns)]

    page = read(handle, pixels, lang=lang, characters=True)

    assert (page.text, page.angle) == ("\n".join(columns), 0)
    for line, of_line in zip(page.lines, frames, strict=True):
        upper, lower = line.box[:2]
        assert abs(upper[0] - lower[0]) < 5
        assert lower[1] - upper[1] > 200
        letters = np.array([frame_of(each.box) for word in line.words or () for each in word.characters])
        assert (np.diff(letters[:, 1]) > 0).all()
        assert np.abs(letters[:, [0, 2]] - np.array(of_line[0])[[0, 2]]).max() <= MOST_PX


MIXED = {"аввб ааава двгг": 60, "Plain text in English, 2026": 160, "جحجت اثذذا ابب": 260, "ддгб гга бгга": 360}


def mixed_page() -> Pixels:
    """Lines of three scripts below each other."""
    pixels = paper()
    for text, top in MIXED.items():
        if text.isascii():
            cv2.putText(pixels, text, (60, top + 38), cv2.FONT_HERSHEY_SIMPLEX, 1.3, (0, 0, 0), 3, cv2.LINE_AA)
        else:
            (CYRILLIC if text[0] in CYRILLIC.letters else ARABIC).draw(pixels, text, 60, top, 40)
    return pixels


def test_each_line_of_a_mixed_page_is_read_by_the_recognizer_of_its_script(handle: PageHandle) -> None:
    assert read(handle, mixed_page(), lang="auto").text == "\n".join(MIXED)


def test_a_page_of_the_first_script_is_read_bit_by_bit_as_without_the_others(handle: PageHandle) -> None:
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)

    assert read(handle, pixels, lang="auto", characters=True) == read(handle, pixels, characters=True)


def test_pixels_prepared_by_the_gpus_code_are_read_by_the_same_recognizers(tmp_path: Path) -> None:
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
    for line, of_line in zip(page.lines, frames, strict=True):
        assert_near([word.box for word in line.words or ()], of_line)
