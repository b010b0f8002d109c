"""Tr 2.8 reads lines correctly from many threads; where it cannot run, an error says why."""

import platform
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from ocrsvc.engines.line_recognizer import MAX_WIDTH_PER_HEIGHT, LineText
from ocrsvc.engines.tr_crnn.recognizer import CrnnLibrary, Steps, TrCrnnLineReader, decode, prepare
from ocrsvc.errors import EngineFailed, EngineUnavailable
from ocrsvc.results import Pixels

TEXTS = ("Invoice 2024", "Total 17.50", "Page 3 of 12")


def is_installed() -> bool:
    try:
        return metadata.version("tr").startswith("2.8")
    except metadata.PackageNotFoundError:
        return False


needs_tr = pytest.mark.skipif(not is_installed(), reason="the extra tr (the package tr 2.8) is not installed")


def draw(text: str, size_px: int = 30) -> Pixels:
    font = ImageFont.load_default(size_px)
    picture = Image.new("L", (int(font.getlength(text)) + 8, round(size_px * 1.3)), 255)
    ImageDraw.Draw(picture).text((4, 0), text, 0, font)
    return np.asarray(picture)


@pytest.fixture(scope="module")
def library() -> CrnnLibrary:
    return CrnnLibrary()


@pytest.fixture
def reader(library: CrnnLibrary) -> Iterator[TrCrnnLineReader]:
    opened = TrCrnnLineReader(library)
    yield opened
    opened.close()


@needs_tr
def test_lines_are_read_in_order_with_a_confidence(reader: TrCrnnLineReader) -> None:
    assert reader.read([]) == []
    lines = reader.read([draw(text) for text in TEXTS])
    assert [line.text for line in lines] == list(TEXTS)
    assert all(0.9 < line.confidence <= 1.0 for line in lines)


@needs_tr
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda gray: np.dstack([gray, gray, gray]), id="colour"),
        pytest.param(lambda gray: np.repeat(gray, 2, axis=1)[:, ::2], id="strided columns"),
        pytest.param(lambda gray: 255 - gray, id="white on black"),
        pytest.param(np.ascontiguousarray, id="plain"),
    ],
)
def test_a_line_is_read_from_any_array_layout(reader: TrCrnnLineReader, change: type[Pixels]) -> None:
    [line] = reader.read([change(draw(TEXTS[1]))])
    assert line.text == TEXTS[1]


@needs_tr
@pytest.mark.parametrize("shape", [(1, 1), (1, 200), (200, 1), (300, 20), (3, 3000), (2, 2)])
def test_no_line_shape_crashes_the_process(reader: TrCrnnLineReader, shape: tuple[int, int]) -> None:
    [line] = reader.read([np.full(shape, 200, np.uint8)])
    assert line == LineText("", 0.0)


@needs_tr
def test_eight_threads_read_the_same_as_one(library: CrnnLibrary, reader: TrCrnnLineReader) -> None:
    crops = [draw(text, size_px) for text in TEXTS[:2] for size_px in (20, 26)]
    alone = reader.read(crops)
    together = threading.Barrier(8, timeout=300)

    def read_in_thread(thread: int) -> list[LineText]:
        own = TrCrnnLineReader(library)
        together.wait()
        lines = own.read(crops[thread % 4 :] + crops[: thread % 4])
        own.close()
        return lines

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read_in_thread, range(8)))
    assert answers == [alone[thread % 4 :] + alone[: thread % 4] for thread in range(8)]


@needs_tr
def test_a_handle_refuses_other_threads_and_calls_after_close(reader: TrCrnnLineReader) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineFailed, match="another thread than its own"):
        pool.submit(reader.read, [draw("1")]).result()
    reader.close()
    reader.close()
    with pytest.raises(EngineFailed, match="after it was closed"):
        reader.read([draw("1")])


@needs_tr
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(np.zeros((20, 30, 3), np.uint8), id="colour"),
        pytest.param(np.zeros((20, 30), np.float32), id="float"),
        pytest.param(np.zeros((20, 60), np.uint8)[:, ::2], id="strided"),
        pytest.param(np.zeros((0, 30), np.uint8), id="no rows"),
        pytest.param(np.zeros((20, 0), np.uint8), id="no columns"),
        pytest.param(np.zeros((33, 2), np.uint8), id="narrow"),
    ],
)
def test_arrays_that_would_crash_the_library_are_refused(library: CrnnLibrary, line: Pixels) -> None:
    reader = TrCrnnLineReader(library)
    with pytest.raises(EngineFailed):
        reader.run(line)
    reader.close()


def test_the_error_for_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrsvc.engines.tr_crnn.recognizer.PACKAGE", "a-package-that-does-not-exist")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(EngineUnavailable, match=r"'\.\[tr\]'"):
        CrnnLibrary()


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_other_platforms_are_refused_with_remedy(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(EngineUnavailable, match=f"{machine} {system}.*OCRSVC_ENGINE=ppocr"):
        CrnnLibrary()


@needs_tr
def test_a_damaged_model_raises_instead_of_aborting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = metadata.distribution("tr")
    for folder in ("tr", f"tr-{installed.version}.dist-info"):
        shutil.copytree(str(installed.locate_file(folder)), tmp_path / folder)
    with (tmp_path / "tr" / "crnn.bin").open("r+b") as model:
        model.truncate(1000)
    monkeypatch.setattr(
        metadata, "distribution", lambda name: next(iter(metadata.distributions(name=name, path=[str(tmp_path)])))
    )
    with pytest.raises(EngineUnavailable, match=r"crnn\.bin is missing or damaged"):
        CrnnLibrary()


def steps(*indices: int, probabilities: tuple[float, ...] | None = None) -> Steps:
    shares = probabilities or (0.5,) * len(indices)
    return Steps(np.array(indices, np.int64), np.array(shares, np.float32))


@pytest.mark.parametrize(
    ("steps_", "text"),
    [
        pytest.param(steps(), "", id="nothing"),
        pytest.param(steps(0, 0), "", id="blanks"),
        pytest.param(steps(1, 1, 0, 1, 2, 2), "aab", id="repeats collapse, a blank keeps them apart"),
        pytest.param(steps(-1, 3, -1), "c", id="below 0 is blank"),
    ],
)
def test_steps_are_decoded_to_text(steps_: Steps, text: str) -> None:
    assert decode(steps_, "abc").text == text


def test_a_character_outside_the_table_is_an_error() -> None:
    with pytest.raises(EngineFailed, match="character index 4 for a table of 3"):
        decode(steps(4), "abc")


def test_a_line_gets_a_margin_in_its_edge_colour_and_long_ones_are_compressed() -> None:
    crop = np.full((20, 60), 40, np.uint8)
    crop[5:15, 5:55] = 200
    framed = prepare(crop)
    assert framed.shape == (24, 64)
    assert set(framed[:2].ravel()) == {40}
    assert prepare(np.zeros((10, 5000), np.uint8)).shape == (12, MAX_WIDTH_PER_HEIGHT * 10 + 2)
