"""A model that is ready to run: its ONNX Runtime sessions on a CPU or one stream of a GPU, and pools of sessions.

Arrays that already lie on the GPU are bound to a session, without a copy (ONNX Runtime's IO binding); this file and
gpu/arrays.py are all that uses cupy for models.

**Streams.** A session on a GPU computes on one stream, which it has been given as `user_compute_stream` and which
nothing else uses. That stream, and not the processor, waits for what the caller queued before on cupy's current stream;
a run has ended when it returns, so what comes back may be used on any stream at once. A caller that makes the session's
stream the current one (`with session.gpu.stream:`) saves that wait and nothing else.
"""

from __future__ import annotations

import importlib.util
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from ocrsvc.engines.ppocr.pipeline.network_input import USUAL, InputFormat
from ocrsvc.engines.ppocr.runtime.providers import CPU, Device, GpuConfig, Precision, Profile, Provider
from ocrsvc.errors import EngineFailed, EngineUnavailable

Tensor = NDArray[np.float32]

# Its classes have no base of their own.
SESSION_ERRORS: Final = (
    ImportError,
    OSError,
    RuntimeError,
    ValueError,
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a session computes."""

    device: Device = "auto"  # "cpu", "cuda", or "auto" (the GPU where one works)
    threads: int = 1  # threads inside one run (intra-op)
    # on the CPU, the size of an input, in floats, up to which a run's memory is kept for the next one; larger runs give
    # theirs back, so that one huge page does not stay in the RSS for ever. 0: nothing is kept.
    arena_values: int = 0
    batched: bool = False  # many lines in one recognition run, whatever the device; a GPU always reads so
    # "cpu" (ONNX Runtime), "openvino", "cuda", "tensorrt", or "auto" (what the device says)
    provider: Provider = "auto"
    # what to compute in; "auto" is single precision, but bf16 under OpenVINO where the processor has it
    precision: Precision = "auto"
    sessions: int = 1  # under OpenVINO, how many runs may be under way at once; each has memory of its own
    gpu: GpuConfig = field(default_factory=GpuConfig)  # how the GPU is shared, where there is one
    input_format: InputFormat = USUAL  # what the model takes; `open_model` fills it in

    @property
    def may_fall_back(self) -> bool:
        """Whether the CPU will do where the GPU does not work."""
        return self.device == "auto" and self.provider == "auto" and self.precision not in ("fp16", "bf16")


_TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
}


class GpuContext:
    """The GPU that this process sees, through cupy, with a stream of its own on which one session computes.

    `address` is that of the stream, for `user_compute_stream`; `device` is ONNX Runtime's name of the memory.
    """

    device = "cuda"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.address = int(self.stream.ptr)

    def wait_for_caller(self) -> None:
        """Let the stream wait for what the calling thread has queued so far."""
        queued = self._cupy.cuda.get_current_stream()
        if queued.ptr != self.stream.ptr:
            self.stream.wait_event(queued.record())

    def wrap(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """An array over memory that `owner` keeps; nothing is copied."""
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, size_bytes, owner)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))


def open_gpu_context() -> GpuContext | None:
    """The GPU with a new stream; None where cupy is missing or fails: arrays go by the processor's memory there."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        import cupy

        return GpuContext(cupy)
    except (ImportError, RuntimeError):
        # The reason is logged where cupy is asked to prepare pixels: models run without it.
        return None


def is_on_gpu(array: Any) -> bool:
    """Whether the array says that it lies on a GPU, as cupy's do."""
    return hasattr(array, "__cuda_array_interface__")


def run_bound(
    session: ort.InferenceSession,
    gpu: GpuContext,
    array: Any,
    outputs: Sequence[str],
    options: ort.RunOptions | None = None,
) -> list[Any]:
    """Run a model of one input on an array of the GPU; its outputs stay there. Nothing passes through the host.

    The session computes on the stream of `gpu`; the array is C-contiguous, of the input's shape and dtype. Raises
    EngineFailed: it is not contiguous, or an output has a dtype that is not known here.
    """
    interface = array.__cuda_array_interface__
    address, shape, dtype = interface["data"][0], tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != np.empty(shape, dtype).strides:
        raise EngineFailed("An array on the GPU is not contiguous, and models read contiguous ones only.")
    gpu.wait_for_caller()
    binding = session.io_binding()
    binding.bind_input(session.get_inputs()[0].name, gpu.device, 0, dtype.type, shape, address)
    for name in outputs:
        binding.bind_output(name, gpu.device, 0)
    session.run_with_iobinding(binding, options)
    return [_as_array(gpu, value, session) for value in binding.get_outputs()]


def _as_array(gpu: GpuContext, value: Any, session: object) -> Any:
    """An output as an array over its memory, which lives as long as the array; the session's arena owns it."""
    kind = value.data_type()
    if kind not in _TYPES:
        raise EngineFailed(f"A model gave {kind} on the GPU, which is not known here.")
    return gpu.wrap(value.data_ptr(), tuple(value.shape()), np.dtype(_TYPES[kind]), (value, session))


ProfileSession = tuple[ort.InferenceSession, Profile | None]
"""A model, opened for the shapes of a profile, or for any."""


class ModelRunner:
    """A model, ready to run; safe to share between threads. What its users ask of it are its attributes.

    `batched`: the recognizer's graph takes many lines at once (graph/rewrite.py). `takes_pixels`: see
    network_input.model_input. `metadata` are the model's properties.
    """

    provider: str
    device: str
    precision: str
    batched: bool
    takes_pixels: bool
    metadata: dict[str, str]
    input_format: InputFormat
    _sessions: tuple[ModelRunner, ...] = ()  # of a pool; a session that refers to itself would outlive its last user

    @property
    def sessions(self) -> tuple[ModelRunner, ...]:
        """Those that run the model: of a pool all, else this one."""
        return self._sessions or (self,)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the model on one input (N, 3, H, W) float32; returns the named outputs, or all of them.

        A numpy array gives numpy arrays. For an array that lies on the GPU the outputs lie there too, and nothing
        passes through the host; see `run_bound` for what is raised.
        """
        raise NotImplementedError

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """A first run of that shape in each session. Raises EngineUnavailable: it would fail in a request."""
        try:
            self.run(tensor)
        except SESSION_ERRORS as error:
            raise EngineUnavailable(
                f"A run of the shape {tensor.shape} fails: {error}",
                "If memory is short, set a smaller OCRSVC_BATCH_PIXELS, fewer OCRSVC_GPU_STREAMS or OCRSVC_WORKERS, or "
                "more OCRSVC_GPU_ARENA_BYTES.",
            ) from error


class Session(ModelRunner):
    """One model under ONNX Runtime on one device.

    On the CPU its runs may overlap. On a GPU they should not: they would share one stream; a SessionPool prevents it.
    The first of the `parts` that covers a shape runs it; the last covers any. `gpu` is the stream that the parts
    compute on; None on the CPU, and where there is no cupy.
    """

    def __init__(
        self,
        parts: Sequence[ProfileSession],
        config: SessionConfig,
        gpu: GpuContext | None = None,
        *,
        precision: str = "fp32",
    ) -> None:
        first, _ = parts[0]
        self._parts = tuple(parts)
        self._input = first.get_inputs()[0].name
        self._outputs = [output.name for output in first.get_outputs()]
        self.gpu = gpu
        self.provider = str(first.get_providers()[0])
        self.device = "cpu" if self.provider == CPU else "cuda"
        self.precision = precision
        self.batched = config.batched or self.device != "cpu"
        self.takes_pixels = False
        self.input_format = config.input_format
        self.metadata: dict[str, str] = first.get_modelmeta().custom_metadata_map
        self._arena_values = config.arena_values if self.device == "cpu" else config.gpu.arena_values
        self._shrinking = ort.RunOptions()
        memory = "cpu:0" if self.device == "cpu" else "gpu:0"
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", memory)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See ModelRunner."""
        session = next(one for one, profile in self._parts if profile is None or profile.covers(array.shape))
        # Gives a large run's memory back; only so, since the same entry in a session's options does nothing.
        options = self._shrinking if 0 < self._arena_values < array.size else None
        if self.gpu is not None and is_on_gpu(array):
            return run_bound(session, self.gpu, array, outputs or self._outputs, options)
        found: list[Any] = session.run(outputs, {self._input: array}, options)
        return found


_TIMEOUT_S: Final = 60.0


class SessionPool(ModelRunner):
    """Sessions of one model on a GPU or under OpenVINO, used as one; at most one run a session; further runs wait.

    Each session has memory of its own, on a GPU a stream and an arena. So the memory in use follows the number of
    sessions, not that of the engine threads. A run fails after `timeout_s` without a free one: a device that hangs must
    not hold threads for ever. All calls may come from any thread.
    """

    def __init__(self, sessions: Sequence[ModelRunner], timeout_s: float = _TIMEOUT_S) -> None:
        first = sessions[0]
        self._sessions = tuple(sessions)
        self.provider, self.device, self.precision = first.provider, first.device, first.precision
        self.batched, self.takes_pixels, self.metadata = first.batched, first.takes_pixels, first.metadata
        self.input_format = first.input_format
        self._timeout_s = timeout_s
        # The last one used is taken first: its memory is warm, and one that is not needed stays small.
        self._free: queue.LifoQueue[ModelRunner] = queue.LifoQueue()
        for session in reversed(self._sessions):
            self._free.put(session)

    @contextmanager
    def acquire(self) -> Iterator[ModelRunner]:
        """A session that nobody else uses meanwhile. Raises EngineFailed when none comes free."""
        try:
            session = self._free.get(timeout=self._timeout_s)
        except queue.Empty:
            raise EngineFailed(
                f"No run of the model ended within {self._timeout_s:g} s.", "Look at the worker's log."
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
        """See ModelRunner; one session after the other, which nobody else may use meanwhile."""
        for session in self._sessions:
            session.warm_up(tensor)
