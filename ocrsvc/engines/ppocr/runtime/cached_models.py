"""Opens CPU models from the model cache, in single precision and in int8, and stores them there when they are made."""

from __future__ import annotations

import os
from typing import Final

import onnxruntime as ort

from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.providers import CPU
from ocrsvc.engines.ppocr.runtime.session import ProfileSession, Session, SessionConfig
from ocrsvc.errors import EngineUnavailable

_INT8: Final = "int8-"
_INT8_NAME: Final = _INT8 + models.RECOGNITION


def session_options(config: SessionConfig) -> ort.SessionOptions:
    """How ONNX Runtime is to run it, on whatever device."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = config.arena_values > 0
    if config.threads > 1:
        # A thread that waits for more work must not hold a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def make_int8(config: SessionConfig, cache: ModelCache | None = None) -> Session:
    """Open the recognizer with its large products in eight bits, made anew, on the CPU.

    Args:
        config: Of the session.
        cache: Keeps it, and from then on `open_model` takes it where the precision is "auto" or "int8".
    """
    shipped = models.read_model(models.RECOGNITION)
    made, key = models.quantized_recognizer(shipped), _key(shipped, _INT8)
    session = _open_and_store(made, session_options(config), cache or ModelCache(None), _INT8_NAME, key)
    return Session([ProfileSession(session)], config, precision="int8")


def has_int8(cache: ModelCache) -> bool:
    """Whether `make_int8` stored the model, in this version and for this processor."""
    return cache.find(_INT8_NAME, _key(models.read_model(models.RECOGNITION), _INT8)) is not None


def remove_int8(cache: ModelCache) -> None:
    """Remove the model in eight bits."""
    cache.remove(_INT8_NAME, _key(models.read_model(models.RECOGNITION), _INT8))


def _key(shipped: bytes, kind: str = "") -> str:
    return cache_key(shipped, models.preparation_code(), ort.__version__.encode(), *([kind.encode()] if kind else []))


def open_int8(
    name: str, shipped: bytes, options: ort.SessionOptions, config: SessionConfig, cache: ModelCache
) -> Session | None:
    """The model in eight bits, where one is cached and may be used.

    Raises:
        EngineUnavailable: It was asked for by name, and none is cached.
    """
    if name != models.RECOGNITION or config.precision not in ("auto", "int8"):
        return None
    cached = cache.find(_INT8_NAME, _key(shipped, _INT8))
    if cached is not None:
        return Session([ProfileSession(_open_stored(cached, options))], config, precision="int8")
    if config.precision == "int8":
        raise EngineUnavailable(
            "OCRSVC_PRECISION=int8, but no model in eight bits is kept for this version and this processor.",
            "Run `ocrsvc optimize` with pages like yours, with the same OCRSVC_MODEL_CACHE, or set "
            "OCRSVC_PRECISION=auto.",
        )
    return None


def open_fp32(name: str, shipped: bytes, options: ort.SessionOptions, cache: ModelCache) -> ort.InferenceSession:
    """The model as it was optimised at an earlier start, or as it is now, and cached for a later one."""
    key = _key(shipped)
    cached = cache.find(name, key)
    if cached is not None:
        return _open_stored(cached, options)
    return _open_and_store(models.prepare_model(name, shipped), options, cache, name, key)


def _open_stored(model: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=[CPU])


def _open_and_store(
    model: bytes, options: ort.SessionOptions, cache: ModelCache, name: str, key: str
) -> ort.InferenceSession:
    """Open a model that was just prepared, and cache it as ONNX Runtime optimised it, at most twice as large."""
    with cache.new_file(name, key, 2 * len(model)) as file:
        if file is not None:
            options.optimized_model_filepath = os.fspath(file)
        return ort.InferenceSession(model, options, providers=[CPU])
