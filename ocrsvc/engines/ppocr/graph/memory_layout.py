"""Rewrites a model's graph for the CPU: the memory layout of the kernels, and no sums of zeros.

Results change by rounding only. ONNX Runtime's convolutions work on blocks of channels (layout NCHWc: 16 channels with
AVX-512, otherwise at most 8). If a neighbouring node does not use this layout, or the channels do not fill a block,
whole planes are copied from one layout to the other; in the detector that takes as long as its smaller convolutions.
"""

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_ELEMENTWISE: Final = ("Add", "Div", "Erf", "Mul", "Relu")
_WHOLE_BLOCK: Final = 16  # keep a multiple of this many channels
_DECONVOLUTIONS: Final = ("ConvTranspose", "Add", "Relu", "ConvTranspose", "Add", "Sigmoid")

Weights = NDArray[np.float32]


def drop_identities(proto: onnx.ModelProto) -> None:
    """Remove Identity nodes, because the other rewrites look for directly connected nodes."""
    outputs = {output.name for output in proto.graph.output}
    renamed: dict[str, str] = {}
    kept = []
    for node in proto.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Identity" and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    replace_nodes(proto, kept)


def drop_unread_channels(proto: onnx.ModelProto) -> None:
    """Remove a 1x1 convolution's output channels that the next 1x1 convolution multiplies by zero.

    In the PP-OCRv6 small detector these are 690 of 1,536 channels in its last two pairs of convolutions. Raises
    ValueError and KeyError for other graphs.
    """
    graph = _Graph(proto)
    for node in filter(_is_pointwise, proto.graph.node):
        weights = graph.value(node.input[1])
        is_read = weights.any(axis=(0, 2, 3))
        count = max(1, -(-int(is_read.sum()) // _WHOLE_BLOCK)) * _WHOLE_BLOCK
        if count < weights.shape[1]:
            kept = np.sort(np.argsort(~is_read, kind="stable")[:count])
            for name, axis in graph.channel_constants(node):
                graph.replace(name, graph.value(name).take(kept, axis))
            graph.replace(node.input[1], weights[:, kept])


def _is_pointwise(node: onnx.NodeProto) -> bool:
    """Whether a node is a 1x1 convolution of all channels."""
    if node.op_type != "Conv":
        return False
    attributes = attributes_of(node)
    return attributes.get("kernel_shape") == [1, 1] and attributes.get("group", 1) == 1


def average_by_pooling(proto: onnx.ModelProto) -> None:
    """Replace means over whole planes by GlobalAveragePool, which supports the blocked layout."""
    for node in proto.graph.node:
        if node.op_type == "ReduceMean" and attributes_of(node) == {"axes": [2, 3], "keepdims": 1}:
            node.op_type = "GlobalAveragePool"
            del node.attribute[:]


def add_one_before_scaling(proto: onnx.ModelProto) -> None:
    """Replace x + x * s by x * (s + 1), which adds one number per channel instead of whole planes."""
    graph = _Graph(proto)
    for node in proto.graph.node:
        scaled = graph.scaled_summand(node)
        if scaled is None:
            continue
        plane = next(name for name in node.input if name != scaled.output[0])
        scale = next(name for name in scaled.input if name != plane)
        raised = f"{scaled.output[0]}.raised"
        scaled.CopyFrom(helper.make_node("Add", [scale, graph.constant("one", np.ones((1, 1, 1, 1)))], [raised]))
        node.CopyFrom(helper.make_node("Mul", [plane, raised], list(node.output)))


def deconvolve_in_phases(proto: onnx.ModelProto) -> None:
    """Replace the detector's final two deconvolutions by two 1 x 1 convolutions and DepthToSpace.

    This is possible because a 2 x 2 deconvolution with stride 2 computes four output pixels from a single input pixel.
    Raises ValueError for other graphs.
    """
    nodes = list(proto.graph.node)
    begin = len(nodes) - len(_DECONVOLUTIONS)
    tail = nodes[begin:]
    if tuple(node.op_type for node in tail) != _DECONVOLUTIONS:
        raise ValueError(f"the detector ends in {[node.op_type for node in tail]}, not two deconvolutions")
    graph = _Graph(proto)
    first, first_bias = graph.value(tail[0].input[1]), graph.value(tail[1].input[1]).reshape(-1)
    second, second_bias = graph.value(tail[3].input[1]), graph.value(tail[4].input[1]).reshape(-1)
    channels, middle = first.shape[:2]
    inner = first.transpose(2, 3, 1, 0).reshape(4 * middle, channels, 1, 1)
    # Axes, as row and column: the first deconvolution's outputs, the second's outputs, the second's inputs; channel.
    phases = np.zeros((2, 2, 2, 2, 2, 2, middle), np.float32)
    for row, column in np.ndindex(2, 2):
        phases[row, column, :, :, row, column] = second[:, 0].transpose(1, 2, 0)
    outer = phases.transpose(0, 2, 1, 3, 4, 5, 6).reshape(16, 4 * middle, 1, 1)
    weights = graph.constant("inner", inner), graph.constant("inner.bias", np.tile(first_bias, 4))
    further = graph.constant("outer", outer), graph.constant("outer.bias", np.repeat(second_bias, 16))
    added = [
        helper.make_node("Conv", [tail[0].input[0], *weights], ["phases.inner"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["phases.inner"], ["phases.relu"]),
        helper.make_node("Conv", ["phases.relu", *further], ["phases.outer"], kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["phases.outer"], ["phases"]),
        helper.make_node("DepthToSpace", ["phases"], list(tail[-1].output), blocksize=4, mode="CRD"),
    ]
    replace_nodes(proto, nodes[:begin] + added)


def pad_stem_channels(proto: onnx.ModelProto, block: int) -> None:
    """Pad the channels of the first four convolutions and the pooling to whole blocks, and remove the Concat node.

    Added channels are zero. The convolution of two concatenated inputs becomes the sum of two convolutions. Raises
    ValueError, StopIteration and KeyError for other graphs.
    """
    graph = _Graph(proto)
    joined = next(node for node in proto.graph.node if node.op_type == "Concat")
    (third,) = graph.readers[joined.output[0]]
    (bias,) = graph.readers[third.output[0]]
    first, inner, outer = [node for node in proto.graph.node if node.op_type == "Conv"][:3]
    split = graph.value(inner.input[1]).shape[1]
    weights = graph.value(third.input[1])
    if weights.shape[1] != 2 * split or len(joined.input) != 2:
        raise ValueError("the model's stem does not end in the concatenation of two branches")
    for convolution in (first, inner, outer):
        padded = padded_channels(graph.value(convolution.input[1]), 0, block)
        graph.replace(convolution.input[1], padded if convolution is first else padded_channels(padded, 1, block))
        (added,) = graph.readers[convolution.output[0]]
        graph.replace(added.input[1], padded_channels(graph.value(added.input[1]), 1, block))
    branches = []
    for number, name in enumerate(joined.input):
        part = padded_channels(weights[:, number * split : (number + 1) * split], 1, block)
        inputs = [name, graph.constant(f"stem.{number}", part)]
        if number == 0:
            inputs.append(graph.constant("stem.bias", graph.value(bias.input[1]).reshape(-1)))
        branches.append(helper.make_node("Conv", inputs, [f"stem.{number}.out"], **attributes_of(third)))
    total = helper.make_node("Add", [branch.output[0] for branch in branches], list(bias.output))
    replaced = {joined.output[0]: [], third.output[0]: branches, bias.output[0]: [total]}
    replace_nodes(proto, [new for node in proto.graph.node for new in replaced.get(node.output[0], [node])])


def padded_channels(weights: Weights, axis: int, block: int) -> Weights:
    """Append zeros along an axis, so that its length is a multiple of `block`."""
    missing = [(0, -weights.shape[axis] % block if place == axis else 0) for place in range(weights.ndim)]
    return np.pad(weights, missing)


class _Graph:
    """Finds the nodes that read or produce a tensor, and constants, by name."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        del proto.graph.value_info[:]  # removes declared shapes, which the rewrites change
        self._graph = proto.graph
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._producers = {name: node for node in proto.graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def value(self, name: str) -> Weights:
        """The value of a constant."""
        return numpy_helper.to_array(self._constants[name])

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a float32 constant, if none with this name was added before; returns its name in the graph."""
        name = f"layout.{name}"
        if name not in self._constants:
            tensor = numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
            self._graph.initializer.append(tensor)
            self._constants[name] = tensor
        return name

    def scaled_summand(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """If the node is an addition x + x * s, return the node that computes x * s."""
        if node.op_type != "Add":
            return None
        for name, other in (node.input, node.input[::-1]):
            producer: onnx.NodeProto | None = self._producers.get(name)
            if producer is None or producer.op_type != "Mul" or len(self.readers[name]) > 1:
                continue
            if other in producer.input:
                return producer
        return None

    def channel_constants(self, reader: onnx.NodeProto) -> list[tuple[str, int]]:
        """The constants with a value per input channel of `reader`, and their channel axes, back to a 1x1 convolution.

        Raises ValueError if something else makes these channels, or other nodes read them too.
        """
        found: dict[str, int] = {}
        nodes = {reader.output[0]: reader}
        names = [reader.input[0]]
        while names:
            node = self._producers[names.pop()]
            nodes[node.output[0]] = node
            constants = [name for name in node.input if name in self._constants]
            if _is_pointwise(node):
                found |= dict.fromkeys(constants, 0)
            elif node.op_type in _ELEMENTWISE:
                found |= {name: 1 for name in constants if self.value(name).size > 1}
                names += [name for name in node.input if name not in self._constants and name not in nodes]
            else:
                raise ValueError(f"{node.op_type} makes the channels that {reader.name} does not read")
        readers = (other for name in nodes if name != reader.output[0] for other in self.readers[name])
        if any(other.output[0] not in nodes for other in readers):
            raise ValueError(f"other nodes read the channels that {reader.name} does not read")
        return list(found.items())

    def replace(self, name: str, value: Weights) -> None:
        """Change the value of a constant."""
        self._constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def replace_nodes(proto: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Replace the graph's nodes, and delete the constants that no node reads any more."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    read = {name for node in copies for name in node.input}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node, by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
