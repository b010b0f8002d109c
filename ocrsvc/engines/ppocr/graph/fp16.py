"""Converts a model to half precision by ONNX Runtime's own converter, except for the layers that decide.

Its inputs and outputs stay float32, and so does the recognizer's end: the product with 18,710 classes, the choice of
the greatest and the softmax. Scores in half precision have eleven bits, and many a class would tie with its neighbour.
The converter ships inside onnxruntime (transformers/float16.py) and is kept up with it, unlike the package
onnxconverter-common that it came from. It casts a value that passes from one float32 node to the next to half precision
and back, where squares would overflow after all; those pairs of casts are removed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx
from onnx import TensorProto, helper

from ocrsvc.engines.ppocr.graph.memory_layout import attributes_of

# Squares and their means overflow half precision (65,504) from 256 on.
_FP32_OPERATORS: Final = ("Pow", "ReduceMean", "Sqrt", "Range", "Max", "Min")


@dataclass(frozen=True, slots=True)
class _DetachedHead:
    """What was taken off a graph, to be put back."""

    nodes: list[onnx.NodeProto]
    weights: list[onnx.TensorProto]
    outputs: list[onnx.ValueInfoProto]


def to_fp16(proto: onnx.ModelProto, scores: str) -> onnx.ModelProto:
    """The same model in half precision but from `scores` on, the sum of a product and a bias. Changes `proto`."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    head = _detach_head(proto.graph, scores)
    converted: onnx.ModelProto = convert_float_to_float16(
        proto, keep_io_types=True, op_block_list=list(_FP32_OPERATORS)
    )
    _remove_cast_pairs(converted.graph)
    if head is not None:
        converted.graph.node.extend(head.nodes)
        converted.graph.initializer.extend(head.weights)
        del converted.graph.output[:]
        converted.graph.output.extend(head.outputs)
    return converted


def _detach_head(graph: onnx.GraphProto, scores: str) -> _DetachedHead | None:
    """The nodes from the last product on, and what only they read; what they are fed becomes the output."""
    producers = {output: node for node in graph.node for output in node.output}
    if scores not in producers:
        return None
    product = next(
        producers[name] for name in producers[scores].input if name in producers and producers[name].op_type == "MatMul"
    )
    reached = {product.output[0]}
    nodes = [product]
    for node in graph.node:  # every node comes after those that it reads
        if reached.intersection(node.input):
            reached.update(node.output)
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    head = _DetachedHead(nodes, [weight for weight in graph.initializer if weight.name in read], list(graph.output))
    inputs = sorted(name for name in read - reached if name in producers)
    for weight in head.weights:
        graph.initializer.remove(weight)
    for node in nodes:
        graph.node.remove(node)
    # What is known of their types would be made half precision with the rest.
    for value in [value for value in graph.value_info if value.name in reached]:
        graph.value_info.remove(value)
    del graph.output[:]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs)
    return head


def _remove_cast_pairs(graph: onnx.GraphProto) -> None:
    """Where a float32 value is cast to half precision and back, let its readers have the value itself."""
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
