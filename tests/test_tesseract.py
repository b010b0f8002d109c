"""Tesseract reads languages that the built-in model does not support, with a traineddata file for each."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from image_support import encoded
from models_support import accept
from ppocr_support import PAGES, frame_of, load, text_of
from rapidfuzz.fuzz import ratio
from support import data_of, ocrsvc
from web_support import json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.engines.model.version import find_version
from ocrsvc.engines.open_engine import open_engine_in_process, runs_isolated
from ocrsvc.errors import BadModel, EngineUnavailable
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.source_files import Wanted
from ocrsvc.models.importers.write_version import write_version
from ocrsvc.plugins import output_formats
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

CASES = data_of("tesseract")
TESSDATA = Path("/usr/share/tesseract-ocr/5/tessdata")
FILES = {"ko": TESSDATA / "kor.traineddata", "ar": TESSDATA / "ara.traineddata"}
PLAN = ThreadPlan(1, 4, 1)
MAX_PX = 6
KOREAN = (PAGES / "korean.png").read_bytes()

needs_tesseract = pytest.mark.skipif(
    find_spec("tesserocr") is None or not all(file.exists() for file in FILES.values()),
    reason="tesserocr or the Debian packages tesseract-ocr-kor and tesseract-ocr-ara are missing",
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = tmp_path_factory.mktemp("models")
    for name, file in FILES.items():
        write_version(find_model(Wanted([file])), folder, name)
    accept(folder, *(find_version(folder, name, 1) for name in FILES))
    settings = Settings(models=folder, models_state=folder / "state", model="ko")
    with running_reader(settings, None, threads=1) as reader:
        client = create_app(settings, reader).test_client()
        for name in FILES:
            # Load each model here: its child process lives as long as this fixture.
            assert client.post(f"/v1/ocr?lang={name}", data=KOREAN).status_code == 200
        yield client


def lines_of(client: FlaskClient, lang: str, data: bytes) -> list[dict[str, Any]]:
    """Read an image with the language's model; returns the lines with their characters."""
    answer = json_of(client.post(f"/v1/ocr?lang={lang}&characters=true", data=data))
    assert (answer["engine"]["name"], answer["engine"]["model"]) == ("tesseract", lang)
    return list(answer["pages"][0]["lines"])


@needs_tesseract
@pytest.mark.parametrize("turns", range(4))
def test_a_korean_page_with_latin_lines_and_words_is_read_at_each_rotation(client: FlaskClient, turns: int) -> None:
    lines = lines_of(client, "ko", encoded(np.rot90(load("korean.png"), turns).copy()))
    assert ratio("\n".join(line["text"] for line in lines), text_of("korean").rstrip()) > 98


@needs_tesseract
@pytest.mark.parametrize(("name", "side"), [("korean", 0), ("arabic", 2)])
def test_words_and_characters_are_in_reading_order_without_overlap(client: FlaskClient, name: str, side: int) -> None:
    lines = lines_of(client, name[:2], (PAGES / f"{name}.png").read_bytes())
    assert [line["text"] for line in lines] == text_of(name).splitlines()
    for line in lines:
        words = line["words"]
        assert [word["text"] for word in words] == line["text"].split()
        assert ["".join(one["text"] for one in word["characters"]) for word in words] == line["text"].split()
        frames = [frame_of(word["box"]) for word in words]
        gaps = [after[0] - before[2] if side == 0 else before[0] - after[2] for before, after in pairwise(frames)]
        assert (min(gaps) >= 0, abs(frames[0][side] - frame_of(line["box"])[side]) < MAX_PX) == (True, True)


@needs_tesseract
@pytest.mark.parametrize("shape", [(1, 1), (400, 600, 3), (200, 300)])
def test_a_page_without_text_gives_no_lines(client: FlaskClient, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, shape, np.uint8) if len(shape) == 2 else np.full(shape, 255)
    assert lines_of(client, "ko", encoded(pixels.astype(np.uint8))) == []


@needs_tesseract
@pytest.mark.parametrize("form", output_formats())
@pytest.mark.parametrize("name", ["korean", "arabic"])
def test_every_output_format_has_the_text(client: FlaskClient, name: str, form: str) -> None:
    if form == "pdf" and shutil.which("pdftotext") is None:
        pytest.skip("pdftotext (poppler-utils) is missing")
    text = client.post(f"/v1/ocr?lang={name[:2]}&format={form}", data=(PAGES / f"{name}.png").read_bytes()).data
    if form == "pdf":
        text = subprocess.run(["pdftotext", "-", "-"], input=text, capture_output=True, check=True).stdout
    assert all(word in text.decode() for word in text_of(name).split())


def test_engines_that_cannot_be_interrupted_run_in_child_processes_by_default() -> None:
    chosen = {name: runs_isolated(Settings(), name) for name in ("ppocr", "fake", "tr", "tr_crnn", "tesseract")}
    assert chosen == {"ppocr": False, "fake": False, "tr": True, "tr_crnn": True, "tesseract": True}
    assert not runs_isolated(Settings(isolation="thread"), "tesseract")
    assert not runs_isolated(Settings(tr_shared_sessions=True), "tr")
    assert runs_isolated(Settings(isolation="process"), "ppocr")


def traineddata(parts: int = 24, lstm: int = 200) -> bytes:
    """The header of a traineddata file with this number of parts and the LSTM network's offset."""
    return struct.pack(f"<i{parts}q", parts, *(lstm if part == 17 else -1 for part in range(parts))) + bytes(20)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: str(case["says"]))
def test_files_that_are_not_one_known_language_are_refused(tmp_path: Path, case: Any) -> None:
    for file, content in case["files"].items():
        (tmp_path / file).write_bytes(traineddata(*content))
    with pytest.raises(BadModel, match=case["says"]):
        find_model(Wanted([tmp_path]))


@pytest.mark.parametrize("case", CASES["added"], ids=lambda case: str(case["file"]))
def test_the_language_comes_from_the_file_name(tmp_path: Path, case: Any) -> None:
    (tmp_path / case["file"]).write_bytes(traineddata())
    [part] = find_model(Wanted([tmp_path / case["file"]], languages=case.get("given", []))).description.recognition
    assert (list(part.languages), part.direction) == (case["languages"], case["direction"])


def test_the_engine_reports_a_missing_model_or_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnavailable, match=r"no model of its own.*models add ko"):
        open_engine_in_process(Settings(engine="tesseract"), PLAN)
    (tmp_path / "kor.traineddata").write_bytes(traineddata())
    write_version(find_model(Wanted([tmp_path / "kor.traineddata"])), tmp_path, "ko")
    if find_spec("tesserocr") is not None:
        with pytest.raises(BadModel, match=r"ko/1: kor\.traineddata is not a model that Tesseract opens"):
            open_engine_in_process(Settings(), PLAN, find_version(tmp_path, "ko", 1))
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    with pytest.raises(EngineUnavailable, match=r"Install the extra: pip install '\.\[tesseract\]'"):
        open_engine_in_process(Settings(), PLAN, find_version(tmp_path, "ko", 1))


def test_models_add_prints_the_new_version(tmp_path: Path) -> None:
    (tmp_path / "kor.traineddata").write_bytes(traineddata())
    done = ocrsvc("models", "add", "ko", tmp_path / "kor.traineddata", OCRSVC_MODELS=str(tmp_path / "models"))
    assert (done.returncode, done.stdout.splitlines()) == (0, CASES["printed"])
    assert "name it with --licence" in done.stderr
