"""Chooses what the models are computed with on this processor by a proof: quickest of what reads as single precision.

A page of our own making (reference_page.png, drawn by tests/pages/make.py) is read with every candidate. One that finds
other lines in it, reads them otherwise or is much less sure of them is out, whatever its speed; the others are timed on
the same inputs in turn. That takes a few seconds, once: the choice is stored in the model cache, for the processor and
the versions that it depends on, and of several processes that start together one makes the proof.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import cv2
import numpy as np
import onnxruntime as ort

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.db_postprocess import ProbabilityMap, input_size, lines_from_map
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, model_input, to_tensor
from ocrsvc.engines.ppocr.pipeline.page import LEAST_CONFIDENCE
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS, make_line_runner
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, input_width
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, ModelPart
from ocrsvc.engines.ppocr.runtime.models import read_dictionary
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.providers import ON_CPU, check_precision, choose_provider
from ocrsvc.engines.ppocr.runtime.runtimes import (
    FP32,
    Proof,
    Runtime,
    RuntimeChoice,
    candidates,
    choice_key,
    choice_name,
    load_choice,
    named,
    quickest,
    store_choice,
)
from ocrsvc.engines.ppocr.runtime.session import SESSION_ERRORS, ModelRunner, SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.errors import EngineUnavailable
from ocrsvc.imaging.outline import Outline, corners, cut, extent
from ocrsvc.records import Pixels
from ocrsvc.system.allocator import give_back

LOG: Final = logging.getLogger("ocrsvc.ppocr")

MOST_SHIFT_PX: Final = 4.0  # how far a corner of a line may lie from where single precision finds it
FEWEST_LINES: Final = 5
"""Of the reference page that a recognizer must make sense of, for anything but single precision to be proved there."""

MOST_CONFIDENCE_GAP: Final = 0.05  # how far the confidence of a line may be from that of single precision
Parts = tuple[ModelPart, ModelPart]  # a detector and a recognizer
_REFERENCE: Final = Path(__file__).with_name("reference_page.png")
_ROUNDS: Final = 3
_TIMED_LINES: Final = 3
_TIMING_S: Final = 2.0
_WAIT_S: Final = 60.0
_NOT_STORED: Final = (
    "The choice is proved again at each start, because the model cache cannot be written to: name a folder for it with "
    "OCRSVC_MODEL_CACHE, or the runtime with OCRSVC_PROVIDER and OCRSVC_PRECISION."
)

K = TypeVar("K")
R = TypeVar("R")


def choose_runtime(
    parts: Parts,
    config: SessionConfig,
    cache: ModelCache,
    prove: Callable[[Parts, SessionConfig, ModelCache], RuntimeChoice] | None = None,
) -> RuntimeChoice | None:
    """What the settings name, else what was proved earlier, else what a proof finds now; None where a GPU is meant.

    Raises EngineUnavailable: what was asked for by name does not go together, or is not there.
    """
    provider = choose_provider(config.device, config.provider, ort.get_available_providers())
    means_openvino = config.precision == "bf16" and config.provider == "auto" and provider == "cpu"
    check_precision(config.precision, "openvino" if means_openvino else provider)
    if provider not in ON_CPU:
        return None
    asked = named(config.precision, config.provider)
    if asked is not None:
        return asked
    name, key = choice_name(parts[1]), choice_key(parts, config.provider, read_reference_file())
    with cache.locked(name, _WAIT_S):
        found = load_choice(cache, name, key)
        if found is not None:
            return found
        choice = (prove or prove_runtimes)(parts, replace(config, device="cpu", threads=1), cache)
        LOG.info("Chosen: %s.", choice)
        if not store_choice(cache, name, key, choice):
            LOG.warning(_NOT_STORED)
    return choice


def prove_runtimes(parts: Parts, config: SessionConfig, cache: ModelCache) -> RuntimeChoice:
    """Read the reference page with every candidate for `config.provider` ("cpu" or "auto"), time them, and choose."""
    began_s = time.perf_counter()
    page = np.asarray(cv2.imread(str(_REFERENCE), cv2.IMREAD_COLOR), np.uint8)
    detection = open_candidates(parts[0], config, cache)
    proofs = prove_detection(detection, page)
    outlines = find_lines_once(detection[FP32], page)
    recognition = open_candidates(parts[1], config, cache)
    height = parts[1].input_format.height_px
    proofs += prove_recognition(parts[1], recognition, [cut_line(page, outline, height) for outline in outlines])
    for proof in proofs:
        LOG.info(
            "Tried %s for %s: x%.2f%s", proof.runtime, proof.model, proof.gain, proof.fault and f", but {proof.fault}"
        )
    # What the candidates that lost have taken; the worker's limits of memory look at what is resident.
    del detection, recognition
    give_back()
    reason = f"proved in {time.perf_counter() - began_s:.1f} s"
    return RuntimeChoice(quickest(proofs, DETECTION), quickest(proofs, RECOGNITION), reason)


def read_reference_file() -> bytes:
    """The reference page's file, which a choice depends on."""
    return _REFERENCE.read_bytes()


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


