"""Opens a model's sessions: one on the CPU or one per GPU stream under ONNX Runtime, several under OpenVINO."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.pipeline.network_input import HALF, InputFormat
from ocrsvc.engines.ppocr.runtime import openvino_model, openvino_session, providers
from ocrsvc.engines.ppocr.runtime.model_cache import MappedEntry, ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, PRODUCT, RECOGNITION, ModelPart, tiny_part
from ocrsvc.engines.ppocr.runtime.openvino_session import STEPS, Classifier, Head, OpenVinoRecognizer, OpenVinoSession
from ocrsvc.engines.ppocr.runtime.providers import (
    CPU,
    CUDA,
    TENSORRT,
    Provider,
    available_providers,
    check_precision,
    choose_provider,
)
from ocrsvc.engines.ppocr.runtime.session import (
    ModelRunner,
    ProfileSession,
    Session,
    SessionConfig,
    SessionPool,
    open_gpu_context,
    session_errors,
)
from ocrsvc.errors import EngineUnavailable
from ocrsvc.system.shared_memory import open_memory

if TYPE_CHECKING:
    import onnxruntime as ort

LOG: Final = logging.getLogger("ocrsvc.ppocr")

_NO_GPU: Final = (
    "%s runs on the CPU, because the GPU does not work: %s. OCRSVC_DEVICE=cpu skips the attempt, cuda fails instead."
)


def open_model(part: ModelPart, config: SessionConfig, cache: ModelCache | None = None) -> ModelRunner:
    """Open one session on the CPU, or a pool on a GPU or under OpenVINO. Raises EngineUnavailable, BadModel."""
    cache = cache or ModelCache(None)
    config = replace(config, input_format=part.input_format)
    provider = choose_provider(config.device, config.provider, available_providers())
    check_precision(config.precision, provider)
    if provider == "cpu":
        return _open_on_cpu(part, config, cache)
    if provider == "openvino":
        return SessionPool(open_openvino(part, config, cache))
    try:
        return SessionPool(_open_on_gpu(part, config, cache, provider))
    except session_errors() as error:
        if (config.device, config.provider) != ("auto", "auto") or config.precision in ("fp16", "bf16"):
            name, library = (TENSORRT, "TensorRT 10") if provider == "tensorrt" else (CUDA, "cuDNN")
            raise EngineUnavailable(
                f"A GPU was requested, but ONNX Runtime could not start its provider {name}: {error}.",
                f"Check that a GPU is visible (nvidia-smi) and that CUDA and {library} of the right major version are "
                "installed, or set OCRSVC_DEVICE=cpu and OCRSVC_PROVIDER=auto.",
            ) from error
        LOG.warning(_NO_GPU, part.file, error)
        return _open_on_cpu(part, config, cache)


class TinyFirst(SessionPool):
    """The built-in recognizer's sessions, and the tiny recognizer, which reads lines first (pipeline/cascade.py)."""

    def __init__(self, careful: ModelRunner, tiny: ModelRunner) -> None:
        super().__init__(careful.sessions)
        self.tiny = tiny


def open_tiny_first(careful: ModelRunner, config: SessionConfig, cache: ModelCache) -> TinyFirst:
    """Open the tiny recognizer, and combine it with `careful`, the open built-in one. Raises EngineUnavailable."""
    return TinyFirst(careful, open_model(tiny_part(), config, cache))


