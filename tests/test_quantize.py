"""Quantisation: the recognizer's large products in eight bits."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.engines.ppocr.graph.quantize import quantize, round_weights


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
