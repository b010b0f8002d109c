"""The models of the engine ppocr: reads their files and prepares their graphs.

The files are package data of the `rapidocr` wheel (Apache-2.0; PP-OCRv6 small by the PaddlePaddle authors). The package
itself is never imported: only its folder is asked for.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.runtime.model_cache import cpu_features
from ocrsvc.errors import EngineUnavailable

DETECTION = "PP-OCRv6_det_small.onnx"
RECOGNITION = "PP-OCRv6_rec_small.onnx"
NAME = "PP-OCRv6 small"
INPUT = "x"  # of both


def read_model(name: str) -> bytes:
    """A model as the wheel brings it. Raises EngineUnavailable when the wheel or the file is missing."""
    return (_models_folder() / name).read_bytes()


def read_metadata(name: str) -> dict[str, str]:
    """The properties that a model carries, such as the recognizer's characters. Imports `onnx`."""
    import onnx

    proto = onnx.load_from_string(read_model(name))
    return {entry.key: entry.value for entry in proto.metadata_props}


def read_head() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The recognizer's last product; see `rewrite.read_head`. Imports `onnx`."""
    import onnx

    from ocrsvc.engines.ppocr.graph import rewrite

    return rewrite.read_head(onnx.load_from_string(read_model(RECOGNITION)))


def prepare_model(
    name: str, shipped: bytes, *, batched: bool = False, half_precision: bool = False, openvino: bool = False
) -> bytes:
    """The model as it is run: for a line or a batch (graph/rewrite.py), perhaps in half precision (graph/fp16.py).

    For OpenVINO the recognizer ends before its last product (`rewrite.keep_features`); see `prepare_classifier`.

    Imports `onnx`, which a cached model does without.
    """
    import onnx

    from ocrsvc.engines.ppocr.graph import memory_layout, rewrite

    proto = onnx.load_from_string(shipped)
    rewrite.zero_subnormal_weights(proto)
    if not batched:
        memory_layout.drop_identities(proto)
    if name == DETECTION and not batched:
        memory_layout.average_by_pooling(proto)
        memory_layout.add_one_before_scaling(proto)
        memory_layout.deconvolve_in_phases(proto)
        memory_layout.pad_stem_channels(proto, channel_block(cpu_features()))
    if name == RECOGNITION:
        single = rewrite.keep_features if openvino else rewrite.add_argmax
        (rewrite.add_argmax_batched if batched else single)(proto)
    if half_precision:
        from ocrsvc.engines.ppocr.graph import fp16

        proto = fp16.to_fp16(proto, rewrite.LOGITS)
    prepared: bytes = proto.SerializeToString()
    return prepared


def prepare_classifier(shipped: bytes, steps: int) -> bytes:
    """The recognizer's last product and what is chosen from it, for so many steps at once. Imports `onnx`."""
    import onnx

    from ocrsvc.engines.ppocr.graph import rewrite

    prepared: bytes = rewrite.make_classifier(onnx.load_from_string(shipped), steps).SerializeToString()
    return prepared


def channel_block(features: bytes) -> int:
    """How many channels ONNX Runtime's convolutions take at once on a processor that can do that."""
    return 16 if b" avx512f " in features else 8


def quantized_recognizer(shipped: bytes) -> bytes:
    """The prepared recognizer with its large products in eight bits, for a line at a time on a CPU; see graph/quantize.

    The detector gains nothing from it: its time is in large planes of few channels.
    """
    import onnx

    from ocrsvc.engines.ppocr.graph.quantize import quantize

    proto = onnx.load_from_string(prepare_model(RECOGNITION, shipped))
    quantize(proto)
    smaller: bytes = proto.SerializeToString()
    return smaller


def preparation_code() -> bytes:
    """The code that prepares models, which a cached model depends on."""
    runtime = Path(__file__).parent
    graph = runtime.parent / "graph"
    files = (graph / "memory_layout.py", runtime / "models.py", graph / "quantize.py", graph / "rewrite.py")
    return b"".join(file.read_bytes() for file in files)


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
