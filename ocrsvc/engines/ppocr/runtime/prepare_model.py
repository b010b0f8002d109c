"""Prepares model graphs for running, with the rewrites that apply to a model. Imports `onnx`.

On random input, a rewritten graph must give the same outputs as the original, except for rounding; otherwise the
original is used. This takes a fraction of a second, and the model cache keeps the result.
"""

import json
import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Final, cast

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import compose, version_converter

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.graph import memory_layout, rewrite
from ocrsvc.engines.ppocr.graph.inspection import has_external_weights
from ocrsvc.engines.ppocr.graph.precision import quantize, to_fp16
from ocrsvc.engines.ppocr.runtime.model_cache import cpu_features
from ocrsvc.engines.ppocr.runtime.model_parts import CLASSES, DETECTION, PRODUCT, ModelPart
from ocrsvc.engines.ppocr.runtime.openvino_session import first_steps
from ocrsvc.engines.ppocr.runtime.providers import CPU
from ocrsvc.engines.ppocr.runtime.session import session_errors
from ocrsvc.errors import BadModel, EngineUnavailable

LOG: Final = logging.getLogger("ocrsvc.ppocr")

# Largest difference of a probability between a rewritten graph and the original; rounding causes 1e-5.
MAX_DIFFERENCE: Final = 1e-3
_OPSET: Final = 11  # oldest opset that the rewrites support
_PREFIX: Final = "given."
# Errors of a rewrite that does not apply to a graph.
_REFUSALS: Final = (ValueError, KeyError, IndexError, StopIteration)
Rewriting = Callable[[onnx.ModelProto], None]
Array = NDArray[Any]


def prepare(part: ModelPart, *, batched: bool = False, half_precision: bool = False, openvino: bool = False) -> bytes:
    """Prepare a model for one line or a batch (graph/rewrite.py), in fp16 if requested (graph/precision.py).

    For OpenVINO, a recognizer ends before its final matrix product, if any (`rewrite.keep_features`);
    `prepare_classifier` makes the rest. Raises BadModel.
    """
    proto = load(part)
    noise = np.random.default_rng(1).uniform(-1, 1, part.smallest_shape).astype(np.float32)
    shipped = _run_shipped(part, proto, noise)
    if part.kind == DETECTION:
        proto = _rewrite_detector(part, proto, noise, shipped, batched=batched, openvino=openvino)
    else:
        proto = _rewrite_recognizer(part, proto, noise, shipped, batched=batched, openvino=openvino)
    if half_precision:
        proto = to_fp16(proto, rewrite.LOGITS if PRODUCT in _properties(proto) else "")
    return bytes(proto.SerializeToString())


def prepare_int8(part: ModelPart) -> bytes:
    """Prepare a recognizer for one line, with large matrix products in int8. Raises EngineUnavailable, BadModel."""
    proto = onnx.load_from_string(prepare(part))
    if not quantize(proto):
        raise EngineUnavailable(f"{part} has no operations for int8.", "Set OCRSVC_PRECISION=auto.")
    return bytes(proto.SerializeToString())


def prepare_properties(part: ModelPart) -> bytes:
    """The properties of the prepared recognizer, such as its dictionary, as JSON."""
    return json.dumps(_properties(onnx.load_from_string(prepare(part)))).encode()


def prepare_classifier(part: ModelPart, steps: int) -> bytes:
    """A model of the recognizer's final matrix product and its choice of classes, for `steps` time steps per run."""
    return bytes(rewrite.make_classifier(_parsed(part), steps).SerializeToString())


