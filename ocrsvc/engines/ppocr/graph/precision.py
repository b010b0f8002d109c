"""Converts a model to half precision, or its large matrix products to int8.

**Half precision** uses ONNX Runtime's converter (onnxruntime/transformers/float16.py). Inputs, outputs and the
recognizer's end (the product with 18,710 classes, argmax and softmax) stay float32: fp16 scores have eleven bits, so
many classes would tie. Between two float32 nodes, the converter casts values to half precision and back, where squares
would overflow; these pairs of casts are removed.

**Int8** quantises the 1 x 1 convolutions over whole planes, which are matrix products with channels last, and the
product that scores the classes: together two thirds of the recognizer's time. Weights are rounded once, with a scale
per output channel; activations are rounded in each run, by their actual range. Fixed ranges, from extremes or
percentiles, changed the text of twice as many lines. Other operations between two such products (GELU, sums,
squeeze-and-excitation scales) stay float32 in the same layout, which avoids transposes.
"""

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ocrsvc.engines.ppocr.graph.memory_layout import attributes_of, replace_nodes

# Operators that stay float32. Squares of values from 256 on overflow half precision, whose maximum is 65,504.
_FP32_OPERATORS: Final = ("Pow", "ReduceMean", "Sqrt", "Range", "Max", "Min")
MIN_CHANNELS: Final = 96  # fewest input and output channels for int8; with fewer it gains nothing
_CHANNELS_LAST: Final = (0, 2, 3, 1)
_CHANNELS_FIRST: Final = (0, 3, 1, 2)
_MICROSOFT: Final = "com.microsoft"
_BY_ELEMENT: Final = frozenset({"Add", "Mul", "Div", "Erf", "Relu"})
_POOLS: Final = frozenset({"ReduceMean", "GlobalAveragePool"})
_OF_POOLED: Final = frozenset({"Conv", "Add", "Relu", "HardSigmoid", "Sigmoid"})

Weights = NDArray[np.float32]


def to_fp16(proto: onnx.ModelProto, scores: str) -> onnx.ModelProto:
    """Convert a model to half precision, except its end, from the product for `scores` on. Changes `proto`."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    head = _detach_head(proto.graph, scores)
    half: onnx.ModelProto = convert_float_to_float16(proto, keep_io_types=True, op_block_list=list(_FP32_OPERATORS))
    _remove_cast_pairs(half.graph)
    if head is not None:
        nodes, weights, outputs = head
        half.graph.node.extend(nodes)
        half.graph.initializer.extend(weights)
        del half.graph.output[:]
        half.graph.output.extend(outputs)
    return half


# Nodes, weights and outputs of the graph's end, detached because it stays in single precision.
Head = tuple[list[onnx.NodeProto], list[onnx.TensorProto], list[onnx.ValueInfoProto]]


def _detach_head(graph: onnx.GraphProto, scores: str) -> Head | None:
    """Cut the graph before the final product, so that it returns that product's inputs; returns the part cut off."""
    producers = {output: node for node in graph.node for output in node.output}
    if scores not in producers:
        return None
    product = next(
        producers[name] for name in producers[scores].input if name in producers and producers[name].op_type == "MatMul"
    )
    reached = {product.output[0]}
    nodes = [product]
    for node in graph.node:  # nodes are in topological order
        if reached.intersection(node.input):
            reached.update(node.output)
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    weights, outputs = [weight for weight in graph.initializer if weight.name in read], list(graph.output)
    inputs = sorted(name for name in read - reached if name in producers)
    for weight in weights:
        graph.initializer.remove(weight)
    for node in nodes:
        graph.node.remove(node)
    # Remove the declared types of the detached nodes' outputs, which the converter would change to half precision.
    for value in [value for value in graph.value_info if value.name in reached]:
        graph.value_info.remove(value)
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs)
    return nodes, weights, outputs


def _remove_cast_pairs(graph: onnx.GraphProto) -> None:
    """Connect nodes past pairs of casts that convert a float32 value to half precision and back."""
    casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast"}
    original = {
        node.output[0]: casts[node.input[0]].input[0]
        for node in casts.values()
        if node.input[0] in casts and attributes_of(node)["to"] == TensorProto.FLOAT
    }
    for node in graph.node:
        node.input[:] = [original.get(name, name) for name in node.input]
    read = {output.name for output in graph.output}.union(*(node.input for node in graph.node))
    for node in [node for node in graph.node if node.op_type == "Cast" and node.output[0] not in read]:
        graph.node.remove(node)


def quantize(proto: onnx.ModelProto, min_channels: int = MIN_CHANNELS) -> int:
    """Convert large matrix products and convolutions to int8, in place; returns their number.

    The model must read one line per run, use opset 11 and have no Identity nodes.
    """
    del proto.graph.value_info[:]
    rewriter = _Int8Rewriter(proto, min_channels)
    rewriter.run()
    if rewriter.count:
        proto.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    return rewriter.count


