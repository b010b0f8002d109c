"""What an ONNX model is: a detector, a recognizer of lines, or neither; by its inputs and outputs, not by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from ocrsvc.errors import BadModel
from ocrsvc.model_import.trial_run import run_apart
from ocrsvc.model_repository.external_weights import has_external_weights

if TYPE_CHECKING:
    import onnx

Kind = Literal["detector", "recognizer", "other"]
Shape = Sequence[int | None]

_FEWEST_CLASSES: Final = 8
"""Of a recognizer: digits alone are ten."""


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """What a model says of itself.

    Attributes:
        kind: What it is.
        what: In words, such as "a classifier of 2 classes".
        height_px: Of the lines that a recognizer takes; None where it takes any.
        classes: Of a recognizer.
        characters: Its property `character`, as it is; None without one.
    """

    kind: Kind
    what: str
    height_px: int | None = None
    classes: int | None = None
    characters: str | None = None


def inspect_model(content: bytes, name: str) -> OnnxGraph:
    """What a model is.

    Args:
        content: Of its file.
        name: Of the file, for people.

    Raises:
        BadModel: It is no ONNX, keeps its weights in other files, or does not run.
    """
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
    # An old export says neither how many classes there are nor how high a line is.
    if graph.kind == "recognizer" and (graph.classes is None or graph.height_px is None):
        height_px, classes = run_apart(content, name)
        graph = replace(graph, height_px=graph.height_px or height_px, classes=graph.classes or classes)
    return graph


def _by_shapes(model: onnx.ModelProto) -> OnnxGraph:
    inputs = _inputs(model)
    if len(inputs) != 1 or len(model.graph.output) != 1:
        return OnnxGraph("other", f"a model of {len(inputs)} inputs and {len(model.graph.output)} outputs")
    taken, given = _shape(inputs[0]), _shape(model.graph.output[0])
    if len(taken) != 4 or taken[1] not in (3, None):
        return OnnxGraph("other", "a model that takes no image of three channels")
    if inputs[0].type.tensor_type.elem_type != 1:
        return OnnxGraph("other", "a model whose input is not float32; use the one in single precision")
    return _by_output(given, model, taken[2])


def _by_output(given: Shape, model: onnx.ModelProto, height_px: int | None) -> OnnxGraph:
    if len(given) == 4 and given[1] in (1, None):
        return OnnxGraph("detector", "a detector")
    if len(given) == 3 and (given[2] is None or given[2] >= _FEWEST_CLASSES):
        return OnnxGraph("recognizer", "a recognizer", height_px, given[2], _property(model, "character"))
    if len(given) == 2:
        return OnnxGraph("other", f"a classifier of {given[1] or 'several'} classes")
    return OnnxGraph("other", f"a model whose output has {len(given)} dimensions")


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Those that are not weights with a default."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _shape(value: onnx.ValueInfoProto) -> Shape:
    dimensions = value.type.tensor_type.shape.dim
    return [one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None for one in dimensions]


def _property(model: onnx.ModelProto, name: str) -> str | None:
    return next((entry.value for entry in model.metadata_props if entry.key == name and entry.value), None)
