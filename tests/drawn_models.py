"""Small ONNX models made here: a detector that takes ink for text, and recognizers that read ink as one character."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.results import Pixels

End = Literal["product", "convolution", "scores", "product and transpose"]
"""What the recognizer's scores come from: what PP-OCR has, a convolution, no softmax at all, or a transposed one."""

Shape = Sequence[int | str | None]

STEP_PX = 8
"""Columns of a line that make one step."""


def make_detector(opset: int = 14, sharpness: float = 4.0, name: str = "x", output: str = "map") -> bytes:
    """The darker a pixel, the likelier it is text."""
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
    """Steps with some ink are the class `says`, others blank; for lines of exactly that height."""
    weights = np.zeros((3, classes), np.float32)
    weights[:, 0], weights[:, says] = 6.0, -6.0
    bias = np.arange(classes, dtype=np.float32) * np.float32(-1e-3) - np.float32(40)
    # A line's box is more than twice as tall as its ink.
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
    taken: tuple[str, Shape] = name, ["N", 3, "H", "W"]
    given: tuple[str, Shape] = output, ["N", "T", classes]
    return model_of(nodes, constants, opset, taken, given, "\n".join(characters) if characters else None)


def _steps(planes: str, steps: str, opset: int, constants: dict[str, NDArray[Any]]) -> list[onnx.NodeProto]:
    """(N, F, 1, T) to (N, T, F); a line of another height has more rows, which cannot be left out."""
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
    taken: tuple[str, Shape],
    given: tuple[str, Shape],
    characters: str | None = None,
) -> bytes:
    """A model of these nodes; what it takes and gives has a name and a shape, and its characters are a property."""
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info(taken[0], TensorProto.FLOAT, taken[1])],
        [helper.make_tensor_value_info(given[0], TensorProto.FLOAT, given[1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if characters is not None:
        helper.set_model_props(model, {"character": characters})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def page_with_a_bar() -> Pixels:
    """A light page with one dark bar, which is a line of text to these models."""
    pixels: Pixels = np.full((320, 640, 3), 250, np.uint8)
    pixels[100:140, 60:560] = 5
    return pixels
