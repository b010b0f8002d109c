"""Tesseract reads scripts that the built-in model does not know, from a traineddata file, chosen by language."""

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
from models_support import accept
from ppocr_support import PAGES, frame_of, load, read, text_of
from rapidfuzz.fuzz import ratio
from support import data_of, ocrsvc
from web_support import json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.engines.contract import Handle
from ocrsvc.engines.model.version import find_version
from ocrsvc.engines.open_engine import open_engine_in_process, runs_isolated
from ocrsvc.errors import BadModel, EngineUnavailable
from ocrsvc.models.importers.find_model import find_model
from ocrsvc.models.importers.source_files import Wanted
from ocrsvc.models.importers.write_version import write_version
from ocrsvc.plugins import output_formats
from ocrsvc.results import Pixels
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

CASES = data_of("tesseract")
TESSDATA = Path("/usr/share/tesseract-ocr/5/tessdata")
FILES = {"ko": TESSDATA / "kor.traineddata", "ar": TESSDATA / "ara.traineddata"}
PLAN = ThreadPlan(1, 4, 1)
MAX_PX = 6

needs_tesseract = pytest.mark.skipif(
    find_spec("tesserocr") is None or not all(file.exists() for file in FILES.values()),
    reason="tesserocr or the Debian packages tesseract-ocr-kor and tesseract-ocr-ara are missing",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, file in FILES.items():
        write_version(find_model(Wanted([file])), folder, name)
    accept(folder, *(find_version(folder, name, 1) for name in FILES))
    return folder


@pytest.fixture(scope="module")
def handles(repository: Path) -> Iterator[dict[str, Handle]]:
    settings = Settings(models=repository)
    versions = {name: find_version(repository, name, 1) for name in FILES}
    opened = {name: open_engine_in_process(settings, PLAN, one).open_handle() for name, one in versions.items()}
    yield opened
    for handle in opened.values():
        handle.close()


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[FlaskClient]:
    settings = Settings(models=repository, models_state=repository / "state")
    with running_reader(settings, None, threads=1) as reader:
        client = create_app(settings, reader).test_client()
        for name in FILES:
            # Loads the model now, because its child process stays until the end.
            assert client.post(f"/v1/ocr?lang={name}", data=(PAGES / "korean.png").read_bytes()).status_code == 200
        yield client


@needs_tesseract
@pytest.mark.parametrize("turns", range(4))
def test_a_korean_page_with_latin_lines_and_words_is_read_at_each_rotation(
    handles: dict[str, Handle], turns: int
) -> None:
    page = read(handles["ko"], np.rot90(load("korean.png"), turns).copy(), lang="ko")
    assert page.angle == 90 * turns
    assert ratio(page.text + "\n", text_of("korean")) > 98


@needs_tesseract
def test_words_and_characters_have_their_place_in_the_line(handles: dict[str, Handle]) -> None:
    page = read(handles["ko"], load("korean.png"), lang="ko", characters=True)
    for line in page.lines:
        words = line.words or ()
        assert [word.text for word in words] == line.text.split()
        frames = [frame_of(word.box) for word in words]
        assert all(before[2] <= after[0] for before, after in pairwise(frames))
        assert abs(frames[0][0] - frame_of(line.box)[0]) < MAX_PX
        assert ["".join(one.text for one in word.characters) for word in words] == line.text.split()


@needs_tesseract
def test_an_arabic_page_is_in_logical_order_and_its_words_go_from_right_to_left(handles: dict[str, Handle]) -> None:
    page = read(handles["ar"], load("arabic.png"), lang="ar", words=True)
    assert page.text + "\n" == text_of("arabic")
    for line in page.lines:
        assert [word.text for word in line.words or ()] == line.text.split()
        lefts = [frame_of(word.box)[0] for word in line.words or ()]
        assert lefts == sorted(lefts, reverse=True)


@needs_tesseract
@pytest.mark.parametrize(
    "pixels",
    [
        pytest.param(np.full((1, 1), 255, np.uint8), id="1 x 1"),
        pytest.param(np.full((400, 600, 3), 255, np.uint8), id="blank"),
        pytest.param(np.random.default_rng(1).integers(0, 255, (200, 300), np.uint8), id="noise"),
    ],
)
def test_a_page_without_text_has_none_that_is_sure(handles: dict[str, Handle], pixels: Pixels) -> None:
    assert read(handles["ko"], pixels, lang="ko").text == ""


@needs_tesseract
def test_lang_chooses_the_model_which_runs_in_a_child_process(client: FlaskClient) -> None:
    for name, page in (("ko", "korean"), ("ar", "arabic")):
        answer = json_of(client.post(f"/v1/ocr?lang={name}", data=(PAGES / f"{page}.png").read_bytes()))
        assert (answer["engine"]["name"], answer["engine"]["model"]) == ("tesseract", name)
        assert [line["text"] for line in answer["pages"][0]["lines"]] == text_of(page).splitlines()
    other = client.post("/v1/ocr?lang=th", data=(PAGES / "korean.png").read_bytes())
    assert (other.status_code, " ko" in json_of(other)["detail"] + json_of(other).get("remedy", "")) == (404, True)


@needs_tesseract
@pytest.mark.parametrize("form", output_formats())
@pytest.mark.parametrize("name", ["korean", "arabic"])
def test_every_output_format_has_the_text(client: FlaskClient, name: str, form: str) -> None:
    if form == "pdf" and shutil.which("pdftotext") is None:
        pytest.skip("pdftotext (poppler-utils) is missing")
    answer = client.post(f"/v1/ocr?lang={name[:2]}&format={form}", data=(PAGES / f"{name}.png").read_bytes())
    text = answer.text if form != "pdf" else ""
    if form == "pdf":
        text = subprocess.run(
            ["pdftotext", "-", "-"], input=answer.data, capture_output=True, check=True
        ).stdout.decode()
    assert all(word in text for word in text_of(name).split())


def test_engines_that_cannot_be_interrupted_run_in_child_processes_unless_set_otherwise() -> None:
    chosen = {name: runs_isolated(Settings(), name) for name in ("ppocr", "fake", "tr", "tr_crnn", "tesseract")}
    assert chosen == {"ppocr": False, "fake": False, "tr": True, "tr_crnn": True, "tesseract": True}
    assert not runs_isolated(Settings(isolation="thread"), "tesseract")
    assert runs_isolated(Settings(isolation="process"), "ppocr")


def traineddata(parts: int = 24, lstm: int = 200) -> bytes:
    """The head of a file with these parts, and the place of the network."""
    return struct.pack(f"<i{parts}q", parts, *(lstm if part == 17 else -1 for part in range(parts))) + bytes(20)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: str(case["says"]))
