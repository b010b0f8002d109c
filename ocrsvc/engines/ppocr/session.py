"""How a model is opened and run: the only file that touches ONNX Runtime."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.store import Store, key_of
from ocrsvc.errors import EngineUnavailable

Device = Literal["cpu", "cuda", "auto"]
Precision = Literal["auto", "fp32", "fp16", "int8"]
Tensor = NDArray[np.float32]
Providers = Sequence[tuple[str, dict[str, Any]]]

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
_EIGHT: Final = "int8-"
CUDA_OPTIONS: Final = {
    # EXHAUSTIVE searches for every new shape: 634 ms against 1.9 ms a shape (PaddleX PR 5057).
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
}


@dataclass(frozen=True, slots=True)
class Running:
    """How a session computes.

    Attributes:
        device: "cpu", "cuda", or "auto" (the GPU where one works).
        threads: Threads inside one run (intra-op).
        arena_values: On the CPU, the size of an input, in floats, up to which a run's memory is kept for the next one;
            larger runs give theirs back, so that one huge page does not stay in the RSS for ever. 0: nothing is kept.
        batched: Many lines in one recognition run, whatever the device; a GPU always reads so.
        precision: What to compute in; "auto" takes what is kept in eight bits by `make_eight`, else single precision.
    """

    device: Device = "auto"
    threads: int = 1
    arena_values: int = 0
    batched: bool = False
    precision: Precision = "auto"


class Session:
    """One model, ready to run; safe to share between threads (ONNX Runtime allows concurrent runs of one session).

    Attributes:
        provider, device: Where it runs.
        batched: Whether the recogniser's graph takes many lines at once; see surgery.py.
        precision: What it computes in: "fp32" or "int8".
        metadata: The model's own.
    """

    def __init__(
        self, session: ort.InferenceSession, arena_values: int, *, batched: bool, precision: str = "fp32"
    ) -> None:
        self._session = session
        self._input = session.get_inputs()[0].name
        self._arena_values = arena_values
        self.provider = str(session.get_providers()[0])
        self.device = "cpu" if self.provider == CPU else "cuda"
        self.batched = batched
        self.precision = precision
        self.metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
        self._shrinking = ort.RunOptions()
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(self, tensor: Tensor, outputs: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Run the model on one input (N, 3, H, W) float32; returns the named outputs, or all of them."""
        shrink = self.device == "cpu" and 0 < self._arena_values < tensor.size
        found: list[NDArray[Any]] = self._session.run(
            outputs, {self._input: tensor}, self._shrinking if shrink else None
        )
        return found


def choose_providers(device: Device) -> list[tuple[str, dict[str, Any]]]:
    """Execution providers for a device, best first.

    Raises:
        EngineUnavailable: A GPU was asked for by name and this ONNX Runtime has no provider for it. There is no silent
            way back to the CPU: a service that is ten times slower than planned is found out too late.
    """
    available = ort.get_available_providers()
    cpu: list[tuple[str, dict[str, Any]]] = [(CPU, {})]
    if device == "cpu":
        return cpu
    gpu: list[tuple[str, dict[str, Any]]] = [(CUDA, dict(CUDA_OPTIONS))] if CUDA in available else []
    if device == "cuda" and not gpu:
        raise EngineUnavailable(
            f"OCRSVC_DEVICE=cuda, but this ONNX Runtime offers only {', '.join(available)}.",
            "Install the extra gpu-cuda12 or gpu-cuda13 (without the package onnxruntime beside it), or set "
            "OCRSVC_DEVICE=cpu.",
        )
    return gpu + cpu


def open_session(name: str, running: Running, store: Store | None = None) -> Session:
    """Open a model of models.py.

    Args:
        name: models.DETECTION or models.RECOGNITION.
        running: On which device, with how many threads, and which memory is kept.
        store: Keeps the model as it is run on the CPU, so that the next start is quicker.

    Raises:
        EngineUnavailable: The model is missing, or the device was asked for by name and cannot be used.
    """
    providers = choose_providers(running.device)
    options = _options(running)
    shipped = models.read_model(name)
    on_cpu = [provider for provider, _ in providers] == [CPU]
    if on_cpu and running.arena_values:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    batched = running.batched or not on_cpu
    _check_precision(running.precision, on_cpu=on_cpu)
    if on_cpu and not batched:
        kept = _find_eight(name, shipped, running.precision, store or Store(None))
        if kept is not None:
            return _open_eight(kept, options, running)
        opened = _open_kept(name, shipped, options, store or Store(None))
    else:
        mended = models.mend(name, shipped, batched=batched)
        opened = ort.InferenceSession(mended, options, providers=list(providers))
    session = Session(opened, running.arena_values, batched=batched)
    if running.device == "auto" and session.device == "cpu" and not on_cpu:
        return open_session(name, replace(running, device="cpu"), store)
    if running.device == "cuda" and session.device == "cpu":
        raise EngineUnavailable(
            "OCRSVC_DEVICE=cuda, but ONNX Runtime could not start its CUDA provider and fell back to the CPU.",
            "Check that a GPU is visible (nvidia-smi) and that CUDA and cuDNN of the right major version are "
            "installed, or set OCRSVC_DEVICE=cpu.",
        )
    return session


