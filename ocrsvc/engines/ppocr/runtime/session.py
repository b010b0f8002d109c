"""Opened models: ONNX Runtime sessions on the CPU or a GPU stream, and pools of sessions.

Arrays on the GPU are bound to a session without a copy (ONNX Runtime's IO binding); only this file and gpu/arrays.py
use cupy for models.

A session on a GPU has its own stream (`user_compute_stream`). That stream, not the CPU, waits for the work that the
caller queued on cupy's current stream. A run is complete when `run` returns, so any stream may use its results at once.
"""

from __future__ import annotations

import importlib.util
import queue
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat
from ocrsvc.engines.ppocr.runtime.providers import CPU, Device, GpuConfig, Precision, Profile, Provider
from ocrsvc.errors import EngineFailed, EngineUnavailable

if TYPE_CHECKING:
    # Imported only where it is used, because it takes memory, which OpenVINO's sessions do not need.
    import onnxruntime as ort


def session_errors() -> tuple[type[Exception], ...]:
    """The errors of sessions. Listed one by one, because ONNX Runtime's exceptions have no common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    in_python = (ImportError, OSError, RuntimeError, ValueError)
    return (*in_python, state.EPFail, state.Fail, state.InvalidArgument, state.NotImplemented, state.RuntimeException)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How to open the sessions of a model."""

    device: Device = "auto"  # "cpu", "cuda", or "auto" (a GPU if one works)
    threads: int = 1  # number of threads of one run (intra-op)
    # On the CPU: a run keeps its memory for the next unless its input has more floats than this, so that one huge page
    # does not increase the RSS permanently. 0: no run keeps its memory.
    arena_values: int = 0
    batched: bool = False  # recognize many lines per run on the CPU too; a GPU always does
    # "cpu" (ONNX Runtime), "openvino", "cuda", "tensorrt", or "auto" (depends on the device)
    provider: Provider = "auto"
    precision: Precision = "auto"  # "auto" is fp32, under OpenVINO bf16 if the CPU supports it
    sessions: int = 1  # number of concurrent runs under OpenVINO; each has its own memory
    gpu: GpuConfig = field(default_factory=GpuConfig)
    input_format: InputFormat = USUAL  # set by `open_model`


_TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
}


