"""How is a model made to compute in half precision? ONNX Runtime's own conversion, but for what decides.

Its inputs and outputs stay float32, and so does the recogniser's end: the product with 18,710 classes, the choice of
the greatest and the shares. Scores in half precision have eleven bits, and many a class would tie with its neighbour.
The conversion ships inside onnxruntime (transformers/float16.py) and is kept up with it, unlike the package
onnxconverter-common that it came from.
"""

from __future__ import annotations

from typing import Final

import onnx

# Squares and their means overflow half precision (65,504) from 256 on.
_WHOLE_OPERATORS: Final = ("Pow", "ReduceMean", "Sqrt", "Range", "Max", "Min")


def halve(proto: onnx.ModelProto, scores: str) -> onnx.ModelProto:
    """The same model in half precision; `proto` may be changed.

    Args:
        proto: The model.
        scores: The name of the sum of a product and a bias from which on it decides, if there is one.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"node.{number}"
    whole = _deciding(proto, scores)
    converted: onnx.ModelProto = convert_float_to_float16(
        proto, keep_io_types=True, op_block_list=list(_WHOLE_OPERATORS), node_block_list=sorted(whole)
    )
    return converted


def _deciding(proto: onnx.ModelProto, scores: str) -> set[str]:
    """The names of the nodes from the last product on; none where there are no such scores."""
    makers = {output: node for node in proto.graph.node for output in node.output}
    if scores not in makers:
        return set()
    product = next(makers[name] for name in makers[scores].input if name in makers and makers[name].op_type == "MatMul")
    reached, names = {product.output[0]}, {product.name}
    for node in proto.graph.node:  # every node comes after those that it reads
        if reached.intersection(node.input):
            reached.update(node.output)
            names.add(node.name)
    return names
