"""Proves which runtimes read like single precision (fp32) on a CPU, and times them.

Every candidate reads the same pages: at the first start our own page (reference_page.png, drawn by
tests/pages/make.py), with `ocrsvc optimize` the user's pages. A candidate that finds other lines, reads other text or
differs much in confidence is rejected, even if it is fast; the others are timed.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, TypeVar

import cv2
import numpy as np

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.cascade import CascadeRecognizer
from ocrsvc.engines.ppocr.pipeline.db_postprocess import find_lines
from ocrsvc.engines.ppocr.pipeline.network_input import model_input
from ocrsvc.engines.ppocr.pipeline.page import MIN_CONFIDENCE
from ocrsvc.engines.ppocr.pipeline.recognition_batches import make_line_runner
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, input_width
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, ModelPart, read_dictionary, tiny_part
from ocrsvc.engines.ppocr.runtime.open_model import TinyFirst, open_model, open_tiny_first
from ocrsvc.engines.ppocr.runtime.providers import Precision, Provider
from ocrsvc.engines.ppocr.runtime.session import ModelRunner, SessionConfig, session_errors
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.errors import EngineUnavailable
from ocrsvc.imaging.text_contour import Outline, corners, cut, extent
from ocrsvc.results import Pixels

LOG: Final = logging.getLogger("ocrsvc.ppocr")

# Smallest speedup over fp32 for which a candidate is chosen; larger than the noise of timings.
MIN_GAIN: Final = 1.1
# Least share of fp32's lines (detection) or characters (recognition) that a runtime must find; 1 on the reference page.
MIN_SHARE: Final[dict[Kind, float]] = {DETECTION: 0.97, RECOGNITION: 0.99}
FEWEST_LINES: Final = 5  # a recognizer is proved only if fp32 reads at least this number of lines confidently
MAX_CONFIDENCE_GAP: Final = 0.05
_SHIFT: Final = 0.15  # largest distance of a line's corners from those of fp32, in line heights
_MIN_SHIFT_PX: Final = 2.0
_ROUNDS: Final = 2
_BESIDE_CHINESE: Final = r"(?<=[^\x00-\x7f]) | (?=[^\x00-\x7f])"  # spaces that the page decides (pipeline/spaces.py)
REFERENCE_PAGE: Final = Path(__file__).with_name("reference_page.png")

Parts = tuple[ModelPart, ModelPart]  # a detector and a recognizer
Difference = tuple[int, int, list[float]]  # number of items, number of differing items, differences in confidence
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Runtime:
    """A library and a precision; the provider "cpu" means ONNX Runtime."""

    provider: Provider
    precision: Precision
    tiny_first: bool = False  # whether the tiny recognizer reads lines before the built-in one (pipeline/cascade.py)

    def __str__(self) -> str:
        first = ", tiny first" if self.tiny_first else ""
        return f"{'OpenVINO' if self.provider == 'openvino' else 'ONNX Runtime'} {self.precision}{first}"


FP32: Final = Runtime("cpu", "fp32")
INT8: Final = Runtime("cpu", "int8")
BF16: Final = Runtime("openvino", "bf16")
TINY_FIRST: Final = Runtime("openvino", "bf16", tiny_first=True)


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of one model's runtime with fp32 in ONNX Runtime."""

    model: Kind
    runtime: Runtime
    gain: float  # speedup over fp32; 0 if it was not timed
    count: int = 0  # number of lines to find, or of characters to read
    agreement: float = 1.0  # share of the lines found, or characters read, as with fp32
    fault: str = ""  # why the runtime is rejected, apart from its speed; empty if it is not

    @property
    def wins(self) -> bool:
        """Whether the runtime may be chosen: it has no fault, and is faster than fp32 by MIN_GAIN."""
        return not self.fault and self.gain >= MIN_GAIN

    def __str__(self) -> str:
        verdict = self.fault or ("may be used" if self.wins else f"not used, must be at least x{MIN_GAIN:g}")
        return f"{self.model:12} {self.runtime!s:18} x{self.gain:<6.2f} {self.agreement:8.2%} alike: {verdict}"