class GpuContext:
    """The cupy stream of a GPU session; `address` is its handle, `device` ONNX Runtime's name for GPU memory."""

    device = "cuda"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.address = int(self.stream.ptr)

    def wait_for_caller(self) -> None:
        """Let the stream wait for the work that the calling thread has queued on the GPU."""
        queued = self._cupy.cuda.get_current_stream()
        if queued.ptr != self.stream.ptr:
            self.stream.wait_event(queued.record())

    def wrap(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Make an array over memory that `owner` owns, without a copy."""
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, size_bytes, owner)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))


def open_gpu_context() -> GpuContext | None:
    """Open a GPU stream; None if cupy is missing or does not work, so arrays must be copied through main memory."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        import cupy

        return GpuContext(cupy)
    except (ImportError, RuntimeError):
        # gpu/arrays.py logs why cupy does not work; models run without it.
        return None


def run_bound(
    session: ort.InferenceSession,
    gpu: GpuContext,
    array: Any,
    outputs: Sequence[str],
    options: ort.RunOptions | None = None,
) -> list[Any]:
    """Run a model with one input on a GPU array of its dtype, on the stream of `gpu`; outputs stay on the GPU.

    Raises EngineFailed if the array is not C-contiguous, or an output has an unsupported dtype.
    """
    interface = array.__cuda_array_interface__
    address, shape, dtype = interface["data"][0], tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != np.empty(shape, dtype).strides:
        raise EngineFailed("An array on the GPU is not contiguous, as models require.")
    gpu.wait_for_caller()
    binding = session.io_binding()
    binding.bind_input(session.get_inputs()[0].name, gpu.device, 0, dtype.type, shape, address)
    for name in outputs:
        binding.bind_output(name, gpu.device, 0)
    session.run_with_iobinding(binding, options)
    results = []
    for value in binding.get_outputs():
        if (kind := value.data_type()) not in _TYPES:
            raise EngineFailed(f"A model returned {kind} on the GPU, which is not supported.")
        # The array's memory belongs to the session's arena, so it keeps the session alive.
        results.append(gpu.wrap(value.data_ptr(), tuple(value.shape()), np.dtype(_TYPES[kind]), (value, session)))
    return results


# A session, and the shapes that it runs; None: any shape.
ProfileSession: TypeAlias = "tuple[ort.InferenceSession, Profile | None]"


class ModelRunner(ABC):
    """An opened model; thread-safe."""

    provider: str
    device: str
    precision: str
    batched: bool  # whether the recognizer's graph reads many lines per run (graph/rewrite.py)
    takes_pixels: bool  # whether its input is uint8 pixels; see network_input.model_input
    metadata: dict[str, str]  # the model's properties
    input_format: InputFormat
    _sessions: tuple[ModelRunner, ...] = ()  # empty except in a pool: a reference to itself would delay its release

    @property
    def sessions(self) -> tuple[ModelRunner, ...]:
        """The sessions that run the model: those of a pool, else this one."""
        return self._sessions or (self,)

    @abstractmethod
    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """Run one input (N, 3, H, W) float32; returns the named outputs (default: all), on the input's device."""

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """Run each session once with this input. Raises EngineUnavailable if that fails."""
        try:
            self.run(tensor)
        except session_errors() as error:
            raise EngineUnavailable(
                f"The model fails on an input of shape {tensor.shape}: {error}",
                "If memory is short, set a smaller OCRSVC_BATCH_PIXELS, fewer OCRSVC_GPU_STREAMS or OCRSVC_WORKERS, or "
                "more OCRSVC_GPU_ARENA_BYTES.",
            ) from error


class Session(ModelRunner):
    """One model under ONNX Runtime on one device.

    On the CPU, runs may overlap. On a GPU they must not, because they share a stream; a SessionPool ensures that.
    `parts` are ONNX Runtime sessions for ranges of input shapes: the first one that fits an input runs it; the last one
    takes any shape. `gpu` holds the stream of all parts; None on the CPU or without cupy.
    """

    def __init__(
        self, parts: Sequence[ProfileSession], config: SessionConfig, gpu: GpuContext | None = None, *, precision: str
    ) -> None:
        import onnxruntime as ort

        first, _ = parts[0]
        self._parts, self.gpu = tuple(parts), gpu
        self._input = first.get_inputs()[0].name
        self._outputs = [output.name for output in first.get_outputs()]
        self.provider, self.precision = str(first.get_providers()[0]), precision
        self.device = "cpu" if self.provider == CPU else "cuda"
        self.batched, self.takes_pixels = config.batched or self.device != "cpu", False
        self.input_format = config.input_format
        self.metadata: dict[str, str] = first.get_modelmeta().custom_metadata_map
        self._arena_values = config.arena_values if self.device == "cpu" else config.gpu.arena_values
        self._shrinking = ort.RunOptions()
        memory = "cpu:0" if self.device == "cpu" else "gpu:0"
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", memory)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner."""
        session = next(part for part, profile in self._parts if profile is None or profile.covers(array.shape))
        # Free the memory of a large run afterwards; as an option of the session, this entry would have no effect.
        options = self._shrinking if 0 < self._arena_values < array.size else None
        if self.gpu is not None and hasattr(array, "__cuda_array_interface__"):
            return run_bound(session, self.gpu, array, outputs or self._outputs, options)
        return cast("list[Any]", session.run(outputs, {self._input: array}, options))


class SessionPool(ModelRunner):
    """A pool of one model's sessions on a GPU or under OpenVINO; each runs one input at a time. Thread-safe.

    Memory grows with the number of sessions, not of engine threads. A run waits for a free session, and fails after
    `timeout_s`, so that a hanging device does not block threads for ever.
    """

    def __init__(self, sessions: Sequence[ModelRunner], timeout_s: float = 60.0) -> None:
        first = sessions[0]
        self._sessions = tuple(sessions)
        self.provider, self.device, self.precision = first.provider, first.device, first.precision
        self.batched, self.takes_pixels, self.metadata = first.batched, first.takes_pixels, first.metadata
        self.input_format = first.input_format
        self._timeout_s = timeout_s
        # Last in, first out: the session that was used last has warm memory, and unneeded sessions stay small.
        self._free: queue.LifoQueue[ModelRunner] = queue.LifoQueue()
        for session in reversed(self._sessions):
            self._free.put(session)

    @contextmanager
    def acquire(self) -> Iterator[ModelRunner]:
        """Take a session for the block. Raises EngineFailed if none becomes free in time."""
        try:
            session = self._free.get(timeout=self._timeout_s)
        except queue.Empty:
            raise EngineFailed(
                f"No run of the model ended within {self._timeout_s:g} s.", "See the worker's log."
            ) from None
        try:
            yield session
        finally:
            self._free.put(session)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner."""
        with self.acquire() as session:
            return session.run(array, outputs)

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """Warm up one session after the other. The model must not run meanwhile."""
        for session in self._sessions:
            session.warm_up(tensor)
