"""How a model is run: the only file that touches ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.models import Model
from ocrsvc.errors import EngineUnavailable

Device = Literal["cpu", "cuda", "auto"]
Tensor = NDArray[np.float32]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
CUDA_OPTIONS = {
    # EXHAUSTIVE searches for every new shape: 634 ms against 1.9 ms a shape (PaddleX PR 5057).
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
}


class Session:
    """One model, ready to run; safe to share between threads (ONNX Runtime allows concurrent runs of one session)."""

    def __init__(self, model: Model, providers: Sequence[tuple[str, dict[str, Any]]], threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Without an arena each run gives its memory back, so that one huge page does not stay in the RSS for ever;
        # measured cost: 3 to 8 % of a run.
        options.enable_cpu_mem_arena = False
        self._session = ort.InferenceSession(model.graph, options, providers=list(providers))
        self._input = self._session.get_inputs()[0].name
        self.provider = str(self._session.get_providers()[0])
        self.device = "cpu" if self.provider == CPU else "cuda"

    def run(self, tensor: Tensor) -> Tensor:
        """Run the model on one input (N, 3, H, W) float32; returns its first output."""
        output: Tensor = self._session.run(None, {self._input: tensor})[0]
        return output


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


def open_session(model: Model, device: Device, threads: int) -> Session:
    """Open a model on a device.

    Args:
        model: From models.load_model.
        device: "cpu", "cuda", or "auto" (the GPU where one works).
        threads: Threads inside one run (intra-op).

    Raises:
        EngineUnavailable: The device was asked for by name and cannot be used.
    """
    session = Session(model, choose_providers(device), threads)
    if device == "cuda" and session.device == "cpu":
        raise EngineUnavailable(
            "OCRSVC_DEVICE=cuda, but ONNX Runtime could not start its CUDA provider and fell back to the CPU.",
            "Check that a GPU is visible (nvidia-smi) and that CUDA and cuDNN of the right major version are "
            "installed, or set OCRSVC_DEVICE=cpu.",
        )
    return session
