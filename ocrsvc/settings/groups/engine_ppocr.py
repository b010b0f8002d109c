"""Settings of the engine `ppocr`: PaddleOCR's models in ONNX Runtime or OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ValidationInfo

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount

_CONTRADICTIONS: Final = (("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu"), ("cuda", "openvino"))


def _check_provider(name: str, info: ValidationInfo) -> str:
    """The name, if the device allows it; raises ValueError."""
    if (info.data.get("device"), name) in _CONTRADICTIONS:
        raise ValueError("the device is another")
    return name


Provider = Annotated[Literal["auto", "cpu", "openvino", "cuda", "tensorrt"], AfterValidator(_check_provider)]


class PpocrEngineSettings(SettingsGroup):
    """How ppocr computes. `provider` is checked against `device`, so EngineSettings come first."""

    title = "Engine ppocr"

    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = setting(
        "auto",
        "How ppocr computes: fp16 wants a GPU, bf16 OpenVINO and a CPU that has it, int8 (the recognizer) a CPU; auto "
        "takes on a CPU what is proved there, at the first start, to read the same and to be quickest.",
    )
    provider: Provider = setting(
        "auto",
        "What ppocr computes with: cpu, cuda and tensorrt in ONNX Runtime, or openvino; auto is cuda where the device "
        "allows it, else what OCRSVC_PRECISION says. What is named and does not work stops the start.",
        accepted="one of auto, cpu, openvino, cuda, tensorrt, and none that contradicts the device",
    )
    imaging: Literal["auto", "cpu"] = setting(
        "auto",
        "Where ppocr prepares pixels for models on a GPU: auto is the GPU, where cupy is installed and reads what the "
        "CPU reads.",
    )
    gpu_streams: int = setting(
        2,
        "Runs of one model that each worker has under way on a GPU at once; each has a session and memory of its own.",
        "streams",
        ge=1,
        le=8,
    )
    gpu_arena_bytes: ByteCount | None = setting(
        None,
        "Memory of the GPU that the arena of each session may take; by default no limit but the GPU.",
        "bytes",
        ge=64 * 2**20,
        le=2**40,
    )
    batch_pixels: int = setting(
        32 * 48 * 320,
        "Largest batch of lines that a GPU reads in one run, in pixels with padding; the memory of a run follows it.",
        "pixels",
        ge=48 * 320,
        le=10**9,
    )
    batch_wait_s: float = setting(
        0.002, "Longest time that a line waits on a GPU for others to be read with it.", "s", ge=0, le=10
    )
    model_cache: Path | None = setting(
        None,
        "Folder that keeps optimised models for the next start, for the engine ppocr; by default ocrsvc in the user's "
        "cache folder.",
    )
