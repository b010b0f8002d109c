"""Half precision and eight bits give nearly the same; the CPU runs half precision by casts, rounded as on a GPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.engines.ppocr.graph.precision import quantize, round_weights
from ocrsvc.engines.ppocr.graph.rewrite import LOGITS
from ocrsvc.engines.ppocr.pipeline.ctc import best_path
from ocrsvc.engines.ppocr.pipeline.db_postprocess import lines_from_map
from ocrsvc.engines.ppocr.pipeline.detector import pad
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime import prepare_model
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part, read_dictionary
from ocrsvc.engines.ppocr.runtime.openvino_session import first_steps
from ocrsvc.results import Pixels

PAGES = Path(__file__).parent / "pages"


def opened(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, pixels: Pixels, outputs: Sequence[str] | None = None) -> list[Any]:
    found: list[Any] = session.run(outputs, {session.get_inputs()[0].name: to_tensor(pixels)})
    return found


@pytest.fixture(scope="module")
def half_precision() -> bytes:
    return prepare_model.prepare(built_in_part(RECOGNITION), batched=True, half_precision=True)


def test_a_line_reads_the_same_in_half_precision(half_precision: bytes) -> None:
    line = cv2.resize(np.asarray(cv2.imread(str(PAGES / "line.png")), np.uint8), (448, 48))
    session = opened(half_precision)
    best, sure = (rows[0] for rows in run(session, line.astype(np.uint8), OUTPUTS))
    characters = read_dictionary(built_in_part(RECOGNITION), session.get_modelmeta().custom_metadata_map)
    read = best_path(best, sure[first_steps(best)], characters)
    assert "".join(read.characters) == "The library closes at 15:00 today."
    assert read.confidence > 0.95


def test_what_decides_stays_in_single_precision_and_what_computes_does_not(half_precision: bytes) -> None:
    graph = onnx.load_from_string(half_precision).graph
    weights = {tensor.name: tensor.data_type for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    product = next(makers[name] for name in makers[LOGITS].input if name in makers)
    assert [weights[name] for name in product.input if name in weights] == [onnx.TensorProto.FLOAT]
    kernels = [weights[name] for node in graph.node if node.op_type == "Conv" for name in node.input[1:2]]
    assert set(kernels) == {onnx.TensorProto.FLOAT16}
    kinds = [output.type.tensor_type.elem_type for output in graph.output]
    assert kinds == [TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT]


@pytest.mark.parametrize("as_fp16", [False, True], ids=["single", "half"])
def test_a_page_padded_to_the_grid_has_its_lines_where_it_had_them(as_fp16: bool) -> None:
    pixels = np.asarray(cv2.imread(str(PAGES / "notice.png")), np.uint8)[:288, :608]
    exact = run(opened(prepare_model.prepare(built_in_part(DETECTION))), pixels)[0]
    on_gpu = opened(prepare_model.prepare(built_in_part(DETECTION), batched=True, half_precision=as_fp16))
    padded = pad(pixels)
    assert padded.shape == (320, 640, 3)
    found = run(on_gpu, padded)[0][:, :, :288, :608]
    one, other = (
        np.array(sorted(lines_from_map(probabilities[0, 0], 608, 288).outlines, key=lambda quad: float(quad[0, 1])))
        for probabilities in (exact, found)
    )
    assert one.shape == other.shape == (4, 4, 2)
    assert np.abs(one - other).max() <= 3


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
    found: NDArray[np.float32] = opened(proto.SerializeToString()).run(None, {"x": x})[0]
    return found


def test_a_quantised_model_gives_nearly_the_same_and_few_channels_stay_as_they_are() -> None:
    x = np.random.default_rng(4).normal(0, 1, (1, 8, 6, 9)).astype(np.float32)
    expected, proto = run_model(tiny_model(), x), tiny_model()
    assert quantize(proto, least_channels=8) == 2
    kinds = [node.op_type for node in proto.graph.node]
    assert (kinds.count("DynamicQuantizeMatMul"), kinds.count("Conv"), kinds.count("Transpose")) == (2, 1, 2)
    found = run_model(proto, x)
    assert 0 < np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    same = tiny_model()
    assert quantize(same, least_channels=9) == 0
    assert [node.op_type for node in same.graph.node] == [node.op_type for node in tiny_model().graph.node]


def test_weights_are_rounded_to_half_a_step_by_output_channel() -> None:
    weights = np.random.default_rng(5).normal(0, [0.01, 1, 100], (40, 3)).astype(np.float32)
    rounded, scales = round_weights(weights)
    assert rounded.dtype == np.int8
    assert (np.abs(rounded * scales - weights) <= scales * 0.501).all()
    assert (np.abs(rounded).max(axis=0) == 127).all()
    assert not round_weights(np.zeros((2, 2), np.float32))[0].any()