def read_head(version: ModelVersion, file: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights and bias of a recognizer's final matrix product. Raises BadModel if the file was removed."""
    return rewrite.read_head(onnx.load_from_string(version.read(file)))


def input_name(model: bytes) -> str:
    """The name of a prepared model's only input."""
    return str(onnx.load_from_string(model).graph.input[0].name)


def load(part: ModelPart) -> onnx.ModelProto:
    """Load the graph in a supported opset, its names prefixed so that new names cannot clash. Raises BadModel."""
    proto = _parsed(part)
    opset = rewrite.opset_of(proto)
    try:
        if opset < _OPSET:
            proto = version_converter.convert_version(proto, _OPSET)
        return compose.add_prefix(proto, _PREFIX)
    except (RuntimeError, *_REFUSALS) as error:
        raise BadModel(
            f"{part} has opset {opset}, and cannot be converted to {_OPSET}: {error}.", "Export it again."
        ) from error


def _parsed(part: ModelPart) -> onnx.ModelProto:
    try:
        proto = onnx.load_from_string(part.shipped)
    except DecodeError as error:
        raise BadModel(f"{part} is not a complete ONNX model: {error}.", "Copy the file again.") from error
    if len(proto.graph.input) != 1 or not proto.graph.output:
        inputs = len(proto.graph.input)
        raise BadModel(f"{part} has {inputs} inputs, but the engine ppocr needs one.", "Export it for inference.")
    if has_external_weights(proto):
        raise BadModel(f"{part} has weights in another file, which is not supported.", "Save it as one file.")
    return proto


def _run_shipped(part: ModelPart, proto: onnx.ModelProto, noise: Array) -> Array:
    """Run the original graph on noise. Raises BadModel if it cannot run, or its output shows another kind of model."""
    try:
        shipped: Array = _run(proto, noise)[0]
    except session_errors() as error:
        raise BadModel(
            f"{part} does not run on an input of {noise.shape}: {error}",
            "Check that the file is complete, that batch and width are dynamic, and height_px in model.toml.",
        ) from error
    if part.kind == DETECTION and shipped.shape != (1, 1, *noise.shape[2:]):
        raise BadModel(
            f"{part} returns {shipped.shape} for an input of {noise.shape}, but a detector returns a map of its size.",
            "Name the detector in [detection].",
        )
    if part.kind != DETECTION and (shipped.ndim != 3 or len(shipped) != 1 or not shipped.size):
        raise BadModel(
            f"{part} returns {shipped.shape}, but a recognizer returns (1, steps, classes).",
            "Name the recognizer in [[recognition]].",
        )
    return shipped


def _rewrite_detector(
    part: ModelPart, proto: onnx.ModelProto, noise: Array, shipped: Array, *, batched: bool, openvino: bool
) -> onnx.ModelProto:
    made = _applied(proto, rewrite.zero_subnormal_weights)
    if not batched:
        # Number of channels in a block of ONNX Runtime's convolutions on this CPU; OpenVINO's need no whole blocks.
        block = 1 if openvino else 16 if b" avx512f " in cpu_features() else 8
        for rewriting in (
            memory_layout.drop_identities,
            memory_layout.drop_unread_channels,
            memory_layout.average_by_pooling,
            memory_layout.add_one_before_scaling,
            memory_layout.deconvolve_in_phases,
            partial(memory_layout.pad_stem_channels, block=block),
        ):
            made = _applied(made, rewriting)
    outputs = _try(made, noise)
    if outputs is not None and _are_alike(outputs[0], shipped):
        return made
    LOG.warning("%s: its graph is not rewritten, because the results would differ.", part)
    return proto


def _rewrite_recognizer(
    part: ModelPart, proto: onnx.ModelProto, noise: Array, shipped: Array, *, batched: bool, openvino: bool
) -> onnx.ModelProto:
    classes, sums = shipped.shape[2], shipped.sum(axis=2)
    shares = bool((shipped >= 0).all() and np.abs(sums - 1).max() < MAX_DIFFERENCE)
    expected = shipped if shares else _softmax(shipped)
    plain = _applied(proto, rewrite.zero_subnormal_weights)
    if not batched:
        plain = _applied(plain, memory_layout.drop_identities)
    # First try the rewrite for a graph that ends in a matrix product, then the rewrite for any other graph.
    of_scores = partial(rewrite.add_argmax_to_scores, classes=classes, shares=shares, batched=batched)
    of_product = rewrite.add_argmax_batched if batched else rewrite.add_argmax
    for has_product, rewriting in ((True, of_product), (False, of_scores)):
        made = deepcopy(plain)
        made.metadata_props.add(key=CLASSES, value=str(classes))
        if has_product:
            made.metadata_props.add(key=PRODUCT, value="yes")
        if _apply(made, rewriting) and _reads_alike(_try(made, noise), expected, batched=batched):
            return _applied(plain, rewrite.keep_features) if openvino and has_product else made
    raise BadModel(f"{part}: its output {shipped.shape} has no classes to choose from.", "Export it for inference.")


def _properties(proto: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _applied(proto: onnx.ModelProto, rewriting: Rewriting) -> onnx.ModelProto:
    """A rewritten copy of the model; the model itself if the rewrite does not apply."""
    copy = deepcopy(proto)
    return copy if _apply(copy, rewriting) else proto


def _apply(proto: onnx.ModelProto, rewriting: Rewriting) -> bool:
    """Rewrite in place; returns whether the rewrite applies. If not, the model may be half rewritten."""
    try:
        rewriting(proto)
    except _REFUSALS as refusal:
        LOG.debug("A rewrite does not apply: %s", refusal)
        return False
    return True


def _try(proto: onnx.ModelProto, noise: Array) -> Sequence[Array] | None:
    try:
        return _run(proto, noise)
    except session_errors() as error:
        LOG.debug("A rewritten model does not run: %s", error)
        return None


def _run(proto: onnx.ModelProto, noise: Array) -> Sequence[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=[CPU])
    return cast("Sequence[Array]", session.run(None, {proto.graph.input[0].name: noise}))


def _reads_alike(outputs: Sequence[Array] | None, expected: Array, *, batched: bool) -> bool:
    """Whether a rewritten graph's classes, probabilities and logits agree with the expected probabilities (1, T, C)."""
    if outputs is None:
        return False
    best, shares, logits = (output[0] if batched else output for output in outputs)
    (probabilities,) = expected
    if best.shape != (len(probabilities),) or logits.shape != probabilities.shape:
        return False
    chosen = np.take_along_axis(probabilities, best[:, None], axis=1)[:, 0]
    at = slice(None) if batched else first_steps(best)
    return (
        _are_alike(chosen, probabilities.max(axis=1))
        and _are_alike(shares, chosen[at])
        and _are_alike(_softmax(logits), probabilities)
    )


def _are_alike(output: Array, expected: Array) -> bool:
    return output.shape == expected.shape and bool(np.abs(output - expected).max(initial=0) <= MAX_DIFFERENCE)


def _softmax(scores: Array) -> Array:
    shifted: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return cast(Array, shifted / shifted.sum(axis=-1, keepdims=True))
