"""ppocr reads with a model version's detector and recognizer, whatever their graphs; invalid models are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from drawn_models import End, make_detector, make_recognizer, page_with_a_bar
from image_support import noise
from isolation_support import a_task
from model_files import with_weights_elsewhere
from models_support import make_version

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.model.description import Detection
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.open_engine import open_engine
from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.pipeline.db_postprocess import USUAL, Thresholds, lines_from_map
from ocrsvc.engines.ppocr.pipeline.network_input import InputFormat, model_input, to_tensor
from ocrsvc.engines.ppocr.runtime import openvino_session, prepare_model
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import ModelPart, read_parts
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.errors import BadModel
from ocrsvc.results import Page, Pixels, ReadOptions
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

PLAN = ThreadPlan(1, 1, 1)
IMAGENET = InputFormat((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TOML = """
[detection]
file = "det.onnx"
[[recognition]]
file = "rec.onnx"
"""
WITH_FILE = TOML + 'dictionary = "dict.txt"\n'
RUNTIMES = [
    pytest.param({"provider": "cpu", "precision": "fp32"}, id="ONNX Runtime"),
    pytest.param(
        {"provider": "openvino", "precision": "fp32"},
        id="OpenVINO",
        marks=pytest.mark.skipif(not openvino_session.is_installed(), reason="the package openvino is not installed"),
    ),
]


def a_version(
    repository: Path, number: int = 1, model: str = WITH_FILE, name: str = "mine", **files: bytes
) -> ModelVersion:
    """A version with the classes blank, 甲, 乙 and space that reads 乙; `files` replace its files."""
    own = {"det": make_detector(), "rec": make_recognizer(2, 4), "dict": "甲\n乙\n".encode(), **files}
    named = {"det": "det.onnx", "rec": "rec.onnx", "dict": "dict.txt"}
    return make_version(repository, name, number, model, {named[part]: content for part, content in own.items()})


@contextmanager
def opened(model: ModelVersion, cache: Path, **settings: Any) -> Iterator[Handle]:
    chosen = {"device": "cpu", "provider": "cpu", "precision": "fp32", **settings}
    repository = model.folder.parent.parent
    engine = open_engine(
        Settings.model_validate({**chosen, "model_cache": cache, "models": repository}), PLAN, model=model
    )
    try:
        handle = engine.open_handle()
        yield handle
        handle.close()
    finally:
        engine.close()


def read(handle: Handle, pixels: Pixels | None = None, **options: Any) -> Page:
    task = a_task(page_with_a_bar() if pixels is None else pixels)
    (page,) = handle.read([type(task)(task.image, ReadOptions(**options), task.deadline)])
    assert isinstance(page, Page), page
    return page


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_model_is_read_with_its_own_dictionary(tmp_path: Path, isolation: str) -> None:
    with opened(a_version(tmp_path / "models"), tmp_path / "cache", isolation=isolation) as handle:
        page = read(handle)
    (line,) = page.lines
    assert line.text == "乙"
    assert line.confidence > 0.99


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("end", ["product", "convolution", "scores", "product and transpose"])
def test_both_decoders_read_every_kind_of_final_nodes(tmp_path: Path, runtime: Mapping[str, str], end: End) -> None:
    version = a_version(tmp_path / "models", rec=make_recognizer(1, 4, end=end))
    with opened(version, tmp_path / "cache", **runtime) as handle:
        assert [read(handle, decoder=decoder).text for decoder in ("greedy", "beam")] == ["甲", "甲"]


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_graphs_of_all_opsets_are_rewritten(tmp_path: Path, opset: int) -> None:
    det, rec = make_detector(opset, name="image"), make_recognizer(2, 4, opset=opset, name="line")
    with opened(a_version(tmp_path / "models", det=det, rec=rec), tmp_path / "cache") as handle:
        assert read(handle).text == "乙"


@pytest.mark.parametrize("end", ["product", "convolution"])
def test_the_gpu_pipeline_reads_with_other_models(tmp_path: Path, end: End) -> None:
    model = WITH_FILE + "height_px = 32\nmean = [0.4, 0.5, 0.6]\n"
    version = a_version(tmp_path, model=model, rec=make_recognizer(2, 4, height=32, end=end))
    engine = PpocrEngine(SessionConfig("cpu", batched=True), imaging="numpy", parts=read_parts(version))
    try:
        assert "pixels prepared by numpy" in engine.describe().provider
        handle = engine.open_handle()
        assert [read(handle, decoder=decoder).text for decoder in ("greedy", "beam")] == ["乙", "乙"]
    finally:
        engine.close()


@pytest.mark.parametrize("end", ["product", "convolution", "scores"])
def test_other_models_are_converted_to_half_precision(tmp_path: Path, end: End) -> None:
    version = a_version(tmp_path, rec=make_recognizer(2, 4, end=end))
    (part,) = read_parts(version).recognition.values()
    prepared = prepare_model.prepare(part, batched=True, half_precision=True)
    session = onnxruntime.InferenceSession(prepared, providers=["CPUExecutionProvider"])
    line = to_tensor(np.full((48, 64), 5, np.uint8))
    best, sure = session.run(["best", "sure"], {session.get_inputs()[0].name: line})
    assert best.tolist() == [[2] * 8]
    assert sure.min() > 0.99


def test_a_dictionary_keeps_its_spaces_and_need_not_add_one(tmp_path: Path) -> None:
    model = WITH_FILE + "adds_space = false\n"
    version = a_version(tmp_path / "models", model=model, dict="甲\r\n\u3000\r\n丙".encode())
    with opened(version, tmp_path / "cache") as handle:
        assert not read(handle).lines
    other = a_version(tmp_path / "models", 2, model=model, dict="甲\r\n乙\r\n丙".encode())
    with opened(other, tmp_path / "cache") as handle:
        assert read(handle).text == "乙"


@pytest.mark.parametrize("height", [32, 96])
def test_lines_are_scaled_to_the_recognizers_height(tmp_path: Path, height: int) -> None:
    version = a_version(
        tmp_path / "models", model=WITH_FILE + f"height_px = {height}\n", rec=make_recognizer(2, 4, height=height)
    )
    with opened(version, tmp_path / "cache") as handle:
        (line,) = read(handle, words="runs", characters=True).lines
    assert line.text == "乙"
    assert line.words is not None
    (word,) = line.words
    assert [character.text for character in word.characters] == ["乙"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_models_in_one_process_are_not_mixed(tmp_path: Path, runtime: Mapping[str, str]) -> None:
    one = a_version(tmp_path / "models", 1, rec=make_recognizer(1, 4))
    other = a_version(tmp_path / "models", 2, rec=make_recognizer(4, 5), dict="東\n西\n南".encode(), name="mine")
    more = a_version(tmp_path / "models", 1, rec=make_recognizer(2, 4), name="other")
    cache = tmp_path / "cache"
    with opened(one, cache, **runtime) as a, opened(other, cache, **runtime) as b, opened(more, cache, **runtime) as c:
        texts = [[read(handle, decoder=decoder).text for handle in (a, b, c)] for decoder in ("greedy", "beam")]
    # The middle text is empty: the class after a dictionary's last entry is the space.
    assert texts == [["甲", "", "乙"], ["甲", "", "乙"]]


def test_prepared_model_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, cache = a_version(tmp_path / "models"), tmp_path / "cache"
    with opened(version, cache) as handle:
        first = read(handle)
    monkeypatch.setattr(prepare_model, "prepare", None)
    with opened(version, cache) as handle:
        assert read(handle).lines == first.lines


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a dictionary of another model": (
        {"dict": "甲\n乙\n丙\n丁\n".encode()},
        r"mine/1: rec\.onnx has 4 classes, but its dictionary, dict\.txt, has 6 including the blank and a space",
    ),
    "a dictionary with its own space": (
        {"dict": "甲\n乙\n \n".encode()},
        r"has 4 classes, but its dictionary, dict\.txt, has 5",
    ),
    "no dictionary": ({"model": TOML}, r"rec\.onnx contains no dictionary"),
    "a dictionary that is no text": ({"dict": b"\xff\xfe\x00"}, r"dict\.txt is not UTF-8 text"),
    "half a recognizer": ({"rec": make_recognizer(2, 4)[:200]}, r"mine/1: rec\.onnx is not a complete ONNX model"),
    "half a detector": ({"det": make_detector()[:100]}, r"mine/1: det\.onnx is not a complete ONNX model"),
    "nothing": ({"det": b""}, r"det\.onnx has 0 inputs"),
    "a recognizer for a detector": ({"det": make_recognizer(2, 4)}, r"det\.onnx (does not run|returns)"),
    "a detector for a recognizer": ({"rec": make_detector()}, r"rec\.onnx returns \(1, 1, 48, 96\)"),
    "lines of another height": (
        {"rec": make_recognizer(2, 4, height=32)},
        r"rec\.onnx does not run on an input of \(1, 3, 48, 96\)",
    ),
    "no detector": ({"model": '[[recognition]]\nfile = "rec.onnx"'}, r"model\.toml has no \[detection\]"),
    "no recognizer": ({"model": '[detection]\nfile = "det.onnx"'}, r"model\.toml has no \[\[recognition\]\]"),
    "two recognizers of one name": (
        {"model": TOML + '[[recognition]]\nfile = "rec.onnx"'},
        r"two recognizers have the same name",
    ),
}


@pytest.mark.parametrize(
    ("changed", "fault", "isolation"),
    [*((*bad, "thread") for bad in BAD.values()), (*BAD["a dictionary of another model"], "process")],
    ids=[*BAD, "in a child"],
)
def test_unusable_model_is_refused(tmp_path: Path, changed: dict[str, Any], fault: str, isolation: str) -> None:
    version = a_version(tmp_path / "models", **changed)
    with pytest.raises(BadModel, match=fault) as raised, opened(version, tmp_path / "cache", isolation=isolation):
        pass
    assert raised.value.remedy


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("part", ["det", "rec"])
def test_model_with_external_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, runtime: Mapping[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = make_detector() if part == "det" else make_recognizer(2, 4)
    (tmp_path / "secret").write_bytes(onnx.load_from_string(whole).graph.initializer[0].raw_data)
    changed: dict[str, Any] = {part: with_weights_elsewhere(whole, "secret")}
    version = a_version(tmp_path / "models", **changed)
    with pytest.raises(BadModel, match="in another file"), opened(version, tmp_path / "cache", **runtime) as handle:
        read(handle)


def test_pixels_are_normalised_as_described() -> None:
    pixels = noise(3, 32, 40, 3)
    expected = (pixels / 255 - np.array(IMAGENET.mean)) / np.array(IMAGENET.std)
    assert np.allclose(to_tensor(pixels, IMAGENET)[0], np.moveaxis(expected, -1, 0), atol=1e-6)
    gray = pixels[:, :, 0]
    in_colours = to_tensor(np.stack([gray] * 3, axis=2), IMAGENET)
    assert np.array_equal(to_tensor(gray, IMAGENET), in_colours)


@pytest.mark.skipif(not openvino_session.is_installed(), reason="the package openvino is not installed")
def test_openvino_normalises_pixels_in_the_same_way(tmp_path: Path) -> None:
    version = a_version(tmp_path, det=make_detector(sharpness=0.5))
    described = Detection(file="det.onnx", mean=IMAGENET.mean, std=IMAGENET.std)
    part = ModelPart(version, described, version.read(described.file))
    maps = []
    for provider in ("cpu", "openvino"):
        runner = open_model(part, SessionConfig("cpu", provider=provider, precision="fp32"), ModelCache(None))
        maps.append(runner.run(model_input(runner, noise(3, 64, 96, 3)))[0])
    assert np.allclose(maps[0], maps[1], atol=1e-5)


def test_thresholds_determine_lines_and_their_height() -> None:
    probabilities = np.zeros((96, 320), np.float32)
    probabilities[40:56, 40:280] = 0.55

    def heights(thresholds: Thresholds) -> list[float]:
        found = lines_from_map(probabilities, 320, 96, thresholds).outlines
        return [float(outline[2, 1] - outline[0, 1]) for outline in found]

    (usual,) = heights(USUAL)
    (farther,) = heights(Thresholds(unclip_ratio=3.0))
    assert farther > usual + 10
    assert heights(Thresholds(of_box=0.6)) == heights(Thresholds(of_map=0.6)) == []
