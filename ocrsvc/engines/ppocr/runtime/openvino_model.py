"""OpenVINO's own model format in one file: the weights, the graph as XML, and its length.

A compiled model keeps its weights in single precision too, 33 MB for all models, but hardly reads them again. The
kernel can drop pages of a mapped file.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from ocrsvc.engines.ppocr.runtime.model_cache import MappedEntry
from ocrsvc.engines.ppocr.runtime.openvino_session import core, library
from ocrsvc.system.allocator import register_holder

_LENGTH_BYTES: Final = 8


def convert(onnx_model: bytes, folder: Path) -> bytes:
    """Convert an ONNX model; OpenVINO writes it into files of an empty folder. Raises OSError, RuntimeError."""
    graph, weights = folder / "model.xml", folder / "model.bin"
    library().serialize(core().read_model(onnx_model, b""), graph, weights)
    core().read_model(graph, weights)  # raises RuntimeError if a full disk cut the files off
    xml = graph.read_bytes()
    return weights.read_bytes() + xml + len(xml).to_bytes(_LENGTH_BYTES, "little")


def read_mapped(entry: MappedEntry) -> Any:
    """Read a converted model into an openvino.Model, which needs `entry` to stay open."""
    content = np.frombuffer(memoryview(entry)[: entry.length], np.uint8)
    length = int.from_bytes(content[-_LENGTH_BYTES:].tobytes(), "little")
    start = len(content) - _LENGTH_BYTES - length
    xml = content[start:-_LENGTH_BYTES].tobytes().decode()
    register_holder(entry)
    return core().read_model(xml, library().Tensor(content[:start], shared_memory=True))
