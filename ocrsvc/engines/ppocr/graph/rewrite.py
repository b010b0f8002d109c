"""Graph rewrites: zero subnormal weights, and let the recognizer's graph choose the class of each step.

Results do not change: the detector's output stays bit-identical, and the recognizer chooses the class with the greatest
score; if several are equal, the first one. See also memory_layout.py and precision.py.
"""

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

BEST: Final = "best"
PROBABILITIES: Final = "sure"
LOGITS: Final = "logits"
FEATURES: Final = "features"
BEGINS: Final = "begins"
IMPOSSIBLE: Final = -1e30  # score of the classes that are added as padding
# Smaller weights become zero: far above the subnormal range (1.2e-38), too small to change a float32 output.
NEGLIGIBLE: Final = 1e-30
_BLOCK: Final = 4096
_MAX_BLOCKS: Final = 64
# First opset in which an operator's axes are an input instead of an attribute.
_AXES_ARE_INPUTS: Final = {"Squeeze": 13, "Unsqueeze": 13, "ReduceMax": 18}
# Classes per block if classes are padded: a multiple of the vector size, and about the square root of 18,710.
_CLASSES: Final = 128


def zero_subnormal_weights(proto: onnx.ModelProto) -> None:
    """Set negligible weights to zero; 250,000 of the detector's weights are subnormal floats.

    x86 CPUs compute with subnormal numbers in slow microcode: with these weights, a 736 x 992 page takes 1,010 ms on
    one AVX-512 core, 700 of these in two 1x1 convolutions; without them 310 ms, with bit-identical output.
    """
    for tensor in proto.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        weights = numpy_helper.to_array(tensor)
        negligible = (np.abs(weights) < NEGLIGIBLE) & (weights != 0)
        if negligible.any():
            tensor.CopyFrom(numpy_helper.from_array(np.where(negligible, np.float32(0), weights), tensor.name))


def add_argmax(proto: onnx.ModelProto) -> None:
    """Choose the class of each step inside the recognizer, so that its 18,710 scores per step are not returned.

    Instead of probabilities (1, T, C) the graph returns, for one line: BEST (T,) int64, the class of each step;
    PROBABILITIES (N,) float32, of each character at its first step; LOGITS (T, C), which cost nothing unless they are
    requested. The softmax is computed for those first steps only, and the bias is added inside the product. Raises
    ValueError if the graph does not end in product, bias and softmax as PP-OCR's recognizer does.
    """
    product, add_bias = _find_head(proto)
    features, weights, bias = product.input[0], product.input[1], add_bias.input[1]
    classes = next(tensor.dims[0] for tensor in proto.graph.initializer if tensor.name == bias)
    head = _Head(proto)
    rows = head.add_along("Squeeze", features, 0)
    logits = head.add("Gemm", rows, weights, bias, output=LOGITS)
    best = head.two_stage_argmax(logits, classes, _blocks_of(classes))
    head.add_probabilities(logits, best)
    _put_outputs(proto, _outputs(batched=False))


def keep_features(proto: onnx.ModelProto) -> None:
    """Cut off the recognizer's final matrix product: return FEATURES (T, F) of one line, for `make_classifier`."""
    product, _ = _find_head(proto)
    _Head(proto).add_along("Squeeze", product.input[0], 0, output=FEATURES)
    _put_outputs(proto, ((FEATURES, TensorProto.FLOAT, 2),))


