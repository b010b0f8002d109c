"""Opens the models under OpenVINO: the detector in one session, the recognizer in as many as lines are read at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ocrsvc.engines.ppocr.runtime import models, openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.openvino_recognizer import STEPS, OpenVinoRecognizer
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.errors import EngineUnavailable

MOST_KERNELS: Final = {models.DETECTION: 100, models.RECOGNITION: 600}
"""Kernels of one kind that a session keeps, the least recently used go first: of about 3 shapes of pages
and half the widths of lines. With four times as many a corpus of pages of all sizes costs the same processor time and
90 MB more."""


def open_openvino(name: str, config: SessionConfig, cache: ModelCache) -> list[OpenVinoSession]:
    """The model in as many sessions as `config.sessions`.

    Args:
        name: models.DETECTION or models.RECOGNITION.
        config: Of each session; its precision is "fp32", "bf16", or "auto": bf16 where the processor has it.
        cache: Keeps the prepared graph.

    Raises:
        EngineUnavailable: OpenVINO is not installed or does not work, or the processor does not compute in bf16.
    """
    if not openvino_session.is_installed():
        raise EngineUnavailable(
            "OpenVINO was asked for, and the package `openvino` is not installed.",
            "Install ocrsvc with the extra openvino, or set OCRSVC_PROVIDER=auto and OCRSVC_PRECISION=auto.",
        )
    if config.precision == "bf16" and not openvino_session.computes_bf16():
        raise EngineUnavailable(
            "OCRSVC_PRECISION=bf16, but this processor does not compute in bfloat16 under OpenVINO.",
            "Set OCRSVC_PRECISION=auto.",
        )
    try:
        return _open(name, config, cache)
    except openvino_session.FAULTS as error:
        raise EngineUnavailable(
            f"OpenVINO does not open {name}: {error}", "Set OCRSVC_PROVIDER=cpu to do without it."
        ) from error


def _open(name: str, config: SessionConfig, cache: ModelCache) -> list[OpenVinoSession]:
    shipped = models.read_model(name)
    prepared = _prepared(name, shipped, partial(models.prepare_model, name, openvino=True), cache)
    bodies = _compile(name, prepared, config)
    if name != models.RECOGNITION:
        return [OpenVinoSession(body, {}, config.arena_values) for body in bodies]
    prepare = partial(models.prepare_classifier, steps=STEPS)
    classifiers = _compile(name, _prepared(f"classifier-{STEPS}-{name}", shipped, prepare, cache), config)
    # Kept as well: the package onnx, which reads it, is 10 MB.
    properties = json.loads(_prepared(f"metadata-{name}", shipped, lambda _: _metadata(name), cache))
    return [OpenVinoRecognizer(*both, properties) for both in zip(bodies, classifiers, strict=True)]


def _metadata(name: str) -> bytes:
    return json.dumps(models.read_metadata(name)).encode()


def _compile(name: str, prepared: bytes, config: SessionConfig) -> list[Any]:
    """An openvino.CompiledModel for each session; they share what was read."""
    has_bf16 = config.precision != "fp32" and openvino_session.computes_bf16()
    options = {
        "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
        "INFERENCE_NUM_THREADS": config.threads,
        "NUM_STREAMS": 1,
        # Where threads run is the operating system's business: several sessions would be pinned to the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": MOST_KERNELS[name],
    }
    core = openvino_session.core()
    model = core.read_model(prepared, b"")
    if name == models.DETECTION:
        model = _taking_pixels(model)
    return [core.compile_model(model, "CPU", options) for _ in range(config.sessions)]


def _taking_pixels(model: Any) -> Any:
    """The model with (1, H, W, 3) uint8 for its input: a quarter of the memory, and two copies of a page less."""
    from openvino import Layout, Type
    from openvino.preprocess import PrePostProcessor

    prepared = PrePostProcessor(model)
    prepared.input().tensor().set_element_type(Type.u8).set_layout(Layout("NHWC"))
    prepared.input().model().set_layout(Layout("NCHW"))
    prepared.input().preprocess().convert_element_type(Type.f32).mean(127.5).scale(127.5)
    return prepared.build()


def _prepared(name: str, shipped: bytes, prepare: Callable[[bytes], bytes], cache: ModelCache) -> bytes:
    """What `prepare` makes of a model, which the cache keeps: that is quicker than to make it."""
    entry, key = f"openvino-{name}", cache_key(shipped, models.preparation_code())
    found = cache.find(entry, key)
    if found is None:
        found = prepare(shipped)
        with contextlib.suppress(OSError), cache.new_file(entry, key, 2 * len(found)) as file:
            if file is not None:
                file.write_bytes(found)
    return found
