"""Chooses ONNX Runtime's execution provider (CPU, CUDA, TensorRT) and makes its options.

A provider that was asked for by name is used, or the service does not start: there is no silent way back to a slower
one, because a service that is ten times slower than planned is found out too late.

TensorRT builds an engine for a range of shapes (a profile). ONNX Runtime can be given several, but runs the first one
only (as of 1.31), so here every profile has a session of its own, and with it a folder of its own for the engine: the
name of the file does not tell one profile from another. The profiles together cover every shape that the pipeline
makes in ordinary use; CUDA runs the rest. So no engine is ever built while requests wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import onnxruntime as ort

from ocrsvc.errors import EngineUnavailable

Device = Literal["cpu", "cuda", "auto"]
Provider = Literal["cpu", "openvino", "cuda", "tensorrt", "auto"]
Precision = Literal["auto", "fp32", "fp16", "bf16", "int8"]
Options = dict[str, Any]
Providers = list[tuple[str, Options]]
Shape = tuple[int, ...]

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"

CUDA_OPTIONS: Final[Options] = {
    # EXHAUSTIVE searches for every new shape: 634 ms against 1.9 ms a shape (PaddleX PR 5057).
    "cudnn_conv_algo_search": "HEURISTIC",
    # An arena that doubles cannot give back what one large run made it take.
    "arena_extend_strategy": "kSameAsRequested",
}
# What the wheels of TensorRT install, in the order in which they need each other.
_TENSORRT_FOLDER: Final = "tensorrt_libs"
_TENSORRT_LIBRARIES: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")


@dataclass(frozen=True, slots=True)
class Profile:
    """A range of input shapes that one TensorRT engine is built for; its memory follows `most`."""

    least: Shape
    usual: Shape
    most: Shape

    def covers(self, shape: Shape) -> bool:
        """Whether an input of that shape is within."""
        return len(shape) == len(self.least) and all(
            low <= side <= high for low, side, high in zip(self.least, shape, self.most, strict=True)
        )

    def __str__(self) -> str:
        return ",".join("x".join(map(str, shape)) for shape in (self.least, self.usual, self.most))


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How the sessions of one model share a GPU."""

    streams: int = 1  # runs under way at once; each has a session, a stream and an arena of its own
    arena_bytes: int | None = None  # what each arena may take; None for what the GPU has
    # size of an input, in floats, up to which the arena keeps a run's memory for the next; larger runs give theirs
    # back. 0: all is kept.
    arena_values: int = 0
    profiles: tuple[Profile, ...] = ()  # for TensorRT; the smallest first


def choose_provider(device: Device, provider: Provider, available: Sequence[str]) -> Provider:
    """What to try for OCRSVC_DEVICE and OCRSVC_PROVIDER: "cpu" (ONNX Runtime), "openvino", "cuda" or "tensorrt".

    `available` is what this build of ONNX Runtime knows. Raises EngineUnavailable: what was asked for by name is not in
    it.
    """
    if provider == "openvino":
        return "openvino"
    if "cpu" in (device, provider):
        return "cpu"
    if provider == "tensorrt":
        _check_available("OCRSVC_PROVIDER=tensorrt", (TENSORRT, CUDA), available)
        return "tensorrt"
    if device == "auto" and provider == "auto" and CUDA not in available:
        return "cpu"
    _check_available("OCRSVC_PROVIDER=cuda" if provider == "cuda" else "OCRSVC_DEVICE=cuda", (CUDA,), available)
    return "cuda"


def _check_available(asked: str, needed: Sequence[str], available: Sequence[str]) -> None:
    if not set(needed) <= set(available):
        raise EngineUnavailable(
            f"{asked}, but this ONNX Runtime offers only {', '.join(available)}.",
            "Install the extra gpu-cuda12 or gpu-cuda13 (without the package onnxruntime beside it), or set "
            "OCRSVC_DEVICE=cpu and OCRSVC_PROVIDER=auto.",
        )


