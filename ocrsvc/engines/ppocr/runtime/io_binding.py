"""Runs a model on arrays that already lie on the GPU, by ONNX Runtime's IO binding.

This file and gpu/arrays.py are all that uses cupy for models.

**Streams.** A session on a GPU computes on one stream, which it has been given as `user_compute_stream` and which
nobody else uses. That stream, and not the processor, waits for what the caller queued before on cupy's current stream;
a run has ended when it returns, so what comes back may be used on any stream at once. A caller that makes the session's
stream the current one (`with session.gpu.stream:`) saves that wait and nothing else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from ocrsvc.errors import EngineFailed

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
