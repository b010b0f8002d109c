"""Opens CPU models from the model cache, in single precision and in int8, and stores them there when they are made."""

from __future__ import annotations

import os
from typing import Final

import onnxruntime as ort

from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import Store, key_of
from ocrsvc.engines.ppocr.runtime.providers import CPU, Precision
from ocrsvc.engines.ppocr.runtime.session import Part, Running, Session
from ocrsvc.errors import EngineUnavailable

_EIGHT: Final = "int8-"


def session_options(running: Running) -> ort.SessionOptions:
    """How ONNX Runtime is to run it, on whatever device."""
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
    options, shipped = session_options(running), models.read_model(name)
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


def find_eight(name: str, shipped: bytes, precision: Precision, store: Store) -> bytes | None:
    """The model in eight bits, where one is kept and may be used.

    Raises:
        EngineUnavailable: It was asked for by name, and none is kept.
    """
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


def open_eight(kept: bytes, options: ort.SessionOptions, running: Running) -> Session:
    """What `find_eight` found, ready to run."""
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = ort.InferenceSession(kept, options, providers=[CPU])
    return Session([Part(opened)], running, precision="int8")


def open_single(name: str, shipped: bytes, options: ort.SessionOptions, store: Store) -> ort.InferenceSession:
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
