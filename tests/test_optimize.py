"""The recognizer in eight bits, and the choice that `ocrsvc optimize` makes on the user's pages."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from models_support import built_in
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.cli.main import run
from ocrsvc.engines.ppocr import runtime_comparison
from ocrsvc.engines.ppocr.engine import PpocrEngine
from ocrsvc.engines.ppocr.graph.quantize import quantize, round_weights
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime import openvino_session, runtimes
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.runtimes import FP32, INT8, RuntimeChoice, choice_key, load_choice, quickest
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_comparison import count_edits, count_found, make_proof, table
from ocrsvc.engines.ppocr.runtime_proof import read_reference_file
from ocrsvc.records import Image, Page, ReadTask

PAGES = Path(__file__).parent / "pages"


def tiny_model() -> onnx.ModelProto:
    """Two 1 x 1 convolutions with a ReLU between them, a sum around them and a 3 x 3 convolution after them."""
    rng = np.random.default_rng(3)
    shapes = {"a": (16, 8, 1, 1), "a.bias": (1, 16, 1, 1), "b": (8, 16, 1, 1), "c": (4, 8, 3, 3)}
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, shape).astype("f"), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["a.out"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["a.out", "a.bias"], ["a.sum"]),
        helper.make_node("Relu", ["a.sum"], ["relu"]),
        helper.make_node("Conv", ["relu", "b"], ["b.out"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["x", "b.out"], ["sum"]),
        helper.make_node("Conv", ["sum", "c"], ["y"], kernel_shape=[3, 3]),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "tiny", sides[:1], sides[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)


def run_model(proto: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return found


def test_a_quantised_model_gives_nearly_the_same() -> None:
    x = np.random.default_rng(4).normal(0, 1, (1, 8, 6, 9)).astype(np.float32)
    expected, proto = run_model(tiny_model(), x), tiny_model()
    assert quantize(proto, least_channels=8) == 2
    kinds = [node.op_type for node in proto.graph.node]
    assert (kinds.count("DynamicQuantizeMatMul"), kinds.count("Conv"), kinds.count("Transpose")) == (2, 1, 2)
    found = run_model(proto, x)
    assert 0 < np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


def test_products_with_few_channels_stay_as_they_are() -> None:
    proto = tiny_model()
    assert quantize(proto, least_channels=9) == 0
    assert [node.op_type for node in proto.graph.node] == [node.op_type for node in tiny_model().graph.node]


def test_weights_are_rounded_to_half_a_step_by_output_channel() -> None:
    weights = np.random.default_rng(5).normal(0, [0.01, 1, 100], (40, 3)).astype(np.float32)
    rounded, scales = round_weights(weights)
    assert rounded.dtype == np.int8
    assert (np.abs(rounded * scales - weights) <= scales * 0.501).all()
    assert (np.abs(rounded).max(axis=0) == 127).all()
    assert not round_weights(np.zeros((2, 2), np.float32))[0].any()


@pytest.mark.parametrize(
    ("gains", "edits", "wins"),
    [
        ([1.5] * 3, 0, True),
        ([1.5] * 3, 10, True),  # 99 % of 1,000 characters
        ([1.5] * 3, 11, False),
        ([1.0] * 3, 0, False),
        ([0.5, 3.0, 1.05], 0, False),  # the median decides, not one quick line
        ([1.2, 1.2, 0.1], 0, True),
        ([], 0, False),
    ],
)
def test_a_runtime_wins_by_speed_and_by_reading_the_same(gains: list[float], edits: int, wins: bool) -> None:
    proof = make_proof(RECOGNITION, INT8, gains, 1000, edits)
    assert quickest([proof], RECOGNITION) == (INT8 if wins else FP32)
    assert ("not used" in "\n".join(table([proof]))) is not wins


def test_lines_are_found_alike_within_a_share_of_their_height() -> None:
    line = np.array([[10, 10], [110, 10], [110, 30], [10, 30]], np.float32)
    assert count_found([line, line + 500], [line + 2.5]) == 1
    assert count_found([line], [line + 3.5]) == count_found([line], []) == 0


@pytest.mark.parametrize(
    ("wanted", "found", "edits"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("flaw", "lawn", 2), ("same", "same", 0)],
)
def test_edits_are_counted(wanted: str, found: str, edits: int) -> None:
    assert count_edits(wanted, found) == count_edits(found, wanted) == edits


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelCache:
    """Holds a recognizer in eight bits."""
    store = ModelCache(tmp_path_factory.mktemp("models"))
    open_model(built_in_part(RECOGNITION), SessionConfig("cpu", precision="int8"), store)
    return store


def test_the_cached_recognizer_decides_as_the_new_one_and_nearly_as_in_single_precision(store: ModelCache) -> None:
    line = np.asarray(cv2.imread(str(PAGES / "line.png")), np.uint8)
    tensor = to_tensor(np.asarray(cv2.resize(line, (400, 48)), np.uint8))
    kept = open_model(built_in_part(RECOGNITION), SessionConfig("cpu", precision="int8"), store)
    single = open_model(built_in_part(RECOGNITION), SessionConfig("cpu", precision="fp32"), store)
    assert (kept.precision, single.precision) == ("int8", "fp32")
    new = open_model(built_in_part(RECOGNITION), SessionConfig("cpu", precision="int8"))
    assert np.array_equal(kept.run(tensor, ["logits"])[0], new.run(tensor, ["logits"])[0])
    (eight, _), (expected, sure) = kept.run(tensor, OUTPUTS), single.run(tensor, OUTPUTS)
    assert (eight == expected).mean() > 0.9
    assert len(sure) > 5


def test_a_line_reads_the_same_in_eight_bits_alone_and_beside_others_and_the_engine_says_so(tmp_path: Path) -> None:
    engine = PpocrEngine(SessionConfig("cpu", precision="int8"), engine_threads=2, model_cache=tmp_path)
    assert engine.describe().precision == "fp32 detection, int8 recognition"
    handle = engine.open_handle()
    images = [np.asarray(cv2.imread(str(PAGES / name)), np.uint8) for name in ("notice.png", "line.png")]
    tasks = [ReadTask(Image(image, "png")) for image in images]
    together, alone = handle.read(tasks), [handle.read([task])[0] for task in tasks[::-1]][::-1]
    handle.close()
    engine.close()
    assert together == alone
    assert isinstance(together[0], Page)
    assert "Thelibraryclosesat15:00today." in "".join(together[0].text.split())


@pytest.fixture(autouse=True)
def _untouched_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command plans the threads of its process, which here is that of all tests."""
    monkeypatch.setattr("ocrsvc.cli.optimize.set_library_environment", lambda _environ: None)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A small page in a folder of its own, beside a file that is no image."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "notice.png").write_bytes((PAGES / "notice.png").read_bytes())
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "notes.txt").write_text("not an image")
    return folder


