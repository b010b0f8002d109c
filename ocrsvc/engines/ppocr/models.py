"""Which models the ppocr engine runs, where their bytes come from, and what is mended in them before they run.

The files are package data of the `rapidocr` wheel (Apache-2.0; PP-OCRv6 small by the PaddlePaddle authors). The package
itself is never imported: only its folder is asked for.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ocrsvc.errors import EngineUnavailable

DETECTION = "PP-OCRv6_det_small.onnx"
RECOGNITION = "PP-OCRv6_rec_small.onnx"
NAME = "PP-OCRv6 small"

# Far above the subnormal range (1.2e-38) and far below any weight that can change an output in single precision.
NEGLIGIBLE = 1e-30


@dataclass(frozen=True, slots=True)
class Model:
    """A serialised ONNX graph and the metadata strings that came with it."""

    graph: bytes
    metadata: dict[str, str]


def load_model(name: str) -> Model:
    """Read a model from the wheel and mend it. Raises EngineUnavailable when the wheel or the file is missing."""
    proto = onnx.load(str(_models_folder() / name))
    _zero_subnormal_weights(proto)
    return Model(proto.SerializeToString(), {entry.key: entry.value for entry in proto.metadata_props})


def version() -> str:
    """The version of the wheel that the models came from."""
    return f"rapidocr {metadata.version('rapidocr')}"


def _models_folder() -> Path:
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise EngineUnavailable(
            "The package `rapidocr`, whose wheel carries the PP-OCRv6 models, is not installed.",
            "Install it with `pip install 'rapidocr>=3.10,<4'`, or choose another OCRSVC_ENGINE.",
        )
    folder = Path(spec.submodule_search_locations[0]) / "models"
    if not (folder / DETECTION).is_file():
        raise EngineUnavailable(
            f"The installed `rapidocr` holds no {DETECTION}.",
            "Install a version of it that carries the PP-OCRv6 small models (>=3.10,<4).",
        )
    return folder


def _zero_subnormal_weights(proto: onnx.ModelProto) -> None:
    """Set negligible weights to zero: a quarter of a million of the detector's are subnormal floats.

    Arithmetic on subnormals runs in microcode on x86: measured, they make two of the detector's 1x1 convolutions cost
    700 of the 1,010 ms that a 736 x 992 page takes on one AVX-512 core (310 ms without them, bit-identical output).
    """
    for tensor in proto.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        weights = numpy_helper.to_array(tensor)
        negligible = (np.abs(weights) < NEGLIGIBLE) & (weights != 0)
        if negligible.any():
            tensor.CopyFrom(numpy_helper.from_array(np.where(negligible, np.float32(0), weights), tensor.name))