def test_files_that_are_not_one_known_language_are_refused(tmp_path: Path, case: Any) -> None:
    contents = {
        "good": traineddata(),
        "old": traineddata(17),
        "no network": traineddata(lstm=-1),
        "empty": b"",
        "text": b"<html>" * 90,
    }
    for file, content in case["files"].items():
        (tmp_path / file).write_bytes(contents[content])
    with pytest.raises(BadModel, match=case["says"]):
        find_model(Wanted([tmp_path]))


@pytest.mark.parametrize("case", CASES["added"], ids=lambda case: str(case["file"]))
def test_the_name_of_a_file_says_its_language(tmp_path: Path, case: Any) -> None:
    (tmp_path / case["file"]).write_bytes(traineddata())
    [part] = find_model(Wanted([tmp_path / case["file"]], languages=case.get("given", []))).description.recognition
    assert (list(part.languages), part.direction) == (case["languages"], case["direction"])


def test_a_damaged_file_does_not_open(tmp_path: Path) -> None:
    pytest.importorskip("tesserocr", reason="the extra tesseract is not installed")
    (tmp_path / "kor.traineddata").write_bytes(traineddata())
    write_version(find_model(Wanted([tmp_path / "kor.traineddata"])), tmp_path / "models", "ko")
    version = find_version(tmp_path / "models", "ko", 1)
    with pytest.raises(BadModel, match=r"ko/1: kor\.traineddata is not a model that Tesseract opens"):
        open_engine_in_process(Settings(), PLAN, version)


def test_the_engine_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnavailable, match=r"no model of its own.*models add ko"):
        open_engine_in_process(Settings(engine="tesseract"), PLAN)
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    (tmp_path / "kor.traineddata").write_bytes(traineddata())
    write_version(find_model(Wanted([tmp_path / "kor.traineddata"])), tmp_path / "models", "ko")
    with pytest.raises(EngineUnavailable, match=r"Install the extra: pip install '\.\[tesseract\]'"):
        open_engine_in_process(Settings(), PLAN, find_version(tmp_path / "models", "ko", 1))


def test_the_command_tells_what_it_added(tmp_path: Path) -> None:
    (tmp_path / "kor.traineddata").write_bytes(traineddata())
    done = ocrsvc("models", "add", "ko", tmp_path / "kor.traineddata", OCRSVC_MODELS=str(tmp_path / "models"))
    assert (done.returncode, done.stdout.splitlines()) == (0, CASES["printed"])
    assert "name it with --licence" in done.stderr
