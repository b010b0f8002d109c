"""Computes the numbers of workers and threads from the CPUs and GPUs that this process may use."""

import os
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from ocrsvc.plugins import engines
from ocrsvc.settings.settings import Settings
from ocrsvc.system.cgroup import read_cpus
from ocrsvc.system.gpu import find_gpus

# Threads within one call of a numeric library: one is enough, because the engine threads already use all CPUs.
LIBRARY_THREADS: Final = 1
_ON_CPU: Final = ("cpu", "openvino")
_CPUS_PER_WORKER: Final = 4
_MAX_WORKERS: Final = 8
_GPU_WORKERS: Final = 2
_GPU_ENGINE_THREADS: Final = 4
# HTTP threads for health checks, uploads and refusals, which are needed even when the queue is full.
_SPARE_THREADS: Final = 8
_LIBRARY_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Numbers of worker processes, of HTTP and engine threads per worker, and of threads within a library call.

    Each HTTP thread serves one request, and each engine thread runs one engine handle.
    """

    workers: int
    threads: int
    engine_threads: int
    library_threads: int = LIBRARY_THREADS

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in asdict(self).items())


def plan_for(settings: Settings, *, workers: int | None = None, threads: int | None = None) -> ThreadPlan:
    """The thread plan for this machine; reads CPU limits and device files, and loads no library.

    `workers` and `threads`, from gunicorn's flags, override the settings.
    """
    concurrency = engines()[settings.engine].concurrency
    return plan(
        read_cpus(),
        device_for(settings),
        settings.queue_size,
        workers=workers or settings.workers,
        threads=threads or settings.threads,
        engine_threads=settings.engine_threads or (getattr(settings, concurrency) if concurrency else None),
        gpu_count=len(gpus_for(settings)),
    )


def gpus_for(settings: Settings) -> tuple[str, ...]:
    """The GPUs to distribute the workers over: those of OCRSVC_GPUS, or every visible GPU if the engine uses GPUs."""
    if settings.gpus and settings.device != "cpu" and settings.provider not in _ON_CPU:
        return find_gpus(settings.gpus, os.environ)
    return find_gpus((), os.environ) if device_for(settings) == "cuda" else ()


def device_for(settings: Settings, devices: Path = Path("/dev")) -> str:
    """The engine's device, "cpu" or "cuda", determined without loading CUDA, so that the arbiter may call it."""
    if settings.provider in _ON_CPU:
        return "cpu"
    if settings.device != "auto":
        return settings.device
    has_runtime = engines()[settings.engine].uses_onnx_runtime and is_installed("onnxruntime-gpu")
    # Without a GPU in CUDA_VISIBLE_DEVICES, the engine uses the CPU.
    sees_gpu = any(devices.glob("nvidia[0-9]*")) and find_gpus(settings.gpus, os.environ)
    return "cuda" if has_runtime and sees_gpu else "cpu"


def plan(
    cpus: float,
    device: str,
    queue_size: int,
    *,
    workers: int | None = None,
    threads: int | None = None,
    engine_threads: int | None = None,
    gpu_count: int = 1,
) -> ThreadPlan:
    """Compute the thread plan; numbers that are given are kept, the others follow from the number of CPUs.

    On "cuda" engine threads mostly wait for the GPU. Each image in a worker's queue occupies an HTTP thread.
    """
    on_gpu = device == "cuda"
    fitting = _GPU_WORKERS * max(1, gpu_count) if on_gpu else min(max(int(cpus) // _CPUS_PER_WORKER, 1), _MAX_WORKERS)
    workers = workers or fitting
    engine_threads = engine_threads or (_GPU_ENGINE_THREADS if on_gpu else max(1, round(cpus / workers)))
    return ThreadPlan(workers, threads or queue_size + engine_threads + _SPARE_THREADS, engine_threads)


def set_library_environment(environ: MutableMapping[str, str], count: int = LIBRARY_THREADS) -> None:
    """Set the thread counts of numeric libraries and turn off their telemetry, unless the operator set the variables.

    Call it before these libraries are imported, because they read the environment only once.
    """
    for variable in _LIBRARY_VARIABLES:
        environ.setdefault(variable, str(count))
    # Otherwise ONNX Runtime 1.31 stores usage events in the home folder, and sends them to Microsoft.
    environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def is_installed(distribution: str) -> bool:
    """Whether a Python distribution of this name is installed."""
    return any(metadata.distributions(name=distribution))