def prove_detection(runners: Mapping[Runtime, ModelRunner], page: Pixels) -> list[Proof]:
    """A proof of each candidate, of the same page."""
    resized = _for_detection(page)
    return _prove(
        DETECTION,
        runners,
        read=lambda runner: find_lines_once(runner, page),
        runs=lambda runner: [partial(detect, runner, resized)],
        fault=outline_fault,
    )


def prove_recognition(part: ModelPart, runners: Mapping[Runtime, ModelRunner], crops: Sequence[Pixels]) -> list[Proof]:
    """A proof of each candidate, of the same lines: those that single precision makes sense of."""
    # Lines of scripts that it does not know are noise to it.
    found = read_lines(part, runners[FP32], crops)
    crops = [crop for crop, text in zip(crops, found, strict=True) if text.confidence >= LEAST_CONFIDENCE]
    if len(crops) < FEWEST_LINES:
        fault = "the reference page has too little of its script"
        return [Proof(RECOGNITION, runtime, 0.0, fault=fault) for runtime in runners if runtime != FP32]
    by_width = sorted(crops, key=lambda one: one.shape[1])
    # From the narrowest to the widest, evenly apart.
    places = np.linspace(0, len(by_width) - 1, min(len(by_width), _TIMED_LINES)).round().astype(int)
    timed = [to_tensor(by_width[place], part.input_format) for place in dict.fromkeys(places.tolist())]
    return _prove(
        RECOGNITION,
        runners,
        read=lambda runner: read_lines(part, runner, crops),
        runs=lambda runner: [partial(runner.run, tensor, OUTPUTS) for tensor in timed],
        fault=partial(text_fault, is_own_page=part.version.is_built_in),
    )


def _prove(
    model: Kind,
    runners: Mapping[Runtime, ModelRunner],
    read: Callable[[ModelRunner], R],
    runs: Callable[[ModelRunner], Sequence[Callable[[], object]]],
    fault: Callable[[R, R], str],
) -> list[Proof]:
    """Hold what each candidate reads against single precision, and time its runs. Raises what the latter's raise."""
    made, faults = {FP32: read(runners[FP32])}, dict[Runtime, str]()
    others = [runtime for runtime in runners if runtime != FP32]
    for runtime in others:
        try:
            made[runtime] = read(runners[runtime])
        except SESSION_ERRORS as error:
            faults[runtime] = f"a run fails: {error}"
        else:
            faults[runtime] = fault(made[FP32], made[runtime])
    spent_s = {name: sum(one) for name, one in time_in_turn({name: runs(runners[name]) for name in made}).items()}
    gains = {name: spent_s[FP32] / max(spent_s[name], 1e-9) for name in made}
    return [Proof(model, name, gains.get(name, 0.0), fault=faults[name]) for name in others]


