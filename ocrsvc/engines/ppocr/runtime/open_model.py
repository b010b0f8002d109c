"""Opens a model's ONNX Runtime sessions: one on the CPU, or one for each stream of a GPU."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Final

import numpy as np
import onnxruntime as ort

from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX
from ocrsvc.engines.ppocr.runtime import models, providers
from ocrsvc.engines.ppocr.runtime.cached_models import find_eight, open_eight, open_single, session_options
from ocrsvc.engines.ppocr.runtime.io_binding import open_card
from ocrsvc.engines.ppocr.runtime.model_cache import Store, key_of
from ocrsvc.engines.ppocr.runtime.providers import (
    CPU,
    CUDA,
    TENSORRT,
    Precision,
    Profile,
    Provider,
    Providers,
    check_precision,
    choose_provider,
)
from ocrsvc.engines.ppocr.runtime.session import REFUSALS, Part, Running, Session
from ocrsvc.errors import EngineUnavailable

LOG: Final = logging.getLogger("ocrsvc.ppocr")

_SMALLEST: Final = {models.DETECTION: (1, 3, 160, 160), models.RECOGNITION: (1, 3, HEIGHT_PX, 96)}
_NO_GPU: Final = (
    "%s runs on the CPU, because the GPU does not work: %s. OCRSVC_DEVICE=cpu saves the attempt, cuda makes it a fault."
)
_FIRST: Final = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}


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
    except REFUSALS as error:
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
    shipped, options = models.read_model(name), session_options(running)
    if running.arena_values:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if running.batched:
        opened = ort.InferenceSession(models.mend(name, shipped, batched=True), options, providers=[(CPU, {})])
        return Session([Part(opened)], running)
    kept = find_eight(name, shipped, running.precision, store)
    if kept is not None:
        return open_eight(kept, options, running)
    return Session([Part(open_single(name, shipped, options, store))], running)


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
        # The engine is built, or read from its file, before the session is open, and its file is not used after that.
        with store.folder("tensorrt", _tensorrt_key(profile, running.precision, whole)) as folder:
            options = providers.tensorrt_options(models.INPUT, profile, running.precision, stream, folder)
            parts.append(Part(_open(whole, running, [(TENSORRT, options), *on_cuda]), profile))
    precision = "fp16" if running.precision == "fp16" else "fp32"
    return Session([*parts, Part(_open(mended, running, on_cuda))], running, card, precision=precision)


def _tensorrt_key(profile: Profile, precision: Precision, model: bytes) -> str:
    versions = f"{ort.__version__} {providers.tensorrt_version()}"
    return key_of(model, versions.encode(), precision.encode(), str(profile).encode())


def _open(model: bytes, running: Running, chosen: Providers) -> ort.InferenceSession:
    """A session of these providers or none: without its fallback ONNX Runtime says why it fails."""
    opened = ort.InferenceSession(model, session_options(running), providers=chosen, enable_fallback=0)
    if opened.get_providers()[0] != chosen[0][0]:
        raise RuntimeError(f"it fell back to {opened.get_providers()[0]}")
    return opened


@functools.cache
def _register_arena() -> None:
    """One arena for all sessions of the process that keep memory: what one has kept, another need not ask for."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))
