"""Builds small ONNX models: a detector that treats ink as text, recognizers that read ink as one character."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.results import Pixels

End = Literal["product", "convolution", "scores", "product and transpose"]
"""The recognizer's last nodes: as in PP-OCR, a convolution, without softmax, or with a transposed softmax."""

Shape = Sequence[int | str | None]

STEP_PX = 8
"""Width of one recognizer step."""


def make_detector(opset: int = 14, sharpness: float = 4.0, name: str = "x", output: str = "map") -> bytes:
    """A detector whose text probability rises with a pixel's darkness."""
    dark = helper.make_node("Conv", [name, "weights"], ["dark"], kernel_shape=[1, 1])
    nodes = [dark, helper.make_node("Sigmoid", ["dark"], [output])]
    weights = {"weights": np.full((1, 3, 1, 1), -sharpness / 3, np.float32)}
    return model_of(nodes, weights, opset, (name, ["N", 3, "H", "W"]), (output, ["N", 1, "H", "W"]))


def make_recognizer(
    says: int,
    classes: int,
    *,
    height: int = 48,
    opset: int = 14,
    end: End = "product",
    characters: Sequence[str] | None = None,
    name: str = "x",
    output: str = "scores",
) -> bytes:
    """A recognizer of class `says` where there is ink, else blank; it accepts only lines of `height` pixels."""
    weights = np.zeros((3, classes), np.float32)
    weights[:, 0], weights[:, says] = 6.0, -6.0
    bias = np.arange(classes, dtype=np.float32) * np.float32(-1e-3) - np.float32(40)
    # Little ink must suffice: it fills less than half of a line's height.
    bias[[0, says]] = -12.0, 0.0
    pooled = helper.make_node("AveragePool", [name], ["pooled"], kernel_shape=[height, STEP_PX], strides=[1, STEP_PX])
    constants: dict[str, NDArray[Any]] = {"weights": weights, "bias": bias}
    if end == "convolution":
        constants = {"weights": weights.T[:, :, None, None], "bias": bias}
        nodes = [pooled, helper.make_node("Conv", ["pooled", "weights", "bias"], ["planes"], kernel_shape=[1, 1])]
        nodes += _steps("planes", "logits", opset, constants)
        nodes.append(helper.make_node("Softmax", ["logits"], [output], axis=2))
    else:
        nodes = [pooled, *_steps("pooled", "features", opset, constants)]
        nodes.append(helper.make_node("MatMul", ["features", "weights"], ["product"]))
        nodes.append(helper.make_node("Add", ["product", "bias"], [output if end == "scores" else "logits"]))
    if end == "product":
        nodes.append(helper.make_node("Softmax", ["logits"], [output], axis=2))
    if end == "product and transpose":
        nodes.append(helper.make_node("Transpose", ["logits"], ["turned"], perm=[0, 2, 1]))
        nodes.append(helper.make_node("Softmax", ["turned"], ["shares"], axis=1))
        nodes.append(helper.make_node("Transpose", ["shares"], [output], perm=[0, 2, 1]))
    shapes: tuple[tuple[str, Shape], tuple[str, Shape]] = (name, ["N", 3, "H", "W"]), (output, ["N", "T", classes])
    return model_of(nodes, constants, opset, *shapes, "\n".join(characters) if characters else None)


def _steps(planes: str, steps: str, opset: int, constants: dict[str, NDArray[Any]]) -> list[onnx.NodeProto]:
    """Nodes from (N, F, 1, T) to (N, T, F); a line of another height has more rows, which Squeeze rejects."""
    if opset < 13:
        squeeze = helper.make_node("Squeeze", [planes], ["squeezed"], axes=[2])
    else:
        constants["axes"] = np.array([2], np.int64)
        squeeze = helper.make_node("Squeeze", [planes, "axes"], ["squeezed"])
    return [squeeze, helper.make_node("Transpose", ["squeezed"], [steps], perm=[0, 2, 1])]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any],
    opset: int,
    input_: tuple[str, Shape],
    output: tuple[str, Shape],
    characters: str | None = None,
) -> bytes:
    """A model of these nodes; input and output are (name, shape), `characters` becomes a metadata property."""
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info(input_[0], TensorProto.FLOAT, input_[1])],
        [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, output[1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if characters is not None:
        helper.set_model_props(model, {"character": characters})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def page_with_a_bar() -> Pixels:
    """A light page with one dark bar, which these models read as a line of text."""
    pixels: Pixels = np.full((320, 640, 3), 250, np.uint8)
    pixels[100:140, 60:560] = 5
    return pixels