def stored(folder: Path) -> RuntimeChoice | None:
    return load_choice(ModelCache(folder), "runtime", choice_key(built_in(), "auto", read_reference_file()))


def test_too_little_text_is_refused(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "--pages", str(page), "--out", str(tmp_path)]) > 0
    said = capsys.readouterr().err
    assert "broken.png is left out" in said
    assert "too few to compare" in said
    assert stored(tmp_path) is None


@pytest.mark.parametrize("least_gain", [0.0, 1000.0])
def test_optimize_stores_what_wins_and_single_precision_where_nothing_does(
    least_gain: float,
    page: Path,
    store: ModelCache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    monkeypatch.setattr(runtime_comparison, "FEWEST_CHARACTERS", 20)
    monkeypatch.setattr(runtimes, "LEAST_GAIN", least_gain)
    monkeypatch.setitem(runtime_comparison.LEAST_SHARE, RECOGNITION, 0.5)
    assert store._folder is not None
    assert run(["optimize", "--pages", str(page / "notice.png"), "--out", str(store._folder)]) == 0
    printed = capsys.readouterr().out
    choice = stored(store._folder)
    assert choice is not None
    assert (choice.detection, choice.recognition) == (FP32, INT8 if least_gain == 0.0 else FP32)
    assert "by `ocrsvc optimize` with 1 pages" in choice.reason
    assert f"OCRSVC_MODEL_CACHE={store._folder}" in printed


def test_a_choice_that_cannot_be_stored_is_not_said_to_be(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    folder.touch()
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    monkeypatch.setattr(runtime_comparison, "FEWEST_CHARACTERS", 20)
    assert run(["optimize", "--pages", str(page / "notice.png"), "--out", str(folder)]) == 78
    printed = capsys.readouterr()
    assert "kept in" not in printed.out
    assert f"{folder} cannot be written to" in printed.err


@pytest.mark.parametrize(
    ("name", "value"), [("OCRSVC_PRECISION", "fp32"), ("OCRSVC_DEVICE", "cuda"), ("OCRSVC_ENGINE", "fake")]
)
def test_a_runtime_that_was_named_a_gpu_and_other_engines_leave_nothing_to_choose(
    name: str, value: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["optimize", "--pages", str(page), "--out", str(tmp_path)]) == 78
    assert stored(tmp_path) is None
