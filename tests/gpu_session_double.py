"""A double of ONNX Runtime's GPU sessions: the real models on the CPU, which report CUDA as their provider."""

from typing import Any, Final

import onnxruntime
import pytest

from ocrsvc.engines.ppocr.pipeline import detector, recognition_batches
from ocrsvc.engines.ppocr.runtime import open_model
from ocrsvc.engines.ppocr.runtime.providers import CPU, CUDA, TENSORRT

GPU_BUILD: Final = [TENSORRT, CUDA, CPU]
WARM_PX: Final = ((160, 160),)
"""All sizes of pages that a detector is warmed with here, because each costs the CPU what a page does."""

_REAL: Final = onnxruntime.InferenceSession


class GpuSessionDouble:
    """One session, which notes the shapes that it is fed."""

    shapes: set[tuple[int, ...]] = set()  # noqa: RUF012  of all of them; emptied where they are put in place

    def __init__(self, model: bytes, options: Any, providers: Any, **_: int) -> None:
        self._session = _REAL(model, options, providers=[CPU])
        self._names = [one if isinstance(one, str) else one[0] for one in providers]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return self._names

    def run(self, outputs: Any, feed: dict[str, Any], _options: Any = None) -> Any:
        # The unwarping model's input has another name: it is the same on the CPU, and so is what checks a rewrite.
        if "given.x" in feed and self._names != [CPU]:
            self.shapes.add(feed["given.x"].shape)
        return self._session.run(outputs, feed)


def put_in_place(patch: pytest.MonkeyPatch) -> None:
    """From now on what is opened for a GPU is a double of it; lines are not warmed up."""
    GpuSessionDouble.shapes.clear()
    patch.setattr(onnxruntime, "get_available_providers", lambda: GPU_BUILD)
    patch.setattr(onnxruntime, "InferenceSession", GpuSessionDouble)
    patch.setattr(onnxruntime, "preload_dlls", lambda **_: None)
    patch.setattr(open_model, "open_gpu_context", lambda: None)
    patch.setattr(detector, "_WARM_PX", WARM_PX)
    patch.setattr(recognition_batches.BatchRunner, "warm_up", lambda _: None)
