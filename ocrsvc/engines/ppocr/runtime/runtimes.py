"""What each of the two models is computed with on a CPU: the candidates, what settings name, and the stored choice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import onnxruntime as ort
from pydantic import TypeAdapter, ValidationError

from ocrsvc import __version__
from ocrsvc.engines.ppocr.runtime import models, openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import RECOGNITION, Kind, ModelPart
from ocrsvc.engines.ppocr.runtime.providers import Precision, Provider

LEAST_GAIN: Final = 1.1
"""How many times as quick as in single precision a model must be to be chosen: less is within what timings vary by."""

_ENTRY: Final = "runtime"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A library and a precision: "cpu" is ONNX Runtime's own provider for the CPU."""

    provider: Provider
    precision: Precision

    def __str__(self) -> str:
        return f"{'OpenVINO' if self.provider == 'openvino' else 'ONNX Runtime'} {self.precision}"


FP32: Final = Runtime("cpu", "fp32")
INT8: Final = Runtime("cpu", "int8")
BF16: Final = Runtime("openvino", "bf16")


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """What the models are computed with, and why."""

    detection: Runtime
    recognition: Runtime
    reason: str

    def __str__(self) -> str:
        return f"detection by {self.detection}, recognition by {self.recognition}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Proof:
    """How a runtime of one model did beside single precision in ONNX Runtime."""

    model: Kind
    runtime: Runtime
    gain: float  # how many times as quick it is; 0 where no run was timed
    agreement: float = 1.0  # share of the lines found, or of the characters read, alike
    fault: str = ""  # what speaks against it, speed apart; empty where nothing does

    @property
    def wins(self) -> bool:
        """Whether it may be chosen."""
        return not self.fault and self.gain >= LEAST_GAIN


def quickest(proofs: Sequence[Proof], model: Kind) -> Runtime:
    """The quickest that wins for a model; single precision where none does."""
    winners = [proof for proof in proofs if proof.model == model and proof.wins]
    return max(winners, key=lambda proof: proof.gain).runtime if winners else FP32


def named(precision: Precision, provider: Provider) -> RuntimeChoice | None:
    """What OCRSVC_PRECISION and OCRSVC_PROVIDER ask for; None where they leave the choice, or part of it, open."""
    asked = "asked for by OCRSVC_PRECISION and OCRSVC_PROVIDER"
    if provider == "openvino":
        return RuntimeChoice(Runtime("openvino", precision), Runtime("openvino", precision), asked)
    if precision == "auto":
        return None
    return {
        "int8": RuntimeChoice(FP32, INT8, asked),
        "bf16": RuntimeChoice(Runtime(provider if provider == "cpu" else "openvino", "bf16"), BF16, asked),
    }.get(precision, RuntimeChoice(Runtime("cpu", precision), Runtime("cpu", precision), asked))


def candidates(kind: Kind, provider: Provider) -> list[Runtime]:
    """What is tried for a model where nothing was asked for by name; single precision comes first."""
    in_onnx_runtime = [FP32, INT8] if kind == RECOGNITION else [FP32]
    return in_onnx_runtime + ([BF16] if provider == "auto" and openvino_session.computes_bf16() else [])


def choice_key(parts: Sequence[ModelPart], provider: Provider, reference: bytes) -> str:
    """Names all that a choice depends on: models, preparation, versions, the processor, and what the proof reads."""
    versions = f"{__version__} {ort.__version__} {openvino_session.version()} {provider}"
    shipped = (part.shipped for part in parts)
    fed = str([part.input_format for part in parts]).encode()
    return cache_key(*shipped, fed, models.preparation_code(), versions.encode(), reference)


def choice_name(part: ModelPart) -> str:
    """Of the choices for a recognizer in the model cache."""
    return _ENTRY if part.version.is_built_in else f"{part.cache_name}.{_ENTRY}"


def load_choice(cache: ModelCache, name: str, key: str) -> RuntimeChoice | None:
    """The choice that was stored under a name and a key, if it can be used: else a proof is made again."""
    try:
        choice = TypeAdapter(RuntimeChoice).validate_json(cache.find(name, key) or b"")
    except ValidationError:
        return None
    # The package may be there and not load, on another machine that shares the cache.
    needs_openvino = BF16 in (choice.detection, choice.recognition)
    return choice if not needs_openvino or openvino_session.computes_bf16() else None


def store_choice(cache: ModelCache, name: str, key: str, choice: RuntimeChoice) -> bool:
    """Store it; whether the cache took it."""
    with contextlib.suppress(OSError), cache.new_file(name, key, 0) as file:
        if file is not None:
            file.write_text(json.dumps(asdict(choice)), "utf-8")
    return load_choice(cache, name, key) == choice
