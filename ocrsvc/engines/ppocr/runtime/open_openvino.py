"""Opens the models under OpenVINO: the detector in one session, the recognizer in as many as lines are read at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from ocrsvc.engines.ppocr.pipeline.network_input import InputFormat
from ocrsvc.engines.ppocr.runtime import models, openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, ModelPart
from ocrsvc.engines.ppocr.runtime.openvino_recognizer import STEPS, OpenVinoRecognizer
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.errors import EngineUnavailable

MOST_KERNELS: Final = {DETECTION: 100, RECOGNITION: 600}
"""Kernels of one kind that a session keeps, the least recently used go first: of about 3 shapes of pages
and half the widths of lines. With four times as many a corpus of pages of all sizes costs the same processor time and
90 MB more."""


def open_openvino(part: ModelPart, config: SessionConfig, store: ModelCache) -> list[OpenVinoSession]:
    """The model in as many sessions as `config.sessions`.

    Args:
        part: A detector or a recognizer.
        config: Of each session; its precision is "fp32", "bf16", or "auto": bf16 where the processor has it.
        store: Keeps the prepared graph.

    Raises:
        EngineUnavailable: OpenVINO is not installed or does not work, or the processor does not compute in bf16.
        BadModel: The part is no model of its kind.
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
        return _open(part, config, store)
    except openvino_session.FAULTS as error:
        raise EngineUnavailable(
            f"OpenVINO does not open {part.file}: {error}", "Set OCRSVC_PROVIDER=cpu to do without it."
        ) from error


def _open(part: ModelPart, config: SessionConfig, store: ModelCache) -> list[OpenVinoSession]:
    prepared = _prepared(part.cache_name, part, partial(models.prepare_model, openvino=True), store)
    bodies = _compile(part, prepared, config)
    if part.kind != RECOGNITION:
        return [OpenVinoSession(body, {}, config.arena_values, part.input_format) for body in bodies]
    # Kept as well: the package onnx, which reads it, is 10 MB.
    properties = json.loads(_prepared(f"metadata-{part.cache_name}", part, models.prepare_properties, store))
    if models.PRODUCT not in properties:
        return [OpenVinoSession(body, properties, 0, part.input_format) for body in bodies]
    prepare = partial(models.prepare_classifier, steps=STEPS)
    classifiers = _compile(part, _prepared(f"classifier-{STEPS}-{part.cache_name}", part, prepare, store), config)
    head = cache(partial(models.read_head, part.version, part.file))
    return [
        OpenVinoRecognizer(*both, properties, head, part.input_format) for both in zip(bodies, classifiers, strict=True)
    ]


def _compile(part: ModelPart, prepared: bytes, config: SessionConfig) -> list[Any]:
    """An openvino.CompiledModel for each session; they share what was read."""
    has_bf16 = config.precision != "fp32" and openvino_session.computes_bf16()
    options = {
        "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
        "INFERENCE_NUM_THREADS": config.threads,
        "NUM_STREAMS": 1,
        # Where threads run is the operating system's business: several sessions would be pinned to the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": MOST_KERNELS[part.kind],
    }
    core = openvino_session.core()
    model = core.read_model(prepared, b"")
    if part.kind == DETECTION:
        model = _taking_pixels(model, part.input_format)
    return [core.compile_model(model, "CPU", options) for _ in range(config.sessions)]


def _taking_pixels(model: Any, taken: InputFormat) -> Any:
    """The model with (1, H, W, 3) uint8 for its input: a quarter of the memory, and two copies of a page less."""
    from openvino import Layout, Type
    from openvino.preprocess import PrePostProcessor

    prepared = PrePostProcessor(model)
    prepared.input().tensor().set_element_type(Type.u8).set_layout(Layout("NHWC"))
    prepared.input().model().set_layout(Layout("NCHW"))
    values = prepared.input().preprocess().convert_element_type(Type.f32)
    if taken.is_half:
        values.mean(127.5).scale(127.5)
    else:
        values.mean(taken.shade_mean).scale(taken.shade_std)
    return prepared.build()


def _prepared(name: str, part: ModelPart, prepare: Callable[[ModelPart], bytes], store: ModelCache) -> bytes:
    """What `prepare` makes of a model, which the cache keeps: that is quicker than to make it."""
    entry, key = f"openvino-{name}", cache_key(part.shipped, models.preparation_code())
    found = store.find(entry, key)
    if found is None:
        found = prepare(part)
        with contextlib.suppress(OSError), store.new_file(entry, key, 2 * len(found)) as file:
            if file is not None:
                file.write_bytes(found)
    return found
