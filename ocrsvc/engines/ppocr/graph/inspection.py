"""What an ONNX model is: a detector, a recognizer of lines, or neither; by its inputs and outputs, not by its name.

An old export says neither how many classes there are nor how high a line is: such a recognizer is run, in a process of
its own, which bounds what a bad one can do. Models whose weights are in other files are found: OpenVINO, given a model
in memory, reads such files below the folder that the process runs in, be that `/`: a model would hold what is in the
files of others, and no manifest would say so.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from ocrsvc.errors import BadModel

if TYPE_CHECKING:
    import onnx


def has_external_weights(model: onnx.ModelProto) -> bool:
    """Whether any tensor of a model lies in another file."""
    return any(tensor.data_location or tensor.external_data for tensor in _tensors(model))


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _tensors_of(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


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

# Digits alone are ten.
_FEWEST_CLASSES: Final = 8
# PP-OCR from version 3, before it, and others.
_HEIGHTS_PX: Final = (48, 32, 64)
_WIDTH_PX: Final = 96
_LONGEST_S: Final = 60
_MEMORY_BYTES: Final = 6 << 30


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What a model says of itself."""

    kind: Kind
    what: str  # the kind in words, such as "a classifier of 2 classes"
    height_px: int | None = None  # of the lines that a recognizer takes; None where it takes any
    classes: int | None = None  # of a recognizer
    characters: str | None = None  # its property `character`, as it is; None without one


def inspect_model(content: bytes, name: str) -> OnnxGraph:
    """What the content of a file is. Raises BadModel: it is no ONNX, keeps its weights elsewhere, or does not run."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise BadModel(f"{name} is no ONNX model.", "Export it, or copy it, once more.") from error
    if has_external_weights(model):
        raise BadModel(
            f"{name} keeps its weights in another file.",
            'Save it as one: python -c \'import onnx; onnx.save(onnx.load("IN.onnx"), "OUT.onnx")\'.',
        )
    if not model.graph.node or not model.graph.output:
        raise BadModel(f"{name} is no ONNX model, or an empty one.", "Export it, or copy it, once more.")
    graph = _by_shapes(model)
    if graph.kind == "recognizer" and (graph.classes is None or graph.height_px is None):
        height_px, classes = run_apart(content, name)
        graph = replace(graph, height_px=graph.height_px or height_px, classes=graph.classes or classes)
    return graph


def _by_shapes(model: onnx.ModelProto) -> OnnxGraph:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        return OnnxGraph("other", f"a model of {len(inputs)} inputs and {len(model.graph.output)} outputs")
    taken = _shape(inputs[0])
    if len(taken) != 4 or taken[1] not in (3, None):
        return OnnxGraph("other", "a model that takes no image of three channels")
    if inputs[0].type.tensor_type.elem_type != 1:
        return OnnxGraph("other", "a model whose input is not float32; use the one in single precision")
    return _by_output(model, _shape(model.graph.output[0]), taken[2])


def _by_output(model: onnx.ModelProto, given: Shape, height_px: int | None) -> OnnxGraph:
    if len(given) == 4 and given[1] in (1, None):
        return OnnxGraph("detector", "a detector")
    if len(given) == 3 and (given[2] is None or given[2] >= _FEWEST_CLASSES):
        texts = (entry.value for entry in model.metadata_props if entry.key == "character" and entry.value)
        return OnnxGraph("recognizer", "a recognizer", height_px, given[2], next(texts, None))
    if len(given) == 2:
        return OnnxGraph("other", f"a classifier of {given[1] or 'several'} classes")
    return OnnxGraph("other", f"a model whose output has {len(given)} dimensions")


def _shape(value: onnx.ValueInfoProto) -> Shape:
    dimensions = value.type.tensor_type.shape.dim
    return [one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None for one in dimensions]


def run_apart(content: bytes, name: str) -> tuple[int, int]:
    """Height in pixels of the lines that a recognizer takes, and the number of its classes. Raises BadModel."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ocrsvc.engines.ppocr.graph.inspection"],
            input=content,
            capture_output=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BadModel(f"{name} reads no line within {_LONGEST_S} s.", "Export the model once more.") from error
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) != 2:
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["its process was killed"])[-1]
        raise BadModel(f"{name} reads no line of {_HEIGHTS_PX} pixels: {reason[:300]}.", "Export the model once more.")
    return int(words[0]), int(words[1])


def _run(content: bytes) -> tuple[int, int]:
    """In the child: the first height that works, and the classes that come out. Raises what ONNX Runtime does."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    reason: Exception | None = None
    for height in _HEIGHTS_PX:
        line = np.zeros((1, 3, height, _WIDTH_PX), np.float32)
        try:
            (given,) = session.run(None, {session.get_inputs()[0].name: line})
        except Exception as error:  # noqa: BLE001  ONNX Runtime has no base class of its own
            reason = error
            continue
        if np.ndim(given) == 3:
            return height, int(np.shape(given)[2])
    raise ValueError(str(reason or "what comes out is no table of classes").replace("\n", " "))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
    print(*_run(sys.stdin.buffer.read()))  # noqa: T201  what the caller reads
