"""A double of ONNX Runtime's GPU sessions: the real models on the CPU, which report CUDA as their provider."""

from typing import Any, Final

import onnxruntime
import pytest

from ocrsvc.engines.ppocr.pipeline import detector, recognition_batches
from ocrsvc.engines.ppocr.runtime import open_model
from ocrsvc.engines.ppocr.runtime.providers import CPU, CUDA, TENSORRT

GPU_BUILD: Final = [TENSORRT, CUDA, CPU]
WARM_PX: Final = ((160, 160),)
"""Page sizes for the detector's warm-up: fewer than usual, because each takes as long as a page on the CPU."""

_REAL: Final = onnxruntime.InferenceSession


class GpuSessionDouble:
    """A session that records the shapes of its inputs."""

    shapes: set[tuple[int, ...]] = set()  # noqa: RUF012  shared by all sessions; `install` clears it

    def __init__(self, model: bytes, options: Any, providers: Any, **_: int) -> None:
        self._session = _REAL(model, options, providers=[CPU])
        self._names = [one if isinstance(one, str) else one[0] for one in providers]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return self._names

    def run(self, outputs: Any, feed: dict[str, Any], _options: Any = None) -> Any:
        # Skips the unwarping model, whose input has another name, and CPU sessions, which check a rewritten model.
        if "given.x" in feed and self._names != [CPU]:
            self.shapes.add(feed["given.x"].shape)
        return self._session.run(outputs, feed)


def install(patch: pytest.MonkeyPatch) -> None:
    """Replace ONNX Runtime's sessions by the double, and skip the warm-up of the recognizer."""
    GpuSessionDouble.shapes.clear()
    patch.setattr(onnxruntime, "get_available_providers", lambda: GPU_BUILD)
    patch.setattr(onnxruntime, "InferenceSession", GpuSessionDouble)
    patch.setattr(onnxruntime, "preload_dlls", lambda **_: None)
    patch.setattr(open_model, "open_gpu_context", lambda: None)
    patch.setattr(detector, "_WARM_PX", WARM_PX)
    patch.setattr(recognition_batches.BatchRunner, "warm_up", lambda _: None)