def time_in_turn(
    runs: Mapping[K, Sequence[Callable[[], object]]],
    rounds: int = _ROUNDS,
    most_s: float = _TIMING_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, tuple[float, ...]]:
    """The least seconds of each run of each candidate: the same run of all, one right after the other, and once more.

    What else the machine does disturbs all of them alike, and the least of several times hardly at all. A first round
    is not counted. One counted round is made in any case, and no further one begins when `most_s` are over.
    """
    end_s = clock() + most_s
    spent_s: dict[K, list[list[float]]] = {name: [[] for _ in of_one] for name, of_one in runs.items()}
    for number in range(rounds + 1):
        if number > 1 and clock() > end_s:
            break
        for place in range(len(next(iter(runs.values()), ()))):
            for name, of_one in runs.items():
                began_s = clock()
                of_one[place]()
                spent_s[name][place].append(clock() - began_s)
    return {name: tuple(min(times[1:]) for times in of_one) for name, of_one in spent_s.items()}


def find_lines_once(runner: ModelRunner, page: Pixels) -> list[Outline]:
    """The lines of a page, from one pass at its own scale; the engine itself may take two."""
    height, width = page.shape[:2]
    return lines_from_map(detect(runner, _for_detection(page)), width, height).outlines


def detect(runner: ModelRunner, pixels: Pixels) -> ProbabilityMap:
    """A detector's map of a page whose sides it takes."""
    found: ProbabilityMap = runner.run(model_input(runner, pixels))[0][0, 0]
    return found


def read_lines(part: ModelPart, runner: ModelRunner, crops: Sequence[Pixels]) -> list[LineText]:
    """What the crops say."""
    threads = SharedThreads(1)
    characters = read_dictionary(part, runner.metadata)
    try:
        line_runner, height_px = make_line_runner(runner, threads), part.input_format.height_px
        return Recognizer(line_runner, characters, height_px=height_px).read(crops)
    finally:
        threads.close()


def cut_line(pixels: Pixels, outline: Outline, height: int = HEIGHT_PX) -> Pixels:
    """A line of (H, W, 3) pixels as a recognizer of lines of that height wants it."""
    along, across = extent(outline)
    return cut(pixels, outline, input_width(along, across, height), height)


def outline_fault(single: Sequence[Outline], other: Sequence[Outline]) -> str:
    """What differs between the lines that two detectors found; "" where nothing does that matters."""
    if len(single) != len(other):
        return f"it finds {len(other)} lines instead of {len(single)}"
    shifts = [min(np.abs(corners(mine) - corners(line)).max() for mine in other) for line in single]
    return f"lines are {max(shifts):.1f} px elsewhere" if max(shifts, default=0) > MOST_SHIFT_PX else ""


def text_fault(single: Sequence[LineText], other: Sequence[LineText], *, is_own_page: bool = True) -> str:
    """What differs between what two recognizers read in the same lines; "" where nothing does that matters.

    For models that the reference page was not drawn for spaces do not count, nor one line's confidence: where Chinese
    meets Latin, the ink decides on spaces for the whole page.
    """
    space = None if is_own_page else " "
    pairs = list(zip(single, other, strict=True))
    differing = sum(_without(mine.text, space) != _without(text.text, space) for text, mine in pairs)
    if differing:
        return f"it reads {differing} of {len(single)} lines otherwise"
    gaps = [abs(mine.confidence - text.confidence) for text, mine in pairs]
    what, gap = ("a line's confidence", max(gaps)) if is_own_page else ("confidence", float(np.mean(gaps)))
    return f"{what} is {gap:.2f} from what it should be" if gap > MOST_CONFIDENCE_GAP else ""


def _without(text: str, space: str | None) -> str:
    return text if space is None else text.replace(space, "")


def _for_detection(page: Pixels) -> Pixels:
    height, width = page.shape[:2]
    return np.asarray(cv2.resize(page, input_size(height, width, 1.0)), np.uint8)