def round_weights(weights: Weights) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize (C, K) float32 weights to int8, with a (K,) scale per output channel; weights are about int8 * scale."""
    scales = np.maximum(np.abs(weights).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.round(weights / scales).astype(np.int8), scales.astype(np.float32)


class _Int8Rewriter:
    """Writes a graph's nodes anew, in order, and tracks in which memory layouts each tensor exists."""

    def __init__(self, proto: onnx.ModelProto, min_channels: int) -> None:
        self._proto, self._least = proto, min_channels
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        # Tensors with one value per channel: products with them are cheap and not converted.
        self._pooled: set[str] = set()
        for node in proto.graph.node:
            if node.op_type in _POOLS or (node.op_type in _OF_POOLED and node.input[0] in self._pooled):
                self._pooled.update(node.output)
        self._last: dict[str, str] = {}  # tensor name -> name of its copy with channels last
        self._only_last: set[str] = set()  # tensors that exist only with channels last
        self._written: list[onnx.NodeProto] = []
        self.count = 0

    def run(self) -> None:
        """Replace the model's nodes by int8 nodes where possible."""
        fused: set[int] = set()
        for node in self._proto.graph.node:
            if id(node) in fused:
                continue
            if self._is_plain_gemm(node):
                self._to_first(node.input[0])
                weights, added = (self._constants[name] for name in node.input[1:])
                self._write_product(node.input[0], weights, added, node.output[0])
            elif self._is_quantizable(node):
                bias = self._bias_after(node)
                fused.update([id(bias)] if bias is not None else [])
                self._write_convolution(node, bias)
            elif self._stays_last(node):
                inputs = [name if name in self._constants else self._to_last(name) for name in node.input]
                self._written.append(helper.make_node(node.op_type, inputs, [self._made_last(node.output[0])]))
            else:
                for name in node.input:
                    self._to_first(name)
                self._written.append(node)
        for output in self._proto.graph.output:
            self._to_first(output.name)
        replace_nodes(self._proto, self._written)

    def _is_quantizable(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Conv" or node.input[1] not in self._constants or node.input[0] in self._pooled:
            return False
        shape = self._constants[node.input[1]].shape
        attributes = attributes_of(node)
        plain = (
            attributes.get("group", 1) == 1
            and set(attributes.get("strides", [1])) == {1}
            and not any(attributes.get("pads", [0]))
        )
        return shape[2:] == (1, 1) and plain and min(shape[:2]) >= self._least

    def _bias_after(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The node that adds one constant per channel, if nothing else reads this convolution's output."""
        readers = self._readers.get(node.output[0], [])
        if len(node.input) > 2 or len(readers) != 1 or readers[0].op_type != "Add":
            return None
        added = self._constants.get(readers[0].input[1])
        channels = self._constants[node.input[1]].shape[0]
        return readers[0] if added is not None and added.shape == (1, channels, 1, 1) else None

    def _is_plain_gemm(self, node: onnx.NodeProto) -> bool:
        """Whether the node multiplies rows by a constant matrix and adds a constant."""
        if node.op_type != "Gemm" or attributes_of(node) or len(node.input) < 3:
            return False
        return all(name in self._constants for name in node.input[1:])

    def _write_convolution(self, node: onnx.NodeProto, bias: onnx.NodeProto | None) -> None:
        weights = self._constants[node.input[1]][:, :, 0, 0].T
        added = np.zeros(weights.shape[1], np.float32)
        if bias is not None or len(node.input) > 2:
            added = self._constants[bias.input[1] if bias is not None else node.input[2]].reshape(-1)
        self._write_product(self._to_last(node.input[0]), weights, added, self._made_last((bias or node).output[0]))

    def _write_product(self, rows: str, weights: Weights, bias: Weights, output: str) -> None:
        rounded, scales = round_weights(weights)
        constants: dict[str, NDArray[Any]] = {"w": rounded, "s": scales, "z": np.zeros(len(scales), np.int8), "b": bias}
        inputs = [f"eight.{self.count}.{name}" for name in constants]
        self._proto.graph.initializer.extend(
            numpy_helper.from_array(np.ascontiguousarray(value), name)
            for name, value in zip(inputs, constants.values(), strict=True)
        )
        self._written.append(helper.make_node("DynamicQuantizeMatMul", [rows, *inputs], [output], domain=_MICROSOFT))
        self.count += 1

    def _stays_last(self, node: onnx.NodeProto) -> bool:
        """Whether to run an elementwise node with channels last: its input is stored so, or an int8 product follows."""
        constants = [self._constants[name] for name in node.input if name in self._constants]
        if node.op_type not in _BY_ELEMENT or any(constant.size != 1 for constant in constants):
            return False
        for_product = any(self._is_quantizable(reader) for reader in self._readers.get(node.output[0], []))
        return for_product or any(name in self._only_last for name in node.input)

    def _made_last(self, name: str) -> str:
        """Register a tensor that exists only with channels last; returns its name in that layout."""
        self._last[name] = f"{name}.last"
        self._only_last.add(name)
        return self._last[name]

    def _to_last(self, name: str) -> str:
        if name not in self._last:
            self._last[name] = f"{name}.last"
            self._written.append(helper.make_node("Transpose", [name], [self._last[name]], perm=_CHANNELS_LAST))
        return self._last[name]

    def _to_first(self, name: str) -> None:
        if name in self._only_last:
            self._only_last.remove(name)
            self._written.append(helper.make_node("Transpose", [self._last[name]], [name], perm=_CHANNELS_FIRST))
