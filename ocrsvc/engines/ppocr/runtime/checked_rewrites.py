"""Rewrites the graphs of models, those that come with the engine and others; what does not apply to one is left out.

What was rewritten is run beside the file as it came, on noise, and must give the same but for rounding; a graph that
looks as the rewrites want it and is another runs as it came. That takes a fraction of a second, once: the model cache
keeps what was prepared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import compose, version_converter

from ocrsvc.engines.ppocr.graph import memory_layout, rewrite
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, ModelPart
from ocrsvc.engines.ppocr.runtime.models import channel_block, load_model, note_recognizer
from ocrsvc.engines.ppocr.runtime.openvino_session import first_steps
from ocrsvc.engines.ppocr.runtime.providers import CPU
from ocrsvc.engines.ppocr.runtime.session import SESSION_ERRORS
from ocrsvc.errors import BadModel

LOG: Final = logging.getLogger("ocrsvc.ppocr")

MOST_DIFFERENCE: Final = 1e-3
"""Of a probability: how far what was rewritten may be from the file as it came. Rounding makes 1e-5 of it."""

_OPSET: Final = 11  # the least that the rewrites write nodes for
_PREFIX: Final = "given."

_REFUSALS: Final = (ValueError, KeyError, IndexError, StopIteration)
"""What a rewrite raises on a graph that it is not made for."""

Rewriting = Callable[[onnx.ModelProto], None]
Array = NDArray[Any]


def rewritten(part: ModelPart, *, batched: bool, openvino: bool) -> onnx.ModelProto:
    """The model as it is run; see `models.prepare_model`. Raises BadModel."""
    proto = _load(part)
    noise = np.random.default_rng(1).uniform(-1, 1, part.smallest_shape).astype(np.float32)
    try:
        shipped: Array = _run(proto, noise)[0]
    except SESSION_ERRORS as error:
        raise BadModel(
            f"{part} does not run on an input of {noise.shape}: {error}",
            "Check that it is whole, that its batch and width are left open, and its height_px in model.toml.",
        ) from error
    if part.kind == DETECTION:
        if shipped.shape != (1, 1, *noise.shape[2:]):
            raise BadModel(
                f"{part} gives {shipped.shape} for an input of {noise.shape}, and a detector gives a map of its size.",
                "Name the detector in [detection].",
            )
        return _detector(part, proto, noise, shipped, batched=batched)
    if shipped.ndim != 3 or len(shipped) != 1 or not shipped.size:
        raise BadModel(
            f"{part} gives {shipped.shape}, and a recognizer gives (1, steps, classes).",
            "Name the recognizer in [[recognition]].",
        )
    return _recognizer(part, proto, noise, shipped, batched=batched, openvino=openvino)


def _load(part: ModelPart) -> onnx.ModelProto:
    """The graph, in an opset that the rewrites know, with names that none of theirs can be. Raises BadModel."""
    proto = load_model(part)
    if rewrite.opset_of(proto) >= _OPSET:
        return compose.add_prefix(proto, _PREFIX)
    try:
        return compose.add_prefix(version_converter.convert_version(proto, _OPSET), _PREFIX)
    except (RuntimeError, *_REFUSALS) as error:
        found = rewrite.opset_of(proto)
        raise BadModel(
            f"{part} is of opset {found}, and cannot be made one of {_OPSET}: {error}.", "Export it anew."
        ) from error


def _detector(
    part: ModelPart, proto: onnx.ModelProto, noise: Array, shipped: Array, *, batched: bool
) -> onnx.ModelProto:
    made = _applied(proto, rewrite.zero_subnormal_weights)
    if not batched:
        for rewriting in (memory_layout.drop_identities, *memory_layout.detector_rewrites(channel_block())):
            made = _applied(made, rewriting)
    found = _try(made, noise)
    if found is not None and _are_alike(found[0], shipped):
        return made
    LOG.warning("%s: its graph is not rewritten, because it would give something else.", part)
    return proto


def _recognizer(
    part: ModelPart, proto: onnx.ModelProto, noise: Array, shipped: Array, *, batched: bool, openvino: bool
) -> onnx.ModelProto:
    classes = shipped.shape[2]
    sums = shipped.sum(axis=2)
    shares = bool((shipped >= 0).all() and np.abs(sums - 1).max() < MOST_DIFFERENCE)
    expected = shipped if shares else _softmax(shipped)
    plain = _applied(proto, rewrite.zero_subnormal_weights)
    if not batched:
        plain = _applied(plain, memory_layout.drop_identities)
    for has_product, rewriting in _ways(classes, shares=shares, batched=batched):
        made = _copy(plain)
        note_recognizer(made, classes, has_product=has_product)
        if _apply(made, rewriting) and _reads_alike(_try(made, noise), expected, batched=batched):
            return _applied(plain, rewrite.keep_features) if openvino and has_product else made
    raise BadModel(f"{part}: no class can be chosen of what it gives, {shipped.shape}.", "Export it for inference.")


def _ways(classes: int, *, shares: bool, batched: bool) -> Iterator[tuple[bool, Rewriting]]:
    """How the choice of classes can be added: by the last product, or to the scores, whatever makes them."""
    yield True, rewrite.add_argmax_batched if batched else rewrite.add_argmax
    yield False, lambda proto: rewrite.add_argmax_to_scores(proto, classes, shares=shares, batched=batched)


def _applied(proto: onnx.ModelProto, rewriting: Rewriting) -> onnx.ModelProto:
    """A rewritten copy; the model itself where the rewrite does not apply."""
    copy = _copy(proto)
    return copy if _apply(copy, rewriting) else proto


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _apply(proto: onnx.ModelProto, rewriting: Rewriting) -> bool:
    """Whether the rewrite applies; where it does not, the model may be half rewritten."""
    try:
        rewriting(proto)
    except _REFUSALS as refusal:
        LOG.debug("A rewrite does not apply: %s", refusal)
        return False
    return True


def _try(proto: onnx.ModelProto, noise: Array) -> Sequence[Array] | None:
    """All outputs; None where it does not run."""
    try:
        return _run(proto, noise)
    except SESSION_ERRORS as error:
        LOG.debug("A rewritten model does not run: %s", error)
        return None


def _run(proto: onnx.ModelProto, noise: Array) -> Sequence[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=[CPU])
    found: Sequence[Array] = session.run(None, {proto.graph.input[0].name: noise})
    return found


def _reads_alike(found: Sequence[Array] | None, expected: Array, *, batched: bool) -> bool:
    """Whether classes, probabilities and logits are those of the (1, T, C) probabilities."""
    if found is None:
        return False
    best, shares, logits = (output[0] if batched else output for output in found)
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


def _are_alike(found: Array, expected: Array) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max(initial=0) <= MOST_DIFFERENCE)


def _softmax(scores: Array) -> Array:
    shifted: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return shares
