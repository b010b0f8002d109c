"""Finds out from an ONNX model's inputs and outputs whether it is a detector, a line recognizer or neither.

Old exports lack the number of classes and the line height; to learn them, such a recognizer is run in a limited child
process. Models with weights in other files are refused: OpenVINO would read any file below the working directory, which
may be `/`, without checking it against the manifest.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

from ocrsvc.errors import BadModel

if TYPE_CHECKING:
    import onnx


def has_external_weights(model: onnx.ModelProto) -> bool:
    """Whether a model stores any tensor in another file."""
    of_functions = (_tensors_of_node(node) for function in model.functions for node in function.node)
    tensors = chain(_tensors_of(model.graph), *of_functions)
    return any(tensor.data_location or tensor.external_data for tensor in tensors)


def _tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (attribute.g, *attribute.graphs):
            yield from _tensors_of(graph)


Kind = Literal["detector", "recognizer", "other"]
Shape = Sequence[int | None]

_FEWEST_CLASSES: Final = 8  # fewest classes of a recognizer; the smallest usual dictionary has ten digits
_HEIGHTS_PX: Final = (48, 32, 64)  # line heights to try: PP-OCR since version 3, older PP-OCR, others
_WIDTH_PX: Final = 96
_LONGEST_S: Final = 60
_MEMORY_BYTES: Final = 6 << 30


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Kind and properties of an ONNX model."""

    kind: Kind
    text: str  # the kind in words, such as "a classifier of 2 classes"
    height_px: int | None = None  # a recognizer's line height; None if any height works
    classes: int | None = None  # a recognizer's number of classes
    characters: str | None = None  # the metadata property `character`; None if it is missing


def inspect_model(content: bytes, name: str) -> OnnxGraph:
    """Inspect an ONNX file. Raises BadModel if it is not ONNX, has external weights or cannot be run."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise BadModel(f"{name} is not an ONNX model.", "Export or copy it again.") from error
    if has_external_weights(model):
        raise BadModel(
            f"{name} has weights in another file.",
            'Save it as one: python -c \'import onnx; onnx.save(onnx.load("IN.onnx"), "OUT.onnx")\'.',
        )
    if not model.graph.node or not model.graph.output:
        raise BadModel(f"{name} is not an ONNX model, or is empty.", "Export or copy it again.")
    graph = _by_shapes(model)
    if graph.kind == "recognizer" and (graph.classes is None or graph.height_px is None):
        height_px, classes = run_in_child(content, name)
        graph = replace(graph, height_px=graph.height_px or height_px, classes=graph.classes or classes)
    return graph


def _by_shapes(model: onnx.ModelProto) -> OnnxGraph:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        return OnnxGraph("other", f"a model with {len(inputs)} inputs and {len(model.graph.output)} outputs")
    shape = _shape(inputs[0])
    if len(shape) != 4 or shape[1] not in (3, None):
        return OnnxGraph("other", "a model whose input is not an image of three channels")
    if inputs[0].type.tensor_type.elem_type != 1:
        return OnnxGraph("other", "a model whose input is not float32; use the one in single precision")
    return _by_output(model, _shape(model.graph.output[0]), shape[2])


def _by_output(model: onnx.ModelProto, shape: Shape, height_px: int | None) -> OnnxGraph:
    if len(shape) == 4 and shape[1] in (1, None):
        return OnnxGraph("detector", "a detector")
    if len(shape) == 3 and (shape[2] is None or shape[2] >= _FEWEST_CLASSES):
        texts = (entry.value for entry in model.metadata_props if entry.key == "character" and entry.value)
        return OnnxGraph("recognizer", "a recognizer", height_px, shape[2], next(texts, None))
    if len(shape) == 2:
        return OnnxGraph("other", f"a classifier of {shape[1] or 'several'} classes")
    return OnnxGraph("other", f"a model whose output has {len(shape)} dimensions")


def _shape(value: onnx.ValueInfoProto) -> Shape:
    dimensions = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else None for size in dimensions]


def run_in_child(content: bytes, name: str) -> tuple[int, int]:
    """Run a recognizer in a child process; returns its line height in px and its class count. Raises BadModel."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "ocrsvc.engines.ppocr.graph.inspection"],
            input=content,
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadModel(f"{name} did not read a line within {_LONGEST_S} s.", "Export the model again.") from error
    words = ended.stdout.decode("utf-8", "replace").split()
    if ended.returncode or len(words) != 2:
        reason = (ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["its process was killed"])[-1]
        raise BadModel(f"{name} cannot read lines of {_HEIGHTS_PX} pixels: {reason[:300]}.", "Export the model again.")
    return int(words[0]), int(words[1])


def _run(content: bytes) -> tuple[int, int]:
    """In the child: the first line height that works, and the number of classes. Raises ValueError."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    reason: Exception | None = None
    for height in _HEIGHTS_PX:
        line = np.zeros((1, 3, height, _WIDTH_PX), np.float32)
        try:
            (output,) = session.run(None, {session.get_inputs()[0].name: line})
        except Exception as error:  # noqa: BLE001  ONNX Runtime's exceptions have no common base class
            reason = error
            continue
        if np.ndim(output) == 3:
            return height, int(np.shape(output)[2])
    raise ValueError(str(reason or "its output is not (1, steps, classes)").replace("\n", " "))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
    print(*_run(sys.stdin.buffer.read()))  # noqa: T201  read by run_in_child
