"""Chooses ONNX Runtime's execution provider (CPU, CUDA, TensorRT) and its options.

If a requested provider does not work, the service does not start. It never falls back silently, because a service ten
times slower than planned would be noticed too late.

TensorRT builds an engine for a range of shapes (a profile). ONNX Runtime accepts several profiles but runs only the
first (as of 1.31), so each profile has its own session, and its own folder for the engine, whose file name does not
identify the profile. The profiles cover all common shapes, and CUDA runs the rest: no request waits for a new engine.
"""

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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
    # EXHAUSTIVE would search for kernels at every new shape: 634 ms instead of 1.9 ms per shape (PaddleX PR 5057).
    "cudnn_conv_algo_search": "HEURISTIC",
    # An arena that grows by doubling cannot free the memory of a single large run.
    "arena_extend_strategy": "kSameAsRequested",
}
_ONNX_RUNTIME: Final = "onnxruntime"
_CUDA_LIBRARY: Final = "libonnxruntime_providers_cuda.so"  # part of the builds for GPUs
# Folder and libraries of TensorRT's wheels; each library depends only on earlier ones.
_TENSORRT_FOLDER: Final = "tensorrt_libs"
_TENSORRT_LIBRARIES: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")


@dataclass(frozen=True, slots=True)
class Profile:
    """The smallest, usual and largest input shape of one TensorRT engine; the largest determines its memory."""

    least: Shape
    usual: Shape
    most: Shape

    def covers(self, shape: Shape) -> bool:
        """Whether an input shape lies between the profile's smallest and largest shape."""
        return len(shape) == len(self.least) and all(
            low <= side <= high for low, side, high in zip(self.least, shape, self.most, strict=True)
        )

    def __str__(self) -> str:
        return ",".join("x".join(map(str, shape)) for shape in (self.least, self.usual, self.most))


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How the sessions of one model share a GPU."""

    streams: int = 1  # number of concurrent runs; each has its own session, stream and arena
    arena_bytes: int | None = None  # limit of each arena; None: all of the GPU's memory
    # runs with more input floats than this free their memory afterwards; 0: every run leaves its memory in the arena
    arena_values: int = 0
    profiles: tuple[Profile, ...] = ()  # input shapes of the TensorRT engines, smallest first


def available_providers() -> Sequence[str]:
    """The providers of the installed ONNX Runtime. Raises EngineUnavailable if none is installed.

    Does not import a build for CPUs, because that takes memory, which a worker does not need under OpenVINO.
    """
    spec = importlib.util.find_spec(_ONNX_RUNTIME)
    if spec is None or spec.origin is None:
        raise EngineUnavailable("The package onnxruntime is not installed.", "Install the extra cpu.")
    if _ONNX_RUNTIME not in sys.modules and not Path(spec.origin).with_name("capi").joinpath(_CUDA_LIBRARY).exists():
        return [CPU]
    import onnxruntime as ort

    return list(ort.get_available_providers())


def choose_provider(device: Device, provider: Provider, available: Sequence[str]) -> Provider:
    """The provider that OCRSVC_DEVICE and OCRSVC_PROVIDER select in this ONNX Runtime. Raises EngineUnavailable."""
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


def _check_available(setting: str, needed: Sequence[str], available: Sequence[str]) -> None:
    if not set(needed) <= set(available):
        raise EngineUnavailable(
            f"{setting}, but this ONNX Runtime offers only {', '.join(available)}.",
            "Install the extra gpu-cuda12 or gpu-cuda13 (and uninstall the package onnxruntime), or set "
            "OCRSVC_DEVICE=cpu and OCRSVC_PROVIDER=auto.",
        )


ON_CPU: Final = ("cpu", "openvino")

_REFUSED: Final = {
    ("fp16", "cpu"): ("on the CPU, which gains nothing from it", "OCRSVC_DEVICE=cuda to find out why no GPU is used"),
    ("fp16", "openvino"): ("on the CPU, which gains nothing from it", "OCRSVC_PRECISION=bf16"),
    ("bf16", "cpu"): ("with ONNX Runtime on the CPU, which has no bf16 kernels", "OCRSVC_PROVIDER=openvino"),
    ("bf16", "gpu"): ("on a GPU, where only fp16 is supported", "OCRSVC_PRECISION=fp16"),
    ("int8", "openvino"): ("with OpenVINO, where int8 is not supported", "OCRSVC_PROVIDER=auto"),
    ("int8", "gpu"): ("on a GPU, where int8 is not supported", "OCRSVC_PRECISION=fp16, or OCRSVC_DEVICE=cpu"),
}


def check_precision(precision: Precision, provider: Provider) -> None:
    """Raise EngineUnavailable if the provider does not support the precision."""
    refused = _REFUSED.get((precision, provider if provider in ON_CPU else "gpu"))
    if refused is not None:
        reason, remedy = refused
        raise EngineUnavailable(
            f"OCRSVC_PRECISION={precision}, but the engine runs {reason}.",
            f"Leave out OCRSVC_PRECISION, or set {remedy}.",
        )


def cuda_options(gpu: GpuConfig, precision: Precision, stream: int | None) -> Options:
    """Options of the CUDA provider, which creates a stream if `stream` is None. "fp32" forbids TF32 matrix products."""
    options = dict(CUDA_OPTIONS)
    if gpu.arena_bytes is not None:
        options["gpu_mem_limit"] = str(gpu.arena_bytes)
    if precision == "fp32":
        options["use_tf32"] = "0"
    return options | _stream_option(stream)


def tensorrt_options(
    input_name: str, profile: Profile, precision: Precision, stream: int | None, folder: Path | None
) -> Options:
    """TensorRT's options: a session builds an engine for the shapes of `profile`. "fp16" allows half precision."""
    half = precision == "fp16"
    options: Options = {
        "trt_fp16_enable": half,
        # Without it, squares of activations overflow half precision.
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
    """Load a GPU provider's libraries from pip's wheels, where linkers do not search; ignores missing ones."""
    import onnxruntime as ort

    ort.preload_dlls(msvc=False)
    if provider == "tensorrt":
        spec = importlib.util.find_spec(_TENSORRT_FOLDER)
        for folder in list(spec.submodule_search_locations or ())[:1] if spec is not None else ():
            for name in _TENSORRT_LIBRARIES:
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(Path(folder, name)), mode=ctypes.RTLD_GLOBAL)


def tensorrt_version() -> str:
    """The version of the loaded TensorRT; "" if it is unknown."""
    try:
        return str(ctypes.CDLL(_TENSORRT_LIBRARIES[0]).getInferLibVersion())
    except (OSError, AttributeError):
        return ""
