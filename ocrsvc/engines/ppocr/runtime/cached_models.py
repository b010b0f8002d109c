"""Opens CPU models from the model cache, in single precision and in int8, and stores them there when they are made."""

from __future__ import annotations

import os
from typing import Final

import onnxruntime as ort

from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import ModelPart
from ocrsvc.engines.ppocr.runtime.providers import CPU
from ocrsvc.engines.ppocr.runtime.session import ProfileSession, Session, SessionConfig

_INT8: Final = "int8-"


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


def make_int8(part: ModelPart, config: SessionConfig, cache: ModelCache | None = None) -> Session:
    """Open a recognizer with its large products in eight bits, made anew, on the CPU.

    Args:
        part: It.
        config: Of the session.
        cache: Keeps it, so that `open_int8` need not make it again.
    """
    made, key = models.quantized_recognizer(part), _key(part.shipped, _INT8)
    session = _open_and_store(made, session_options(config), cache or ModelCache(None), _int8_name(part), key)
    return Session([ProfileSession(session)], config, precision="int8")


def _key(shipped: bytes, kind: str = "") -> str:
    return cache_key(shipped, models.preparation_code(), ort.__version__.encode(), *([kind.encode()] if kind else []))


def _int8_name(part: ModelPart) -> str:
    return _INT8 + part.cache_name


def open_int8(part: ModelPart, options: ort.SessionOptions, config: SessionConfig, cache: ModelCache) -> Session:
    """The recognizer in eight bits, as it was made at an earlier start, or as it is now, and cached for a later one."""
    cached = cache.find(_int8_name(part), _key(part.shipped, _INT8))
    if cached is None:
        return make_int8(part, config, cache)
    return Session([ProfileSession(_open_stored(cached, options))], config, precision="int8")


def open_fp32(part: ModelPart, options: ort.SessionOptions, cache: ModelCache) -> ort.InferenceSession:
    """The model as it was optimised at an earlier start, or as it is now, and cached for a later one."""
    name, key = part.cache_name, _key(part.shipped)
    cached = cache.find(name, key)
    if cached is not None:
        return _open_stored(cached, options)
    return _open_and_store(models.prepare_model(part), options, cache, name, key)


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