def make_classifier(proto: onnx.ModelProto, rows: int) -> onnx.ModelProto:
    """Make a model of the part that `keep_features` cuts off; it classifies the steps of several lines together.

    From FEATURES (rows, F) and BEGINS (rows,) bool, true at the first step of each line, it computes BEST (rows,) and
    PROBABILITIES (N,) as `add_argmax` does; no character continues in the next line. Padding classes, which are never
    chosen, complete the last block, so both stages of the argmax compare about 140 values per step. Raises ValueError.
    """
    weights, bias = read_head(proto)
    blocks = math.ceil(len(bias) / _CLASSES)
    padding = blocks * _CLASSES - len(bias)
    model = helper.make_model(helper.make_graph([], "classifier", [], []), opset_imports=proto.opset_import)
    model.graph.input.append(helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, [rows, len(weights)]))
    model.graph.input.append(helper.make_tensor_value_info(BEGINS, TensorProto.BOOL, [rows]))
    head = _Head(model)
    product = head.constant(np.pad(weights, ((0, 0), (0, padding))))
    logits = head.add("Gemm", FEATURES, product, head.constant(np.pad(bias, (0, padding), constant_values=IMPOSSIBLE)))
    best = head.two_stage_argmax(logits, blocks * _CLASSES, blocks)
    head.add_probabilities(logits, best, BEGINS)
    _put_outputs(model, ((BEST, TensorProto.INT64, 1), (PROBABILITIES, TensorProto.FLOAT, 1)))
    return model


def read_head(proto: onnx.ModelProto) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (F, C) and bias (C,) of the final matrix product: features @ weights + bias. Raises ValueError."""
    product, add_bias = _find_head(proto)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    weights, bias = (numpy_helper.to_array(constants[name]) for name in (product.input[1], add_bias.input[1]))
    return weights, bias


def add_argmax_batched(proto: onnx.ModelProto) -> None:
    """Like `add_argmax` for many lines per run on a GPU, where plain ArgMax and Softmax are fast.

    The graph returns BEST (N, T) int64, PROBABILITIES (N, T) float32 for each step's class, and LOGITS (N, T, C).
    """
    shares = proto.graph.output[0].name
    _, add_bias = _find_head(proto)
    before = add_bias.output[0]
    for node in proto.graph.node:
        node.input[:] = [LOGITS if name == before else name for name in node.input]
        node.output[:] = [LOGITS if name == before else name for name in node.output]
    head = _Head(proto)
    head.add("ArgMax", shares, output=BEST, axis=2, keepdims=0)
    head.add_along("ReduceMax", shares, 2, output=PROBABILITIES, keepdims=0)
    _put_outputs(proto, _outputs(batched=True))


def add_argmax_to_scores(proto: onnx.ModelProto, classes: int, *, shares: bool, batched: bool) -> None:
    """Like `add_argmax[_batched]`, for any output (N, T, classes), which has probabilities if `shares`, else scores."""
    head = _Head(proto)
    scores = _scores_before_softmax(proto) or proto.graph.output[0].name
    if shares and scores == proto.graph.output[0].name:
        least = head.constant(np.array(np.finfo(np.float32).tiny, np.float32))
        scores = head.add("Log", head.add("Max", scores, least))
    if batched:
        logits = head.add("Identity", scores, output=LOGITS)
        head.add("ArgMax", logits, output=BEST, axis=2, keepdims=0)
        head.add_along("ReduceMax", head.add("Softmax", logits, axis=2), 2, output=PROBABILITIES, keepdims=0)
    else:
        logits = head.add_along("Squeeze", scores, 0, output=LOGITS)
        head.add_probabilities(logits, head.two_stage_argmax(logits, classes, _blocks_of(classes)))
    _put_outputs(proto, _outputs(batched=batched))


def _scores_before_softmax(proto: onnx.ModelProto) -> str | None:
    """The input of the softmax over classes at the graph's end; None if the graph does not end in one."""
    producers = {output: node for node in proto.graph.node for output in node.output}
    try:
        softmax = _producer(producers, proto.graph.output[0].name, "Softmax")
    except ValueError:
        return None
    axis = next((attribute.i for attribute in softmax.attribute if attribute.name == "axis"), -1)
    return softmax.input[0] if axis in (2, -1) else None


def _outputs(*, batched: bool) -> tuple[tuple[str, int, int], ...]:
    ranks = (2, 2, 3) if batched else (1, 1, 2)
    kinds = (TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT)
    return tuple(zip((BEST, PROBABILITIES, LOGITS), kinds, ranks, strict=True))


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ONNX's standard operators that a model uses."""
    return next((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), 1)