ON_CPU: Final = ("cpu", "openvino")

_REFUSED: Final = {
    ("fp16", "cpu"): ("on the CPU, which gains nothing from it", "OCRSVC_DEVICE=cuda to find out why no GPU is used"),
    ("fp16", "openvino"): ("on the CPU, which gains nothing from it", "OCRSVC_PRECISION=bf16"),
    ("bf16", "cpu"): ("by ONNX Runtime on the CPU, which has no such kernels", "OCRSVC_PROVIDER=openvino"),
    ("bf16", "gpu"): ("on a GPU, for which fp16 is offered", "OCRSVC_PRECISION=fp16"),
    ("int8", "openvino"): ("by OpenVINO, for which there is no such model", "OCRSVC_PROVIDER=auto"),
    ("int8", "gpu"): ("on a GPU, for which there is no such model", "OCRSVC_PRECISION=fp16, or OCRSVC_DEVICE=cpu"),
}


def check_precision(precision: Precision, provider: Provider) -> None:
    """Raises EngineUnavailable where a provider does not compute in that precision."""
    refused = _REFUSED.get((precision, provider if provider in ON_CPU else "gpu"))
    if refused is not None:
        reason, remedy = refused
        raise EngineUnavailable(
            f"OCRSVC_PRECISION={precision}, but the engine computes {reason}.",
            f"Leave OCRSVC_PRECISION out, or set {remedy}.",
        )


def cuda_options(gpu: GpuConfig, precision: Precision, stream: int | None) -> Options:
    """The options of the CUDA provider, on the stream at that address, or one that ONNX Runtime makes.

    "fp32" is full single precision; otherwise products of floats may be taken in TF32.
    """
    options = dict(CUDA_OPTIONS)
    if gpu.arena_bytes is not None:
        options["gpu_mem_limit"] = str(gpu.arena_bytes)
    if precision == "fp32":
        options["use_tf32"] = "0"
    return options | _stream_option(stream)


def tensorrt_options(
    input_name: str, profile: Profile, precision: Precision, stream: int | None, folder: Path | None
) -> Options:
    """The options of the TensorRT provider, whose engine is built for all shapes of the profile before the first run.

    "fp16" lets TensorRT take half precision where it wins. `folder` keeps the engine and the timings of kernels.
    """
    half = precision == "fp16"
    options: Options = {
        "trt_fp16_enable": half,
        # Squares of activations overflow half precision.
        "trt_layer_norm_fp32_fallback": half,
        "trt_context_memory_sharing_enable": True,
    }
    for name, shape in (("min", profile.least), ("opt", profile.usual), ("max", profile.most)):
        options[f"trt_profile_{name}_shapes"] = f"{input_name}:{'x'.join(map(str, shape))}"
    if folder is not None:
        options |= {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder)}
        options |= {"trt_timing_cache_enable": True, "trt_timing_cache_path": str(folder)}
    return options | _stream_option(stream)


def _stream_option(stream: int | None) -> Options:
    return {} if stream is None else {"user_compute_stream": str(stream)}


def load_gpu_libraries(provider: Provider) -> None:
    """Load what the provider needs out of the wheels that pip installed, where the linker does not look by itself.

    What is installed elsewhere is left to the linker: a session that cannot be opened says which library it misses.
    """
    if provider == "cpu":
        return
    ort.preload_dlls(msvc=False)
    if provider == "tensorrt":
        for file in _tensorrt_files():
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def _tensorrt_files() -> list[Path]:
    spec = importlib.util.find_spec(_TENSORRT_FOLDER)
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0])
    return [folder / name for name in _TENSORRT_LIBRARIES if (folder / name).is_file()]


def tensorrt_version() -> str:
    """The version of TensorRT that is loaded, or "" where it cannot be read."""
    try:
        return str(ctypes.CDLL(_TENSORRT_LIBRARIES[0]).getInferLibVersion())
    except (OSError, AttributeError):
        return ""
