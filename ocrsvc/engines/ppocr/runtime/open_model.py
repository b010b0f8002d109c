"""Opens a model's sessions: of ONNX Runtime one on the CPU or one for each stream of a GPU, of OpenVINO a few."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Final

import numpy as np
import onnxruntime as ort

from ocrsvc.engines.ppocr.runtime import models, providers
from ocrsvc.engines.ppocr.runtime.cached_models import open_fp32, open_int8, session_options
from ocrsvc.engines.ppocr.runtime.io_binding import open_gpu_context
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, ModelPart
from ocrsvc.engines.ppocr.runtime.open_openvino import open_openvino
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
from ocrsvc.engines.ppocr.runtime.session import SESSION_ERRORS, ProfileSession, Session, SessionConfig
from ocrsvc.engines.ppocr.runtime.session_pool import ModelRunner, SessionPool
from ocrsvc.errors import EngineUnavailable

LOG: Final = logging.getLogger("ocrsvc.ppocr")

_NO_GPU: Final = (
    "%s runs on the CPU, because the GPU does not work: %s. OCRSVC_DEVICE=cpu saves the attempt, cuda makes it a fault."
)


def open_model(part: ModelPart, config: SessionConfig, cache: ModelCache | None = None) -> ModelRunner:
    """Open a part of a model: one session on the CPU, whose users bound its runs; a pool on a GPU, under OpenVINO.

    Args:
        part: A detector or a recognizer.
        config: On which device, with how many threads, and which memory is kept.
        cache: Keeps what was made of the model, so that the next start is quicker.

    Raises:
        EngineUnavailable: The device was asked for by name and cannot be used.
        BadModel: The part is no model of its kind.
    """
    cache = cache or ModelCache(None)
    config = replace(config, input_format=part.input_format)
    provider = choose_provider(config.device, config.provider, ort.get_available_providers())
    check_precision(config.precision, provider)
    if provider == "cpu":
        return _open_on_cpu(part, config, cache)
    if provider == "openvino":
        return SessionPool(open_openvino(part, config, cache))
    try:
        return SessionPool(_open_on_gpu(part, config, cache, provider))
    except SESSION_ERRORS as error:
        if not config.may_fall_back:
            raise _gpu_unavailable(provider, error) from error
        LOG.warning(_NO_GPU, part.file, error)
        return _open_on_cpu(part, config, cache)


def _gpu_unavailable(provider: Provider, error: BaseException) -> EngineUnavailable:
    name, library = (TENSORRT, "TensorRT 10") if provider == "tensorrt" else (CUDA, "cuDNN")
    return EngineUnavailable(
        f"A GPU was asked for, but ONNX Runtime could not start its provider {name}: {error}.",
        f"Check that a GPU is visible (nvidia-smi) and that CUDA and {library} of the right major version are "
        "installed, or set OCRSVC_DEVICE=cpu and OCRSVC_PROVIDER=auto.",
    )


def _open_on_cpu(part: ModelPart, config: SessionConfig, cache: ModelCache) -> Session:
    options = session_options(config)
    if config.arena_values:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if config.batched:
        opened = ort.InferenceSession(models.prepare_model(part, batched=True), options, providers=[(CPU, {})])
        return Session([ProfileSession(opened)], config)
    if config.precision == "int8" and part.kind == RECOGNITION:
        return open_int8(part, options, config, cache)
    return Session([ProfileSession(open_fp32(part, options, cache))], config)


def _open_on_gpu(part: ModelPart, config: SessionConfig, cache: ModelCache, provider: Provider) -> list[Session]:
    providers.load_gpu_libraries(provider)
    fp32_model = models.prepare_model(part, batched=True) if provider == "tensorrt" else b""
    cuda_model = models.prepare_model(part, batched=True, half_precision=config.precision == "fp16")
    sessions = [_open_stream_session(fp32_model, cuda_model, config, cache) for _ in range(config.gpu.streams)]
    # A GPU that this build has no kernels for opens a session as well as any, and fails at its first run.
    sessions[0].run(np.zeros(part.smallest_shape, np.float32))
    return sessions


def _open_stream_session(fp32_model: bytes, cuda_model: bytes, config: SessionConfig, cache: ModelCache) -> Session:
    """One stream's session: for each profile of TensorRT, if `fp32_model` is given, and for any shape on CUDA.

    Args:
        fp32_model: The model in single precision: TensorRT chooses by itself where half of it will do.
        cuda_model: The model as CUDA runs it.
        config, cache: As for `open_session`.
    """
    gpu = open_gpu_context()
    stream = gpu.address if gpu is not None else None
    on_cuda: Providers = [(CUDA, providers.cuda_options(config.gpu, config.precision, stream)), (CPU, {})]
    parts = []
    for profile in config.gpu.profiles if fp32_model else ():
        # The engine is built, or read from its file, before the session is open, and its file is not used after that.
        with cache.cached_folder("tensorrt", _tensorrt_key(profile, config.precision, fp32_model)) as folder:
            options = providers.tensorrt_options(
                models.input_name(fp32_model), profile, config.precision, stream, folder
            )
            parts.append(ProfileSession(_open(fp32_model, config, [(TENSORRT, options), *on_cuda]), profile))
    precision = "fp16" if config.precision == "fp16" else "fp32"
    return Session([*parts, ProfileSession(_open(cuda_model, config, on_cuda))], config, gpu, precision=precision)


def _tensorrt_key(profile: Profile, precision: Precision, model: bytes) -> str:
    versions = f"{ort.__version__} {providers.tensorrt_version()}"
    return cache_key(model, versions.encode(), precision.encode(), str(profile).encode())


def _open(model: bytes, config: SessionConfig, provider_list: Providers) -> ort.InferenceSession:
    """A session of these providers or none: without its fallback ONNX Runtime says why it fails."""
    opened = ort.InferenceSession(model, session_options(config), providers=provider_list, enable_fallback=0)
    if opened.get_providers()[0] != provider_list[0][0]:
        raise RuntimeError(f"it fell back to {opened.get_providers()[0]}")
    return opened


@functools.cache
def _register_arena() -> None:
    """One arena for all sessions of the process that keep memory: what one has kept, another need not ask for."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))