def session_options(config: SessionConfig) -> ort.SessionOptions:
    """ONNX Runtime's options for a session on any device."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = config.arena_values > 0
    if config.threads > 1:
        # Idle threads must not spin, which would occupy a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _open_on_cpu(part: ModelPart, config: SessionConfig, cache: ModelCache) -> Session:
    import onnxruntime as ort

    options = session_options(config)
    if config.arena_values:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if config.batched:
        from ocrsvc.engines.ppocr.runtime import prepare_model

        opened = ort.InferenceSession(prepare_model.prepare(part, batched=True), options, providers=[(CPU, {})])
        return Session([(opened, None)], config, precision="fp32")
    in_int8 = config.precision == "int8" and part.kind == RECOGNITION
    opened = _open_cached(part, options, cache, in_int8=in_int8)
    return Session([(opened, None)], config, precision="int8" if in_int8 else "fp32")


def _open_cached(
    part: ModelPart, options: ort.SessionOptions, cache: ModelCache, *, in_int8: bool
) -> ort.InferenceSession:
    """Open the model as ONNX Runtime optimised it at an earlier start, or optimise and cache it now."""
    import onnxruntime as ort

    kind = "int8-" if in_int8 else ""
    name = kind + part.cache_name
    key = cache_key(part.shipped, preparation_code(), ort.__version__.encode(), *([kind.encode()] if kind else []))
    if (cached := cache.find(name, key)) is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(cached, options, providers=[CPU])
    from ocrsvc.engines.ppocr.runtime import prepare_model

    prepared = prepare_model.prepare_int8(part) if in_int8 else prepare_model.prepare(part)
    opened = open_memory("model")
    try:
        optimised = Path(f"/proc/self/fd/{opened}")
        options.optimized_model_filepath = os.fspath(optimised)
        session = ort.InferenceSession(prepared, options, providers=[CPU])
        cache.store(name, key, optimised.read_bytes())
    finally:
        os.close(opened)
    return session


def _open_on_gpu(part: ModelPart, config: SessionConfig, cache: ModelCache, provider: Provider) -> list[Session]:
    from ocrsvc.engines.ppocr.runtime import prepare_model

    providers.load_gpu_libraries(provider)
    fp32_model = prepare_model.prepare(part, batched=True) if provider == "tensorrt" else b""
    cuda_model = prepare_model.prepare(part, batched=True, half_precision=config.precision == "fp16")
    sessions = [_open_stream_session(fp32_model, cuda_model, config, cache) for _ in range(config.gpu.streams)]
    # On a GPU for which this build has no kernels, the session opens but its first run fails: find that out now.
    sessions[0].run(np.zeros(part.smallest_shape, np.float32))
    return sessions


def _open_stream_session(fp32_model: bytes, cuda_model: bytes, config: SessionConfig, cache: ModelCache) -> Session:
    """The sessions of one stream: an fp32 model on TensorRT for each profile, and one on CUDA for any other shape."""
    import onnxruntime as ort

    from ocrsvc.engines.ppocr.runtime import prepare_model

    gpu = open_gpu_context()
    stream = gpu.address if gpu is not None else None
    on_cuda: providers.Providers = [(CUDA, providers.cuda_options(config.gpu, config.precision, stream)), (CPU, {})]
    parts: list[ProfileSession] = []
    for profile in config.gpu.profiles if fp32_model else ():
        versions = f"{ort.__version__} {providers.tensorrt_version()}"
        key = cache_key(fp32_model, versions.encode(), config.precision.encode(), str(profile).encode())
        # TensorRT writes its engine file, or reads the cached one, while the session opens; later it needs no file.
        with cache.cached_folder("tensorrt", key) as folder:
            name = prepare_model.input_name(fp32_model)
            options = providers.tensorrt_options(name, profile, config.precision, stream, folder)
            parts.append((_open(fp32_model, config, [(TENSORRT, options), *on_cuda]), profile))
    precision = "fp16" if config.precision == "fp16" else "fp32"
    return Session([*parts, (_open(cuda_model, config, on_cuda), None)], config, gpu, precision=precision)


def _open(model: bytes, config: SessionConfig, provider_list: providers.Providers) -> ort.InferenceSession:
    """Open a session with the first provider; raises one of `session_errors` instead of falling back to another one."""
    import onnxruntime as ort

    opened = ort.InferenceSession(model, session_options(config), providers=provider_list, enable_fallback=0)
    if opened.get_providers()[0] != provider_list[0][0]:
        raise RuntimeError(f"it fell back to {opened.get_providers()[0]}")
    return opened


@functools.cache
def _register_arena() -> None:
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


# Number of compiled kernels that a session caches (LRU): for about 3 page shapes, or half of the line widths. With 4
# times the number, a corpus of pages of all sizes took the same CPU time and 90 MB more.
MAX_KERNELS: Final = {DETECTION: 100, RECOGNITION: 600}


def open_openvino(part: ModelPart, config: SessionConfig, cache: ModelCache) -> list[OpenVinoSession]:
    """Open `config.sessions` sessions. Raises EngineUnavailable if OpenVINO does not work or the CPU has no bf16."""
    if not openvino_session.is_installed():
        raise EngineUnavailable(
            "OpenVINO was requested, but the package `openvino` is not installed.",
            "Install ocrsvc with the extra openvino, or set OCRSVC_PROVIDER=auto and OCRSVC_PRECISION=auto.",
        )
    if config.precision == "bf16" and not openvino_session.computes_bf16():
        raise EngineUnavailable(
            "OCRSVC_PRECISION=bf16, but this CPU does not support bfloat16 under OpenVINO.",
            "Set OCRSVC_PRECISION=auto.",
        )
    try:
        return _open_sessions(part, config, cache)
    except openvino_session.FAULTS as error:
        raise EngineUnavailable(
            f"OpenVINO does not open {part.file}: {error}", "Set OCRSVC_PROVIDER=cpu to do without it."
        ) from error


def _open_sessions(part: ModelPart, config: SessionConfig, cache: ModelCache) -> list[OpenVinoSession]:
    bodies = _compile(part, "", config, cache)
    if part.kind != RECOGNITION:
        return [OpenVinoSession(body, {}, config.arena_values, part.input_format) for body in bodies]
    # The model's properties are cached, because reading them would import the package onnx, which takes 10 MB.
    properties = json.loads(_prepared("metadata-", part, cache))
    if PRODUCT not in properties:
        return [OpenVinoSession(body, properties, 0, part.input_format) for body in bodies]
    # Two sessions share a classifier, which takes 10 MB: it computes for only a small part of a page's time.
    shared = replace(config, sessions=(config.sessions + 1) // 2)
    classifiers = [Classifier(one) for one in _compile(part, f"classifier-{STEPS}-", shared, cache)]
    head = functools.cache(partial(_read_head, part.version, part.file))
    return [
        OpenVinoRecognizer(body, classifiers[number // 2], properties, head, part.input_format)
        for number, body in enumerate(bodies)
    ]


def _compile(part: ModelPart, kind: str, config: SessionConfig, cache: ModelCache) -> list[Any]:
    """Read a model of `_prepare`, and compile it once per session into an openvino.CompiledModel."""
    has_bf16 = config.precision != "fp32" and openvino_session.computes_bf16()
    options = {
        "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
        "INFERENCE_NUM_THREADS": config.threads,
        "NUM_STREAMS": 1,
        # Pinning would run several sessions on the same cores.
        "ENABLE_CPU_PINNING": False,
        "CPU_RUNTIME_CACHE_CAPACITY": MAX_KERNELS[part.kind],
    }
    model, mapped = _read_network(kind, part, cache)
    if part.kind == DETECTION:
        model = _taking_pixels(model, part.input_format)
    compiled = [openvino_session.core().compile_model(model, "CPU", options) for _ in range(config.sessions)]
    for one in compiled:
        one.weights = mapped  # OpenVINO refers to them without keeping them open
    return compiled


def _taking_pixels(model: Any, taken: InputFormat) -> Any:
    """Let a model take (1, H, W, 3) uint8, which needs a quarter of the memory and saves two copies of a page."""
    openvino = openvino_session.library()
    prepared = openvino.preprocess.PrePostProcessor(model)
    prepared.input().tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
    prepared.input().model().set_layout(openvino.Layout("NCHW"))
    values = prepared.input().preprocess().convert_element_type(openvino.Type.f32)
    if (taken.mean, taken.std) == (HALF, HALF):
        values.mean(127.5).scale(127.5)
    else:
        values.mean([255 * mean for mean in taken.mean]).scale([255 * std for std in taken.std])
    return prepared.build()


def _read_network(kind: str, part: ModelPart, cache: ModelCache) -> tuple[Any, MappedEntry | None]:
    """Read a model of `_prepare` into an openvino.Model, and return its weights if they are mapped from the cache."""
    if cache.is_encrypted:
        return openvino_session.core().read_model(_prepared(kind, part, cache), b""), None
    entry = _entry(kind, part)
    if (mapped := cache.map(*entry)) is None:
        prepared = _prepare(kind, part)
        with contextlib.suppress(OSError, RuntimeError), cache.scratch_folder() as folder:
            cache.store(*entry, openvino_model.convert(prepared, folder))
        if (mapped := cache.map(*entry)) is None:
            return openvino_session.core().read_model(prepared, b""), None
    return openvino_model.read_mapped(mapped), mapped


def _prepared(kind: str, part: ModelPart, cache: ModelCache) -> bytes:
    """What `_prepare` makes, cached or made now."""
    entry = _entry(kind, part)
    if (content := cache.find(*entry)) is None:
        content = _prepare(kind, part)
        cache.store(*entry, content)
    return content


def _entry(kind: str, part: ModelPart) -> tuple[str, str]:
    """Name and cache key of a model prepared for OpenVINO."""
    version = metadata.version("openvino")  # openvino must not be imported before `openvino_session.core` configures it
    return f"openvino-{kind}{part.cache_name}", cache_key(part.shipped, preparation_code(), version.encode())


def _prepare(kind: str, part: ModelPart) -> bytes:
    """Prepare for OpenVINO a model (`kind` "") without its classifier, the classifier, or the model's properties."""
    from ocrsvc.engines.ppocr.runtime import prepare_model

    if not kind:
        return prepare_model.prepare(part, openvino=True)
    if kind.startswith("classifier"):
        return prepare_model.prepare_classifier(part, STEPS)
    return prepare_model.prepare_properties(part)


def _read_head(version: ModelVersion, file: str) -> Head:
    from ocrsvc.engines.ppocr.runtime import prepare_model

    return prepare_model.read_head(version, file)


@functools.cache
def preparation_code() -> bytes:
    """The source code that prepares models: a change of it must change the cache keys."""
    graph, runtime = ("memory_layout", "precision", "rewrite"), ("prepare_model", "openvino_model")
    files = [f"graph/{name}" for name in graph] + [f"runtime/{name}" for name in runtime]
    return b"".join(Path(__file__).parents[1].joinpath(f"{name}.py").read_bytes() for name in files)
