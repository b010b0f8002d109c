"""Chooses what the models are computed with on a CPU by a proof: the quickest candidate that reads as single precision.

Every candidate reads the same pages: at the first start one of our own (reference_page.png, drawn by
tests/pages/make.py), with `ocrsvc optimize` those of the user. A candidate that finds other lines, reads them otherwise
or is much less sure of them is out, whatever its speed; the others are timed in turn. That takes a few seconds, once:
the choice is stored in the model cache, for the processor and the versions that it depends on. Of several processes
that start together one makes the proof.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import cv2
import numpy as np
import onnxruntime as ort
from pydantic import TypeAdapter, ValidationError

from ocrsvc import __version__
from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.db_postprocess import ProbabilityMap, find_lines
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, model_input
from ocrsvc.engines.ppocr.pipeline.page import MIN_CONFIDENCE
from ocrsvc.engines.ppocr.pipeline.recognition_batches import make_line_runner
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, input_width
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, cache_key
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, ModelPart, read_dictionary
from ocrsvc.engines.ppocr.runtime.open_model import open_model, preparation_code
from ocrsvc.engines.ppocr.runtime.providers import ON_CPU, Precision, Provider, check_precision, choose_provider
from ocrsvc.engines.ppocr.runtime.session import SESSION_ERRORS, ModelRunner, SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.errors import EngineUnavailable
from ocrsvc.imaging.outline import Outline, corners, cut, extent
from ocrsvc.results import Pixels
from ocrsvc.system.allocator import release_free_memory

LOG: Final = logging.getLogger("ocrsvc.ppocr")

LEAST_GAIN: Final = 1.1
"""How many times as quick as in single precision a model must be to be chosen: less is within what timings vary by."""

LEAST_SHARE: Final[dict[Kind, float]] = {DETECTION: 0.97, RECOGNITION: 0.99}
"""Share of the user's lines that must be found in the same place, and of their characters that must be read alike; on
our page all must."""

FEWEST_LINES: Final = 5  # that single precision makes sense of; with fewer, a recognizer is not judged
MOST_CONFIDENCE_GAP: Final = 0.05
_SHIFT: Final = 0.15  # of a line's height: how far its corners may lie from where single precision finds them
_LEAST_SHIFT_PX: Final = 2.0
_ROUNDS: Final = 2
_WAIT_S: Final = 60.0
_ENTRY: Final = "runtime"
_PAGE: Final = Path(__file__).with_name("reference_page.png")
_NOT_STORED: Final = (
    "The choice is proved again at each start, because the model cache cannot be written to: name a folder for it with "
    "OCRSVC_MODEL_CACHE, or the runtime with OCRSVC_PROVIDER and OCRSVC_PRECISION."
)

Parts = tuple[ModelPart, ModelPart]  # a detector and a recognizer
Difference = tuple[int, int, list[float]]  # what there is, what is otherwise, and how far confidences are apart
K = TypeVar("K")
R = TypeVar("R")


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
    count: int = 0  # lines to find, or characters to read
    agreement: float = 1.0  # share of these found or read alike
    fault: str = ""  # what speaks against it, speed apart; empty where nothing does

    @property
    def wins(self) -> bool:
        """Whether it may be chosen."""
        return not self.fault and self.gain >= LEAST_GAIN

    def __str__(self) -> str:
        verdict = self.fault or ("may be used" if self.wins else f"not used, at least x{LEAST_GAIN:g} is asked")
        return f"{self.model:12} {self.runtime!s:18} x{self.gain:<6.2f} {self.agreement:8.2%} alike: {verdict}"


def choose_runtime(
    parts: Parts,
    config: SessionConfig,
    cache: ModelCache,
    prove: Callable[[Parts, SessionConfig, ModelCache], Sequence[Proof]] | None = None,
) -> RuntimeChoice | None:
    """What the settings name, else what was proved earlier, else what a proof finds now; None where a GPU is meant.

    Raises EngineUnavailable: what was asked for by name does not go together, or is not there.
    """
    provider = choose_provider(config.device, config.provider, ort.get_available_providers())
    means_openvino = config.precision == "bf16" and config.provider == "auto" and provider == "cpu"
    check_precision(config.precision, "openvino" if means_openvino else provider)
    if provider not in ON_CPU:
        return None
    if (asked := named(config.precision, config.provider)) is not None:
        return asked
    with cache.locked(_entry(parts), _WAIT_S):
        if (found := load_choice(cache, parts, config.provider)) is not None:
            return found
        began_s = time.perf_counter()
        proofs = (prove or prove_runtimes)(parts, replace(config, device="cpu", threads=1), cache)
        # What the candidates that lost have taken; the worker's limits of memory look at what is resident.
        release_free_memory()
        choice = choose(proofs, f"proved in {time.perf_counter() - began_s:.1f} s")
        LOG.info("Chosen: %s.", choice)
        if not store_choice(cache, parts, config.provider, choice):
            LOG.warning(_NOT_STORED)
    return choice


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


def choose(proofs: Sequence[Proof], reason: str) -> RuntimeChoice:
    """For each model the quickest that wins; single precision where none does."""

    def quickest(model: Kind) -> Runtime:
        winners = [proof for proof in proofs if proof.model == model and proof.wins]
        return max(winners, key=lambda proof: proof.gain).runtime if winners else FP32

    return RuntimeChoice(quickest(DETECTION), quickest(RECOGNITION), reason)


def load_choice(cache: ModelCache, parts: Parts, provider: Provider) -> RuntimeChoice | None:
    """The choice that was stored for these models, if it can be used: else a proof is made again."""
    try:
        choice = TypeAdapter(RuntimeChoice).validate_json(cache.find(_entry(parts), _key(parts, provider)) or b"")
    except ValidationError:
        return None
    # The package may be there and not load, on another machine that shares the cache.
    needs_openvino = BF16 in (choice.detection, choice.recognition)
    return choice if not needs_openvino or openvino_session.computes_bf16() else None


def store_choice(cache: ModelCache, parts: Parts, provider: Provider, choice: RuntimeChoice) -> bool:
    """Store it; whether the cache took it."""
    cache.store(_entry(parts), _key(parts, provider), json.dumps(asdict(choice)).encode())
    return load_choice(cache, parts, provider) == choice


def _entry(parts: Parts) -> str:
    return _ENTRY if parts[1].version.is_built_in else f"{parts[1].cache_name}.{_ENTRY}"


def _key(parts: Parts, provider: Provider) -> str:
    """Names all that a choice depends on: models, preparation, versions, the processor, and the page of the proof."""
    versions = f"{__version__} {ort.__version__} {openvino_session.version()} {provider}"
    fed = str([part.input_format for part in parts]).encode()
    shipped = (part.shipped for part in parts)
    return cache_key(*shipped, fed, preparation_code(), versions.encode(), _PAGE.read_bytes())


def prove_runtimes(
    parts: Parts, config: SessionConfig, cache: ModelCache, pages: Iterable[Pixels] | None = None
) -> list[Proof]:
    """Read pages with every candidate for `config.provider` ("cpu" or "auto"), by default our own, and time them."""
    is_own_page = pages is None
    detection, recognition = (_Comparison(part, open_candidates(part, config, cache)) for part in parts)
    for page in [np.asarray(cv2.imread(str(_PAGE), cv2.IMREAD_COLOR), np.uint8)] if pages is None else pages:
        outlines = detection.add(partial(_find, page), _misplaced)
        crops = [cut_line(page, outline, parts[1].input_format.height_px) for outline in outlines]
        # Where Chinese meets Latin, the ink decides on spaces for the whole page; ours was drawn for our model.
        differ = partial(_misread, ignored="" if parts[1].version.is_built_in else " ")
        recognition.add(partial(read_lines, parts[1], crops), differ)
    proofs = [*detection.proofs(is_own_page=is_own_page), *recognition.proofs(is_own_page=is_own_page)]
    for proof in proofs:
        LOG.info("Tried: %s", proof)
    return proofs


def candidates(kind: Kind, provider: Provider) -> list[Runtime]:
    """What is tried for a model where nothing was asked for by name; single precision comes first."""
    in_onnx_runtime = [FP32, INT8] if kind == RECOGNITION else [FP32]
    return in_onnx_runtime + ([BF16] if provider == "auto" and openvino_session.computes_bf16() else [])


def open_candidates(part: ModelPart, config: SessionConfig, cache: ModelCache) -> dict[Runtime, ModelRunner]:
    """The model in every candidate that opens; single precision comes first, and has to open."""
    opened: dict[Runtime, ModelRunner] = {}
    for runtime in candidates(part.kind, config.provider):
        wanted = replace(config, provider=runtime.provider, precision=runtime.precision)
        try:
            opened[runtime] = open_model(part, wanted, cache)
        except (EngineUnavailable, *SESSION_ERRORS) as error:
            if not opened:
                raise
            LOG.warning("%s does not open %s and is not tried: %s", runtime, part.file, error)
    return opened


@dataclass(slots=True)
class _Tally:
    """What one candidate did, over all pages."""

    spent_s: float = 0.0
    differing: int = 0
    gaps: list[float] = field(default_factory=list)  # how far the confidence of each line is apart
    failure: str = ""


class _Comparison:
    """What every candidate for one model reads, held against single precision, and how long it takes."""

    def __init__(self, part: ModelPart, runners: Mapping[Runtime, ModelRunner]) -> None:
        self._part, self._runners, self._count = part, runners, 0
        self._tallies = {runtime: _Tally() for runtime in runners}

    def add(self, read: Callable[[ModelRunner], R], differ: Callable[[R, R], Difference]) -> R:
        """Read one more page; what single precision reads, raising what that raises."""
        single = read(self._runners[FP32])
        self._count += differ(single, single)[0]
        for runtime, tally in self._tallies.items():
            try:
                _, differing, gaps = differ(single, read(self._runners[runtime]) if runtime != FP32 else single)
            except SESSION_ERRORS as error:
                tally.failure = f"a run fails: {error}"
                continue
            tally.differing += differing
            tally.gaps += gaps
        working = [runtime for runtime, tally in self._tallies.items() if not tally.failure]
        for runtime, spent_s in time_in_turn({one: partial(read, self._runners[one]) for one in working}).items():
            self._tallies[runtime].spent_s += spent_s
        return single

    def proofs(self, *, is_own_page: bool) -> list[Proof]:
        """A proof of each candidate but single precision."""
        return [self._proof(runtime, is_own_page=is_own_page) for runtime in self._tallies if runtime != FP32]

    def _proof(self, runtime: Runtime, *, is_own_page: bool) -> Proof:
        kind, tally, single = self._part.kind, self._tallies[runtime], self._tallies[FP32]
        agreement = max(0, self._count - tally.differing) / max(1, self._count)
        # What another model is sure of, on a page that was not drawn for it, counts on the whole.
        is_strict = is_own_page and self._part.version.is_built_in
        gap = max(tally.gaps, default=0.0) if is_strict else sum(tally.gaps) / max(1, len(tally.gaps))
        faults = {
            tally.failure: bool(tally.failure),
            "there is too little text that it knows": kind == RECOGNITION and len(single.gaps) < FEWEST_LINES,
            "too little is alike": agreement < (1.0 if is_own_page else LEAST_SHARE[kind]),
            f"confidence is {gap:.2f} from what it should be": gap > MOST_CONFIDENCE_GAP,
        }
        fault = next((text for text, is_found in faults.items() if is_found), "")
        gain = single.spent_s / max(tally.spent_s, 1e-9) if not tally.failure else 0.0
        return Proof(kind, runtime, gain, self._count, agreement, fault)


def time_in_turn(
    runs: Mapping[K, Callable[[], object]], rounds: int = _ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> dict[K, float]:
    """The least seconds of each candidate's run: one right after the other, and again in each round.

    What else the machine does disturbs all of them alike, and the least of several times hardly at all.
    """
    spent_s = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            began_s = clock()
            run()
            spent_s[name] = min(spent_s[name], clock() - began_s)
    return spent_s


def read_lines(part: ModelPart, crops: Sequence[Pixels], runner: ModelRunner) -> list[LineText]:
    """What the crops say."""
    threads = SharedThreads(1)
    try:
        line_runner, characters = make_line_runner(runner, threads), read_dictionary(part, runner.metadata)
        return Recognizer(line_runner, characters, height_px=part.input_format.height_px).read(crops)
    finally:
        threads.close()


def cut_line(pixels: Pixels, outline: Outline, height: int = HEIGHT_PX) -> Pixels:
    """A line of (H, W, 3) pixels as a recognizer of lines of that height wants it."""
    along, across = extent(outline)
    return cut(pixels, outline, input_width(along, across, height), height)


def _find(page: Pixels, runner: ModelRunner) -> list[Outline]:
    def detect(pixels: Pixels) -> ProbabilityMap:
        found: ProbabilityMap = runner.run(model_input(runner, pixels))[0][0, 0]
        return found

    return find_lines(page, detect)


def _misplaced(single: Sequence[Outline], other: Sequence[Outline]) -> Difference:
    """Lines that single precision finds; lines that are elsewhere, missing or too many; no confidences."""
    alike = 0
    if other:
        places = np.stack([corners(line) for line in other])
        for line in single:
            shift_px = np.abs(places - corners(line)).max(axis=(1, 2)).min()
            alike += bool(shift_px <= max(_LEAST_SHIFT_PX, _SHIFT * extent(line)[1]))
    return len(single), max(len(single), len(other)) - alike, []


def _misread(single: Sequence[LineText], other: Sequence[LineText], *, ignored: str = "") -> Difference:
    """Of the lines that single precision makes sense of: characters, edits, and how far confidences are apart.

    Lines of scripts that it does not know are noise to it.
    """
    pairs = [pair for pair in zip(single, other, strict=True) if pair[0].confidence >= MIN_CONFIDENCE]
    texts = [[line.text.replace(ignored, "") if ignored else line.text for line in pair] for pair in pairs]
    edits = sum(count_edits(*text) for text in texts)
    return sum(len(text[0]) for text in texts), edits, [abs(one.confidence - two.confidence) for one, two in pairs]


def count_edits(wanted: str, found: str) -> int:
    """The Levenshtein distance of two texts."""
    if wanted == found:
        return 0
    row = list(range(len(found) + 1))
    for above, letter in enumerate(wanted, 1):
        corner, row[0] = row[0], above
        for place, other in enumerate(found, 1):
            corner, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, corner + (letter != other))
    return row[-1]