@functools.cache
def _register_arena() -> None:
    """One arena for all sessions of the process that keep memory: what one has kept, another need not ask for."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


def _options(running: Running) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = running.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = running.arena_values > 0
    if running.threads > 1:
        # A thread that waits for more work must not hold a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def make_eight(name: str, running: Running, store: Store | None = None) -> Session:
    """Open the model with its large products in eight bits, made anew, on the CPU.

    Args:
        name: One of models.IN_EIGHT_BITS.
        running: Of the session.
        store: Keeps it, and from then on `open_session` takes it where the precision is "auto" or "int8".
    """
    options, shipped = _options(running), models.read_model(name)
    with (store or Store(None)).place(_EIGHT + name, _key(shipped, _EIGHT), 2 * len(shipped)) as file:
        if file is not None:
            options.optimized_model_filepath = os.fspath(file)
        made = ort.InferenceSession(models.quantised(name, shipped), options, providers=[CPU])
    return Session(made, running.arena_values, batched=False, precision="int8")


def has_eight(name: str, store: Store) -> bool:
    """Whether `make_eight` kept this model, in this version and for this processor."""
    return store.find(_EIGHT + name, _key(models.read_model(name), _EIGHT)) is not None


def forget_eight(name: str, store: Store) -> None:
    """Keep no model in eight bits."""
    store.forget(_EIGHT + name, _key(models.read_model(name), _EIGHT))


def _key(shipped: bytes, kind: str = "") -> str:
    return key_of(shipped, models.recipe(), ort.__version__.encode(), *([kind.encode()] if kind else []))


def _find_eight(name: str, shipped: bytes, precision: Precision, store: Store) -> bytes | None:
    if name not in models.IN_EIGHT_BITS or precision not in ("auto", "int8"):
        return None
    kept = store.find(_EIGHT + name, _key(shipped, _EIGHT))
    if kept is None and precision == "int8":
        raise EngineUnavailable(
            "OCRSVC_PRECISION=int8, but no model in eight bits is kept for this version and this processor.",
            "Run `ocrsvc optimize` with pages like yours, with the same OCRSVC_MODEL_CACHE, or set "
            "OCRSVC_PRECISION=auto.",
        )
    return kept


def _open_eight(kept: bytes, options: ort.SessionOptions, running: Running) -> Session:
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = ort.InferenceSession(kept, options, providers=[CPU])
    return Session(opened, running.arena_values, batched=False, precision="int8")


def _check_precision(precision: Precision, *, on_cpu: bool) -> None:
    """Raises EngineUnavailable where this device does not compute in that precision."""
    if precision == "fp16" and on_cpu:
        raise EngineUnavailable(
            "OCRSVC_PRECISION=fp16, but the engine computes on the CPU, which gains nothing from it.",
            "Set OCRSVC_PRECISION=auto, or give it a GPU (OCRSVC_DEVICE=cuda).",
        )
    if precision == "int8" and not on_cpu:
        raise EngineUnavailable(
            "OCRSVC_PRECISION=int8 is for the CPU, but the engine computes on a GPU.",
            "Set OCRSVC_PRECISION=auto or fp16, or OCRSVC_DEVICE=cpu.",
        )


def _open_kept(name: str, shipped: bytes, options: ort.SessionOptions, store: Store) -> ort.InferenceSession:
    """The model as it was optimised at an earlier start, or as it is now, and kept for a later one."""
    key = _key(shipped)
    kept = store.find(name, key)
    if kept is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(kept, options, providers=[CPU])
    with store.place(name, key, 2 * len(shipped)) as file:
        if file is not None:
            options.optimized_model_filepath = os.fspath(file)
        return ort.InferenceSession(models.mend(name, shipped), options, providers=[CPU])