def _blocks_of(classes: int) -> int:
    """Number of equally large blocks of classes for the two-stage argmax."""
    return next((count for count in range(classes // _BLOCK + 1, _MAX_BLOCKS) if classes % count == 0), 1)


def _put_outputs(proto: onnx.ModelProto, kinds: Iterable[tuple[str, int, int]]) -> None:
    """Replace the graph's outputs, given as name, element type and rank, and remove nodes that are not needed."""
    del proto.graph.output[:]
    for name, kind, dims in kinds:
        proto.graph.output.append(helper.make_tensor_value_info(name, kind, [None] * dims))
    used = {output.name for output in proto.graph.output}
    kept = []
    for node in reversed(proto.graph.node):  # nodes are visited in reverse topological order
        if used.intersection(node.output):
            used.update(node.input)
            kept.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(kept))


def _find_head(proto: onnx.ModelProto) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """The final matrix product, and the node that adds its bias and feeds the softmax. Raises ValueError."""
    producers = {output: node for node in proto.graph.node for output in node.output}
    softmax = _producer(producers, proto.graph.output[0].name, "Softmax")
    add_bias = _producer(producers, softmax.input[0], "Add")
    return _producer(producers, add_bias.input[0], "MatMul"), add_bias


def _producer(producers: dict[str, onnx.NodeProto], name: str, kind: str) -> onnx.NodeProto:
    """The node that produces `name`, skipping Identity nodes. Raises ValueError if it is of another kind."""
    node = producers[name]
    while node.op_type == "Identity" and node.input[0] in producers:
        node = producers[node.input[0]]
    if node.op_type != kind:
        raise ValueError(f"the recognizer's {name} comes from {node.op_type} {node.name}, not from {kind}")
    return node


class _Head:
    """Appends nodes to the end of a graph of opset 11 or later."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._graph = proto.graph
        self._opset = opset_of(proto)
        self._count = 0

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        name = output or self._name()
        self._graph.node.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def add_along(self, kind: str, value: str, axis: int, output: str | None = None, **attributes: Any) -> str:
        """Append a node that works along one axis (an attribute or, in later opsets, an input); returns its output."""
        if self._opset < _AXES_ARE_INPUTS[kind]:
            return self.add(kind, value, output=output, axes=[axis], **attributes)
        return self.add(kind, value, self.constant([axis]), output=output, **attributes)

    def constant(self, value: ArrayLike) -> str:
        """Add a constant, an array or numbers, which become int64; returns its name."""
        name = self._name()
        array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"head.{self._count}"

    def two_stage_argmax(self, scores: str, classes: int, blocks: int) -> str:
        """(T,) ArgMax of (T, classes) in two stages, because ONNX Runtime vectorises ReduceMax but not ArgMax."""
        blocked = self.add("Reshape", scores, self.constant([-1, blocks, classes // blocks]))
        greatest = self.add_along("ReduceMax", blocked, 2, keepdims=0)
        block = self.add("ArgMax", greatest, axis=1, keepdims=1)
        count = self.add("Gather", self.add("Shape", greatest), self.constant(0), axis=0)
        rows = self.add("Range", self.constant(0), count, self.constant(1))
        place = self.add("Concat", self.add_along("Unsqueeze", rows, 1), block, axis=1)
        inside = self.add("ArgMax", self.add("GatherND", blocked, place), axis=1, keepdims=0)
        before = self.add("Mul", self.add_along("Squeeze", block, 1), self.constant(classes // blocks))
        return self.add("Add", before, inside, output=BEST)

    def add_probabilities(self, scores: str, best: str, begins: str | None = None) -> None:
        """Add PROBABILITIES (N,), one per run of equal classes except blank (0); `begins` (T,) also starts runs."""
        all_but_last = self.add("Slice", best, self.constant([0]), self.constant([-1]))
        before = self.add("Concat", self.constant([0]), all_but_last, axis=0)
        changed = self.add("Not", self.add("Equal", best, before))
        changed = self.add("Or", changed, begins) if begins is not None else changed
        not_blank = self.add("Greater", best, self.constant(0))
        first = self.add_along("Squeeze", self.add("NonZero", self.add("And", changed, not_blank)), 0)
        shares = self.add("Softmax", self.add("Gather", scores, first, axis=0), axis=1)
        self.add_along("ReduceMax", shares, 1, output=PROBABILITIES, keepdims=0)
