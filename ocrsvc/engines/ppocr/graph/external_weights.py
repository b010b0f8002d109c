"""Finds ONNX models whose weights are in other files, wherever in the graph they are named.

OpenVINO, given a model in memory, reads such files below the folder that the process runs in, be that `/`: a model
would hold what is in the files of others, and no manifest would say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

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