def prove_runtimes(
    parts: Parts, config: SessionConfig, cache: ModelCache, pages: Iterable[Pixels] | None = None
) -> list[Proof]:
    """Compare and time all runtimes for `config.provider` ("cpu", "auto") on pages (default: the reference page)."""
    is_own_page, height = pages is None, parts[1].input_format.height_px
    detection, recognition = (_Comparison(part, partial(open_candidates, part, config, cache)) for part in parts)
    for page in [np.asarray(cv2.imread(str(REFERENCE_PAGE), cv2.IMREAD_COLOR), np.uint8)] if pages is None else pages:
        outlines = detection.add(partial(_find, page), _misplaced)
        crops = [cut(page, outline, input_width(*extent(outline), height), height) for outline in outlines]
        # Ignore all spaces that a model other than the built-in one reads: runtimes may place them differently.
        differ = partial(_misread, ignored=_BESIDE_CHINESE if parts[1].version.is_built_in else " ")
        recognition.add(partial(read_lines, parts[1], crops), differ)
    proofs = [proof for one in (detection, recognition) for proof in one.proofs(is_own_page=is_own_page)]
    for proof in proofs:
        LOG.info("Tried: %s", proof)
    return proofs


def candidates(part: ModelPart, provider: Provider) -> list[Runtime]:
    """The runtimes to compare for a model, fp32 first, if the settings do not choose one."""
    in_openvino = [BF16] if provider == "auto" and openvino_session.computes_bf16() else []
    if part.kind == DETECTION:
        return [FP32, *in_openvino]
    return [FP32, *in_openvino, *([TINY_FIRST] if in_openvino and part.version.is_built_in else []), INT8]


def open_candidates(part: ModelPart, config: SessionConfig, cache: ModelCache) -> dict[Runtime, ModelRunner]:
    """Open the model in fp32 and in each other runtime. Raises if fp32 fails; other failures are only logged."""
    opened: dict[Runtime, ModelRunner] = {}
    refusals: tuple[type[Exception], ...] = (EngineUnavailable, *session_errors())
    for runtime in candidates(part, config.provider):
        if runtime == INT8 and TINY_FIRST in opened:
            continue  # int8 takes about as long as bf16 (on an EPYC with AVX512-BF16), and tiny first less
        candidate_config = replace(config, provider=runtime.provider, precision=runtime.precision)
        try:
            careful = opened.get(replace(runtime, tiny_first=False)) or open_model(part, candidate_config, cache)
            opened[runtime] = open_tiny_first(careful, candidate_config, cache) if runtime.tiny_first else careful
        except refusals as error:
            if not opened:
                raise
            LOG.warning("%s cannot open %s and is not tried: %s", runtime, part.file, error)
    return opened


@dataclass(slots=True)
class _Tally:
    spent_s: float = 0.0
    differing: int = 0
    gaps: list[float] = field(default_factory=list)  # differences in confidence, one per line
    failure: str = ""


