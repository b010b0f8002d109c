"""How is a model opened and run? With providers.py and bound.py the only files that touch ONNX Runtime."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from ocrsvc.engines.ppocr import models, providers
from ocrsvc.engines.ppocr.bound import Card, is_on_card, open_card, run_bound
from ocrsvc.engines.ppocr.providers import (
    CPU,
    CUDA,
    TENSORRT,
    Device,
    OnCard,
    Options,
    Precision,
    Profile,
    Provider,
    Providers,
    check_precision,
    choose_provider,
)
from ocrsvc.engines.ppocr.store import Store, key_of
from ocrsvc.engines.ppocr.tensors import HEIGHT_PX
from ocrsvc.errors import EngineUnavailable

Tensor = NDArray[np.float32]

LOG: Final = logging.getLogger("ocrsvc.ppocr")

# Its classes have no base of their own.
_REFUSALS: Final = (
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
_EIGHT: Final = "int8-"
_SMALLEST: Final = {models.DETECTION: (1, 3, 160, 160), models.RECOGNITION: (1, 3, HEIGHT_PX, 96)}
_NO_GPU: Final = (
    "%s runs on the CPU, because the GPU does not work: %s. OCRSVC_DEVICE=cpu saves the attempt, cuda makes it a fault."
)
_FIRST: Final = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}


@dataclass(frozen=True, slots=True)
class Running:
    """How a session computes.

    Attributes:
        device: "cpu", "cuda", or "auto" (the GPU where one works).
        threads: Threads inside one run (intra-op).
        arena_values: On the CPU, the size of an input, in floats, up to which a run's memory is kept for the next one;
            larger runs give theirs back, so that one huge page does not stay in the RSS for ever. 0: nothing is kept.
        batched: Many lines in one recognition run, whatever the device; a GPU always reads so.
        provider: "cpu", "cuda", "tensorrt", or "auto" (what the device says).
        precision: What to compute in; "auto" takes what is kept in eight bits by `make_eight`, else single precision.
        card: How the card is shared, where there is one.
    """

    device: Device = "auto"
    threads: int = 1
    arena_values: int = 0
    batched: bool = False
    provider: Provider = "auto"
    precision: Precision = "auto"
    card: OnCard = field(default_factory=OnCard)

    @property
    def may_fall_back(self) -> bool:
        """Whether the CPU will do where the GPU does not work."""
        return self.device == "auto" and self.provider == "auto" and self.precision != "fp16"


class Runner(Protocol):
    """A model, ready to run; safe to share between threads.

    Attributes:
        sessions: All of it; only to warm each of them up.
        provider, device, precision: Where and how it computes.
        batched: Whether the recogniser's graph takes many lines at once; see surgery.py.
        metadata: The model's own.
    """

    sessions: tuple[Session, ...]
    provider: str
    device: str
    precision: str
    batched: bool
    metadata: dict[str, str]

    def lane(self) -> AbstractContextManager[Session]:
        """A session for several runs in a row; on a card nobody else uses it, nor its stream, meanwhile."""
        ...

    def run(self, tensor: Tensor, outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the model on one input (N, 3, H, W) float32; returns the named outputs, or all of them, as numpy's."""
        ...

    def run_arrays(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """The same for an array that lies on the card: so do the outputs, and nothing passes through the host.

        A numpy array gives numpy arrays, as `run` does. See bound.py for what it means for streams.
        """
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """The model, opened for some shapes: those of the profile, or any."""

    session: ort.InferenceSession
    profile: Profile | None = None


class Session:
    """One model on one device; see Runner.

    On the CPU its runs may overlap. On a card they should not: they would share one stream, and lanes.py sees to it.

    Args:
        parts: The first that covers a shape runs it; the last covers any.
        running: How it was opened.
        card: The stream that the parts compute on; None on the CPU, and where there is no cupy.
        precision: What the parts compute in.
    """

    def __init__(
        self, parts: Sequence[Part], running: Running, card: Card | None = None, *, precision: str = "fp32"
    ) -> None:
        first = parts[0].session
        self._parts = tuple(parts)
        self._input = first.get_inputs()[0].name
        self._outputs = [output.name for output in first.get_outputs()]
        self.sessions: tuple[Session, ...] = (self,)
        self.card = card
        self.provider = str(first.get_providers()[0])
        self.device = "cpu" if self.provider == CPU else "cuda"
        self.precision = precision
        self.batched = running.batched or self.device != "cpu"
        self.metadata: dict[str, str] = first.get_modelmeta().custom_metadata_map
        self._kept_values = running.arena_values if self.device == "cpu" else running.card.kept_values
        self._shrinking = ort.RunOptions()
        memory = "cpu:0" if self.device == "cpu" else "gpu:0"
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", memory)

    @contextmanager
    def lane(self) -> Iterator[Session]:
        """See Runner."""
        yield self

    def run(self, tensor: Tensor, outputs: Sequence[str] | None = None) -> list[Any]:
        """See Runner."""
        session = self._session_for(tensor.shape)
        found: list[Any] = session.run(outputs, {self._input: tensor}, self._options(tensor.size))
        return found

    def run_arrays(self, array: Any, outputs: Sequence[str] | None = None) -> list[Any]:
        """See Runner. Raises EngineFailed for an array of a card that this session cannot reach."""
        if self.card is None or not is_on_card(array):
            return self.run(array, outputs)
        session = self._session_for(array.shape)
        return run_bound(session, self.card, array, outputs or self._outputs, self._options(array.size))

    def warm_up(self, tensor: Tensor) -> None:
        """A first run of that shape. Raises EngineUnavailable: what fails now would fail in a request."""
        try:
            self.run(tensor)
        except _REFUSALS as error:
            raise EngineUnavailable(
                f"A run of the shape {tensor.shape} fails: {error}",
                "If memory is short, set a smaller OCRSVC_BATCH_PIXELS, fewer OCRSVC_GPU_STREAMS or OCRSVC_WORKERS, or "
                "more OCRSVC_GPU_ARENA_BYTES.",
            ) from error

    def _session_for(self, shape: tuple[int, ...]) -> ort.InferenceSession:
        return next(part.session for part in self._parts if part.profile is None or part.profile.covers(shape))

    def _options(self, values: int) -> ort.RunOptions | None:
        """What gives a large run's memory back; only so, since the same entry in a session's options does nothing."""
        return self._shrinking if 0 < self._kept_values < values else None


def open_session(name: str, running: Running, store: Store | None = None) -> Session:
    """Open a model of models.py once.

    Args:
        name: models.DETECTION or models.RECOGNITION.
        running: On which device, with how many threads, and which memory is kept.
        store: Keeps what was made of the model, so that the next start is quicker.

    Raises:
        EngineUnavailable: The model is missing, or the device was asked for by name and cannot be used.
    """
    return open_sessions(name, replace(running, card=replace(running.card, streams=1)), store)[0]


def open_sessions(name: str, running: Running, store: Store | None = None) -> list[Session]:
    """One session on the CPU, one for each stream on a card; see `open_session`."""
    store = store or Store(None)
    provider = choose_provider(running.device, running.provider, ort.get_available_providers())
    check_precision(running.precision, provider)
    if provider == "cpu":
        return [_open_on_cpu(name, running, store)]
    try:
        return _open_on_card(name, running, store, provider)
    except _REFUSALS as error:
        if not running.may_fall_back:
            raise _unusable(provider, error) from error
        LOG.warning(_NO_GPU, name, error)
        return [_open_on_cpu(name, running, store)]


def _unusable(provider: Provider, error: BaseException) -> EngineUnavailable:
    library = "TensorRT 10" if provider == "tensorrt" else "cuDNN"
    return EngineUnavailable(
        f"A GPU was asked for, but ONNX Runtime could not start its provider {_FIRST[provider]}: {error}.",
        f"Check that a GPU is visible (nvidia-smi) and that CUDA and {library} of the right major version are "
        "installed, or set OCRSVC_DEVICE=cpu and OCRSVC_PROVIDER=auto.",
    )


def _open_on_cpu(name: str, running: Running, store: Store) -> Session:
    shipped, options = models.read_model(name), _options(running)
    if running.arena_values:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if running.batched:
        opened = ort.InferenceSession(models.mend(name, shipped, batched=True), options, providers=[(CPU, {})])
        return Session([Part(opened)], running)
    kept = _find_eight(name, shipped, running.precision, store)
    if kept is not None:
        return _open_eight(kept, options, running)
    return Session([Part(_open_kept(name, shipped, options, store))], running)


def _open_on_card(name: str, running: Running, store: Store, provider: Provider) -> list[Session]:
    providers.load_gpu_libraries(provider)
    shipped = models.read_model(name)
    whole = models.mend(name, shipped, batched=True) if provider == "tensorrt" else b""
    mended = models.mend(name, shipped, batched=True, halved=running.precision == "fp16")
    lanes = [_open_lane(whole, mended, running, store) for _ in range(running.card.streams)]
    # A card that this build has no kernels for opens a session as well as any, and fails at its first run.
    lanes[0].run(np.zeros(_SMALLEST[name], np.float32))
    return lanes


def _open_lane(whole: bytes, mended: bytes, running: Running, store: Store) -> Session:
    """One stream's session: a part for each profile of TensorRT, if `whole` is given, and one of CUDA for any shape.

    Args:
        whole: The model in single precision: TensorRT chooses by itself where half of it will do.
        mended: The model as CUDA runs it.
        running, store: As for `open_session`.
    """
    card = open_card()
    stream = card.address if card is not None else None
    on_cuda: Providers = [(CUDA, providers.cuda_options(running.card, running.precision, stream)), (CPU, {})]
    parts = []
    for profile in running.card.profiles if whole else ():
        options = _tensorrt_options(profile, running.precision, stream, whole, store)
        parts.append(Part(_open(whole, running, [(TENSORRT, options), *on_cuda]), profile))
    precision = "fp16" if running.precision == "fp16" else "fp32"
    return Session([*parts, Part(_open(mended, running, on_cuda))], running, card, precision=precision)


def _tensorrt_options(
    profile: Profile, precision: Precision, stream: int | None, model: bytes, store: Store
) -> Options:
    versions = f"{ort.__version__} {providers.tensorrt_version()}"
    key = key_of(model, versions.encode(), precision.encode(), str(profile).encode())
    folder: Path | None = store.folder("tensorrt", key)
    return providers.tensorrt_options(models.INPUT, profile, precision, stream, folder)


def _open(model: bytes, running: Running, chosen: Providers) -> ort.InferenceSession:
    """A session of these providers or none: without its fallback ONNX Runtime says why it fails."""
    opened = ort.InferenceSession(model, _options(running), providers=chosen, enable_fallback=0)
    if opened.get_providers()[0] != chosen[0][0]:
        raise RuntimeError(f"it fell back to {opened.get_providers()[0]}")
    return opened


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
    return Session([Part(made)], running, precision="int8")


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
    return Session([Part(opened)], running, precision="int8")


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
