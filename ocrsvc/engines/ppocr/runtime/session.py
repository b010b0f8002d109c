"""A model that is ready to run: its ONNX Runtime sessions on a CPU or one stream of a GPU, and pools of sessions."""

from __future__ import annotations

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
from ocrsvc.engines.ppocr.runtime.io_binding import GpuContext, is_on_gpu, run_bound
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
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


@dataclass(frozen=True, slots=True)
class ProfileSession:
    """The model, opened for some shapes: those of the profile, or any."""

    session: ort.InferenceSession
    profile: Profile | None = None


class Session:
    """One model on one device; its attributes are what the model's users ask of it, and a SessionPool has the same.

    On the CPU its runs may overlap. On a GPU they should not: they would share one stream; a SessionPool prevents it.
    The first of the `parts` that covers a shape runs it; the last covers any. `batched`: the recognizer's graph takes
    many lines at once (graph/rewrite.py). `takes_pixels`: see network_input.model_input. `gpu` is the stream that the
    parts compute on; None on the CPU, and where there is no cupy.
    """

    def __init__(
        self,
        parts: Sequence[ProfileSession],
        config: SessionConfig,
        gpu: GpuContext | None = None,
        *,
        precision: str = "fp32",
    ) -> None:
        first = parts[0].session
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

    @property
    def sessions(self) -> tuple[Session, ...]:
        """See the attributes. It is not stored: a session that refers to itself would outlive its last user."""
        return (self,)

    def run(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the model on one input (N, 3, H, W) float32; returns the named outputs, or all of them.

        A numpy array gives numpy arrays. For an array that lies on the GPU the outputs lie there too, and nothing
        passes through the host; see io_binding.py for what it means for streams, and what is raised.
        """
        session = next(part.session for part in self._parts if part.profile is None or part.profile.covers(array.shape))
        # Gives a large run's memory back; only so, since the same entry in a session's options does nothing.
        options = self._shrinking if 0 < self._arena_values < array.size else None
        if self.gpu is not None and is_on_gpu(array):
            return run_bound(session, self.gpu, array, outputs or self._outputs, options)
        found: list[Any] = session.run(outputs, {self._input: array}, options)
        return found

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """A first run of that shape. Raises EngineUnavailable: what fails now would fail in a request."""
        try:
            self.run(tensor)
        except SESSION_ERRORS as error:
            raise EngineUnavailable(
                f"A run of the shape {tensor.shape} fails: {error}",
                "If memory is short, set a smaller OCRSVC_BATCH_PIXELS, fewer OCRSVC_GPU_STREAMS or OCRSVC_WORKERS, or "
                "more OCRSVC_GPU_ARENA_BYTES.",
            ) from error


AnySession = Session | OpenVinoSession

_TIMEOUT_S: Final = 60.0


class SessionPool:
    """Sessions of one model on a GPU or under OpenVINO, used as one; at most one run a session; further runs wait.

    Each session has memory of its own, on a GPU a stream and an arena. So the memory in use follows the number of
    sessions, not that of the engine threads. A run fails after `timeout_s` without a free one: a device that hangs must
    not hold threads for ever. All calls may come from any thread.
    """

    def __init__(self, sessions: Sequence[AnySession], timeout_s: float = _TIMEOUT_S) -> None:
        first = sessions[0]
        self.sessions: tuple[AnySession, ...] = tuple(sessions)
        self.provider, self.device, self.precision = first.provider, first.device, first.precision
        self.batched, self.takes_pixels, self.metadata = first.batched, first.takes_pixels, first.metadata
        self.input_format = first.input_format
        self._timeout_s = timeout_s
        # The last one used is taken first: its memory is warm, and one that is not needed stays small.
        self._free: queue.LifoQueue[AnySession] = queue.LifoQueue()
        for session in reversed(self.sessions):
            self._free.put(session)

    @contextmanager
    def acquire(self) -> Iterator[AnySession]:
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
        """See Session."""
        with self.acquire() as session:
            return session.run(array, outputs)

    def warm_up(self, tensor: NDArray[Any]) -> None:
        """See Session; of all sessions, one after the other. Nobody else may use them meanwhile."""
        for session in self.sessions:
            session.warm_up(tensor)


ModelRunner = Session | OpenVinoSession | SessionPool  # a model, ready to run; safe to share between threads