class _Comparison:
    """Compares all candidates for one model with fp32, and times them. The models are opened for the first page."""

    def __init__(self, part: ModelPart, open_runners: Callable[[], Mapping[Runtime, ModelRunner]]) -> None:
        self._part, self._open_runners, self._count = part, open_runners, 0

    @cached_property
    def _runners(self) -> Mapping[Runtime, ModelRunner]:
        return self._open_runners()

    @cached_property
    def _tallies(self) -> Mapping[Runtime, _Tally]:
        return {runtime: _Tally() for runtime in self._runners}

    def add(self, read: Callable[[ModelRunner], R], differ: Callable[[R, R], Difference]) -> R:
        """Let all candidates read one more page; returns what fp32 reads, and raises the errors of fp32."""
        single = read(self._runners[FP32])
        self._count += differ(single, single)[0]
        for runtime, tally in self._tallies.items():
            try:
                _, differing, gaps = differ(single, read(self._runners[runtime]) if runtime != FP32 else single)
            except session_errors() as error:
                tally.failure = f"a run fails: {error}"
                continue
            tally.differing += differing
            tally.gaps += gaps
        working = {one: partial(read, self._runners[one]) for one, tally in self._tallies.items() if not tally.failure}
        for runtime, spent_s in time_in_turn(working).items():
            self._tallies[runtime].spent_s += spent_s
        return single

    def proofs(self, *, is_own_page: bool) -> list[Proof]:
        """Return each candidate's comparison with fp32, except fp32's own."""
        return [self._proof(runtime, is_own_page=is_own_page) for runtime in self._tallies if runtime != FP32]

    def _proof(self, runtime: Runtime, *, is_own_page: bool) -> Proof:
        kind, tally, single = self._part.kind, self._tallies[runtime], self._tallies[FP32]
        agreement = max(0, self._count - tally.differing) / max(1, self._count)
        # For the built-in model on the reference page, the largest difference in confidence counts; otherwise the mean.
        is_strict = is_own_page and self._part.version.is_built_in
        gap = max(tally.gaps, default=0.0) if is_strict else sum(tally.gaps) / max(1, len(tally.gaps))
        faults = {
            tally.failure: bool(tally.failure),
            "too few lines are readable": kind == RECOGNITION and len(single.gaps) < FEWEST_LINES,
            "too much differs": agreement < (1.0 if is_own_page else MIN_SHARE[kind]),
            f"confidence differs by {gap:.2f}": gap > MAX_CONFIDENCE_GAP,
        }
        fault = next((text for text, is_found in faults.items() if is_found), "")
        gain = single.spent_s / max(tally.spent_s, 1e-9) if not tally.failure else 0.0
        return Proof(kind, runtime, gain, self._count, agreement, fault)


def time_in_turn(
    runs: Mapping[K, Callable[[], object]], rounds: int = _ROUNDS, clock: Callable[[], float] = time.process_time
) -> dict[K, float]:
    """Run all candidates in turn, several times. Returns the shortest CPU times, which other load hardly affects."""
    spent_s = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            began_s = clock()
            run()
            spent_s[name] = min(spent_s[name], clock() - began_s)
    return spent_s


def read_lines(part: ModelPart, crops: Sequence[Pixels], runner: ModelRunner) -> list[LineText]:
    """Read the text of line crops."""
    with closing(SharedThreads(1)) as threads:
        line_runner, characters = make_line_runner(runner, threads), read_dictionary(part, runner.metadata)
        if isinstance(runner, TinyFirst):
            own = make_line_runner(runner.tiny, threads), read_dictionary(tiny_part(), runner.tiny.metadata)
            return CascadeRecognizer(line_runner, characters, quick=Recognizer(*own)).read(crops)
        return Recognizer(line_runner, characters, height_px=part.input_format.height_px).read(crops)


def _find(page: Pixels, runner: ModelRunner) -> list[Outline]:
    return find_lines(page, lambda pixels: runner.run(model_input(runner, pixels))[0][0, 0])


def _misplaced(single: Sequence[Outline], other: Sequence[Outline]) -> Difference:
    """Compare positions: counts of fp32's lines, and of moved, missing and extra lines; no confidences."""
    alike, places = 0, [corners(line) for line in other]
    for line in single:
        shift_px = min((float(np.abs(place - corners(line)).max()) for place in places), default=math.inf)
        alike += shift_px <= max(_MIN_SHIFT_PX, _SHIFT * extent(line)[1])
    return len(single), max(len(single), len(other)) - alike, []


def _misread(single: Sequence[LineText], other: Sequence[LineText], *, ignored: str) -> Difference:
    """Compare lines that fp32 reads confidently: counts of characters and of edits, and differences in confidence."""
    pairs = [pair for pair in zip(single, other, strict=True) if pair[0].confidence >= MIN_CONFIDENCE]
    texts = [[re.sub(ignored, "", line.text) for line in pair] for pair in pairs]
    edits = sum(count_edits(*text) for text in texts)
    return sum(len(text[0]) for text in texts), edits, [abs(one.confidence - two.confidence) for one, two in pairs]


def count_edits(expected: str, actual: str) -> int:
    """The Levenshtein distance of two texts."""
    if expected == actual:
        return 0
    row = list(range(len(actual) + 1))
    for above, character in enumerate(expected, 1):
        corner, row[0] = row[0], above
        for index, other in enumerate(actual, 1):
            corner, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, corner + (character != other))
    return row[-1]
