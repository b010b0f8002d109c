"""Chooses the models' runtime on a CPU: what the settings request, else the fastest that reads like fp32.

The proof, a comparison with fp32, takes a few seconds, once: the choice is stored in the model cache, for this CPU and
these versions. If processes start together, one of them makes the proof.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from ocrsvc import __version__
from ocrsvc.engines.ppocr.pipeline import cascade
from ocrsvc.engines.ppocr.proof_process import prove_in_child
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, tiny_part
from ocrsvc.engines.ppocr.runtime.open_model import preparation_code
from ocrsvc.engines.ppocr.runtime.providers import (
    ON_CPU,
    Precision,
    Provider,
    available_providers,
    check_precision,
    choose_provider,
)
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_proof import BF16, FP32, INT8, REFERENCE_PAGE, Parts, Proof, Runtime
from ocrsvc.system.thread_plan import is_installed

LOG: Final = logging.getLogger("ocrsvc.ppocr")

_WAIT_S: Final = 60.0
_ENTRY: Final = "runtime"
_RUNTIMES: Final = ("onnxruntime", "onnxruntime-gpu", "openvino")
_CASCADE: Final = Path(cascade.__file__)  # a change of the cascade's rule must change the cache key
_NOT_STORED: Final = (
    "The model cache is not writable, so every start proves the choice of runtime again: set OCRSVC_MODEL_CACHE to a "
    "writable folder, or choose the runtime with OCRSVC_PROVIDER and OCRSVC_PRECISION."
)


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """The runtimes chosen for detection and recognition."""

    detection: Runtime
    recognition: Runtime
    reason: str  # why these runtimes were chosen, for the log

    def __str__(self) -> str:
        return f"detection by {self.detection}, recognition by {self.recognition}: {self.reason}"


def choose_runtime(
    parts: Parts,
    config: SessionConfig,
    cache: ModelCache,
    prove: Callable[[Parts, SessionConfig, ModelCache], Sequence[Proof]] = prove_in_child,
) -> RuntimeChoice | None:
    """Runtimes from the settings, the cache or a comparison made now; None to use a GPU. Raises EngineUnavailable."""
    provider = choose_provider(config.device, config.provider, available_providers())
    means_openvino = config.precision == "bf16" and config.provider == "auto" and provider == "cpu"
    check_precision(config.precision, "openvino" if means_openvino else provider)
    if provider not in ON_CPU:
        return None
    if (requested := requested_choice(config.precision, config.provider)) is not None:
        return requested
    with cache.locked(_entry(parts), _WAIT_S):
        if (cached := load_choice(cache, parts, config.provider)) is not None:
            return cached
        began_s = time.perf_counter()
        LOG.info("Measuring once which runtime reads fastest on this processor; this may take a minute.")
        proofs = prove(parts, replace(config, device="cpu", threads=1), cache)
        choice = choose(proofs, f"proved in {time.perf_counter() - began_s:.1f} s")
        LOG.info("Chosen: %s.", choice)
        if not store_choice(cache, parts, config.provider, choice):
            LOG.warning(_NOT_STORED)
    return choice


def requested_choice(precision: Precision, provider: Provider) -> RuntimeChoice | None:
    """The runtimes that OCRSVC_PRECISION and OCRSVC_PROVIDER request; None if they request none."""
    reason = "requested by OCRSVC_PRECISION and OCRSVC_PROVIDER"
    if provider == "openvino":
        return RuntimeChoice(Runtime("openvino", precision), Runtime("openvino", precision), reason)
    if precision == "auto":
        return None
    return {
        "int8": RuntimeChoice(FP32, INT8, reason),
        "bf16": RuntimeChoice(Runtime(provider if provider == "cpu" else "openvino", "bf16"), BF16, reason),
    }.get(precision, RuntimeChoice(Runtime("cpu", precision), Runtime("cpu", precision), reason))


def choose(proofs: Sequence[Proof], reason: str) -> RuntimeChoice:
    """For each model, the fastest runtime that won its comparison with fp32; fp32 if none did."""

    def fastest(model: Kind) -> Runtime:
        winners = [proof for proof in proofs if proof.model == model and proof.wins]
        return max(winners, key=lambda proof: proof.gain).runtime if winners else FP32

    return RuntimeChoice(fastest(DETECTION), fastest(RECOGNITION), reason)


def load_choice(cache: ModelCache, parts: Parts, provider: Provider) -> RuntimeChoice | None:
    """The stored choice for these models; None if there is none, or if it cannot be used here."""
    try:
        choice = TypeAdapter(RuntimeChoice).validate_json(cache.find(_entry(parts), _key(parts, provider)) or b"")
    except ValidationError:
        return None
    # OpenVINO may be missing, or fail to load, on another machine that shares the cache.
    needs_openvino = any(chosen.provider == "openvino" for chosen in (choice.detection, choice.recognition))
    return choice if not needs_openvino or openvino_session.computes_bf16() else None


def store_choice(cache: ModelCache, parts: Parts, provider: Provider, choice: RuntimeChoice) -> bool:
    """Store a choice; returns whether it can be loaded again."""
    cache.store(_entry(parts), _key(parts, provider), json.dumps(asdict(choice)).encode())
    return load_choice(cache, parts, provider) == choice


def _entry(parts: Parts) -> str:
    return _ENTRY if parts[1].version.is_built_in else f"{parts[1].cache_name}.{_ENTRY}"


def _key(parts: Parts, provider: Provider) -> str:
    """Cache key of everything that a choice depends on: models, preparation, versions, CPU and reference page."""
    versions = (
        f"{__version__} { {name: metadata.version(name) for name in _RUNTIMES if is_installed(name)} } {provider}"
    )
    input_formats = str([part.input_format for part in parts]).encode()
    shipped = [part.shipped for part in parts]
    if parts[1].version.is_built_in:
        shipped += [tiny_part().shipped, _CASCADE.read_bytes()]
    return cache_key(*shipped, input_formats, preparation_code(), versions.encode(), REFERENCE_PAGE.read_bytes())
