"""How a model is opened and run: the only file that touches ONNX Runtime."""

from __future__ import annotations

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
Tensor = NDArray[np.float32]
Providers = Sequence[tuple[str, dict[str, Any]]]

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
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
    """

    device: Device = "auto"
    threads: int = 1
    arena_values: int = 0
    batched: bool = False


class Session:
    """One model, ready to run; safe to share between threads (ONNX Runtime allows concurrent runs of one session).

    Attributes:
        provider, device: Where it runs.
        batched: Whether the recogniser's graph takes many lines at once; see surgery.py.
        metadata: The model's own.
    """

    def __init__(self, session: ort.InferenceSession, arena_values: int, *, batched: bool) -> None:
        self._session = session
        self._input = session.get_inputs()[0].name
        self._arena_values = arena_values
        self.provider = str(session.get_providers()[0])
        self.device = "cpu" if self.provider == CPU else "cuda"
        self.batched = batched
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

    def run_arrays(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """As `run`, for an array that lies where the session computes; the outputs stay there too."""
        return self.run(array, outputs)


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
    batched = running.batched or not on_cpu
    if on_cpu and not batched:
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


def _open_kept(name: str, shipped: bytes, options: ort.SessionOptions, store: Store) -> ort.InferenceSession:
    """The model as it was optimised at an earlier start, or as it is now, and kept for a later one."""
    key = key_of(shipped, models.recipe(), ort.__version__.encode())
    kept = store.find(name, key)
    if kept is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(kept, options, providers=[CPU])
    with store.place(name, key, 2 * len(shipped)) as file:
        if file is not None:
            options.optimized_model_filepath = os.fspath(file)
        return ort.InferenceSession(models.mend(name, shipped), options, providers=[CPU])
