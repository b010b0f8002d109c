"""Prepares the graphs of models as they are run, and reads the dictionaries of recognizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.model.description import Recognition
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.graph.inspection import has_external_weights
from ocrsvc.engines.ppocr.runtime.model_cache import cpu_features
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, ModelPart
from ocrsvc.errors import BadModel, EngineUnavailable

if TYPE_CHECKING:
    import onnx

CHARACTERS: Final = "character"  # the property with a recognizer's dictionary, a text a line
CLASSES: Final = "ocrsvc.classes"  # the property with the number of a recognizer's classes, which preparation adds
PRODUCT: Final = "ocrsvc.product"
"""The property of a recognizer that ends in a product, a bias and a softmax, which preparation adds."""


def prepare_model(
    part: ModelPart, *, batched: bool = False, half_precision: bool = False, openvino: bool = False
) -> bytes:
    """The model as it is run: for a line or a batch (graph/rewrite.py), perhaps in half precision (graph/fp16.py).

    For OpenVINO a recognizer with a last product ends before it (`rewrite.keep_features`); see `prepare_classifier`.

    Imports `onnx`, which a cached model does without. Raises BadModel.
    """
    from ocrsvc.engines.ppocr.graph import rewrite
    from ocrsvc.engines.ppocr.runtime import checked_rewrites

    proto = checked_rewrites.rewritten(part, batched=batched, openvino=openvino)
    if half_precision:
        from ocrsvc.engines.ppocr.graph import fp16

        has_product = part.kind == RECOGNITION and PRODUCT in properties_of(proto)
        proto = fp16.to_fp16(proto, rewrite.LOGITS if has_product else "")
    prepared: bytes = proto.SerializeToString()
    return prepared


def load_model(part: ModelPart) -> onnx.ModelProto:
    """The graph of the file. Imports `onnx`. Raises BadModel."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load_from_string(part.shipped)
    except DecodeError as error:
        raise BadModel(f"{part} is no ONNX model, or not whole: {error}.", "Copy the file again.") from error
    if len(proto.graph.input) != 1 or not proto.graph.output:
        inputs = len(proto.graph.input)
        raise BadModel(f"{part} has {inputs} inputs, and the engine ppocr feeds one.", "Export it for inference.")
    if has_external_weights(proto):
        raise BadModel(f"{part} keeps its weights in another file, which no manifest holds.", "Save it as one file.")
    return proto


def properties_of(proto: onnx.ModelProto) -> dict[str, str]:
    """The properties that a model carries, such as the recognizer's dictionary."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def input_name(model: bytes) -> str:
    """Of the one input of a prepared model. Imports `onnx`."""
    import onnx

    return str(onnx.load_from_string(model).graph.input[0].name)


def note_recognizer(proto: onnx.ModelProto, classes: int, *, has_product: bool) -> None:
    """Add what an opened recognizer must know of its graph as properties."""
    for key, value in ((CLASSES, str(classes)), *(((PRODUCT, "yes"),) if has_product else ())):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value


def prepare_properties(part: ModelPart) -> bytes:
    """The properties of the prepared recognizer, as JSON. Imports `onnx`."""
    import onnx

    return json.dumps(properties_of(onnx.load_from_string(prepare_model(part)))).encode()


def prepare_classifier(part: ModelPart, steps: int) -> bytes:
    """The recognizer's last product and what is chosen from it, for so many steps at once. Imports `onnx`."""
    from ocrsvc.engines.ppocr.graph import rewrite

    prepared: bytes = rewrite.make_classifier(load_model(part), steps).SerializeToString()
    return prepared


def read_head(version: ModelVersion, file: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A recognizer's last product; see `rewrite.read_head`. Imports `onnx`. Raises BadModel: the file is gone."""
    import onnx

    from ocrsvc.engines.ppocr.graph import rewrite

    return rewrite.read_head(onnx.load_from_string(version.read(file)))


def channel_block() -> int:
    """How many channels ONNX Runtime's convolutions take at once on this processor."""
    return 16 if b" avx512f " in cpu_features() else 8


def quantized_recognizer(part: ModelPart) -> bytes:
    """The prepared recognizer with its large products in eight bits, for a line at a time on a CPU; see graph/quantize.

    The detector gains nothing from it: its time is in large planes of few channels. Raises EngineUnavailable, BadModel.
    """
    import onnx

    from ocrsvc.engines.ppocr.graph.quantize import quantize

    proto = onnx.load_from_string(prepare_model(part))
    if not quantize(proto):
        raise EngineUnavailable(f"{part} has nothing to be computed in int8.", "Set OCRSVC_PRECISION=auto.")
    smaller: bytes = proto.SerializeToString()
    return smaller


def preparation_code() -> bytes:
    """The code that prepares models, which a cached model depends on."""
    runtime = Path(__file__).parent
    graph = runtime.parent / "graph"
    files = (
        *(graph / f"{name}.py" for name in ("memory_layout", "quantize", "rewrite")),
        *(runtime / f"{name}.py" for name in ("checked_rewrites", "models")),
    )
    return b"".join(file.read_bytes() for file in files)


def read_dictionary(part: ModelPart, properties: Mapping[str, str]) -> list[str]:
    """The text of each class: blank, those of the dictionary, and the space where the model has it besides.

    `properties` are those of the prepared model. Raises BadModel: there is no dictionary, or it is another model's.
    """
    described = part.described
    assert isinstance(described, Recognition), "a detector has no dictionary"
    if described.dictionary is not None:
        texts, source = _texts_in(part, described.dictionary), described.dictionary
    elif CHARACTERS in properties:
        texts, source = properties[CHARACTERS].split("\n"), f"its property {CHARACTERS!r}"
    else:
        raise BadModel(
            f"{part} carries no dictionary (its property {CHARACTERS!r}), and model.toml names none.",
            'Name the file with the text of each class in a line: dictionary = "dict.txt".',
        )
    classes = ["", *texts, *([" "] if described.adds_space else [])]
    wanted = int(properties[CLASSES])
    if len(classes) != wanted:
        beside = "the blank and a space" if described.adds_space else "the blank"
        raise BadModel(
            f"{part} has {wanted} classes, and its dictionary, {source}, has {len(classes)} with {beside}.",
            "Name the model's own dictionary in model.toml, and see whether adds_space is right.",
        )
    return classes


def _texts_in(part: ModelPart, file: str) -> list[str]:
    """The lines of a dictionary's file. A text may be of spaces, so nothing but the ends of lines is taken off."""
    try:
        content = part.version.read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModel(f"{part.version}: {file} is no text in UTF-8: {error}.", "Copy the dictionary again.") from error
    return [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
