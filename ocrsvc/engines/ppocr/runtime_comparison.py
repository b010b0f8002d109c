"""Compares what the models can be computed with on the user's own pages: speed, lines found, and text read.

This judges the candidates as the proof at the first start does (runtime_proof.py), by pages that matter to the user in
place of one that we drew. Speed is measured in pairs of runs, one right after the other, in the processor's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from ocrsvc.engines.ppocr.pipeline.db_postprocess import find_lines
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, built_in_part
from ocrsvc.engines.ppocr.runtime.runtimes import (
    FP32,
    LEAST_GAIN,
    Proof,
    Runtime,
    RuntimeChoice,
    choice_key,
    choice_name,
    quickest,
    store_choice,
)
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_proof import (
    cut_line,
    detect,
    open_candidates,
    read_lines,
    read_reference_file,
    time_in_turn,
)
from ocrsvc.imaging.outline import Outline, corners, extent
from ocrsvc.records import Image, Pixels

LEAST_SHARE: Final[dict[Kind, float]] = {DETECTION: 0.97, RECOGNITION: 0.99}
"""Of the lines that must be found where single precision finds them, and of the characters that must be read alike."""

FEWEST_CHARACTERS: Final = 500  # with fewer, the agreement says nothing
_SHIFT: Final = 0.15  # of a line's height: how far its corners may lie from where single precision finds them
_MOST_TIMED: Final = 200
_LEAST_S: Final = 1e-9  # what a clock that has not moved counts as


class PageSamples:
    """The user's pages, and the runtimes that are compared on them."""

    def __init__(self, config: SessionConfig, cache: ModelCache) -> None:
        self._config, self._cache = config, cache
        self._parts = built_in_part(DETECTION), built_in_part(RECOGNITION)
        self._detection = open_candidates(self._parts[0], config, cache)
        self._recognition = open_candidates(self._parts[1], config, cache)
        self._crops: list[Pixels] = []
        self._found: list[list[tuple[float, list[Outline]]]] = []
        self.characters = 0  # read in single precision

    def collect(self, image: Image) -> None:
        """Find the lines of one more page with every candidate."""
        found = [_timed(partial(find_lines, image.pixels, partial(detect, one))) for one in self._detection.values()]
        self._found.append(found)
        self._crops += [cut_line(image.pixels, outline) for outline in found[0][1]]

    def compare(self, report_progress: Callable[[int, int], None] = lambda _done, _count: None) -> list[Proof]:
        """Compare the lines found, read them all with every candidate, and time some of those runs."""
        compared = [
            _compare_found(runtime, [(page[0], page[place]) for page in self._found])
            for place, runtime in enumerate(self._detection)
            if place
        ]
        others = [runtime for runtime in self._recognition if runtime != FP32]
        texts: dict[Runtime, list[str]] = {runtime: [] for runtime in self._recognition}
        gains: dict[Runtime, list[float]] = {runtime: [] for runtime in others}
        every = max(1, len(self._crops) // _MOST_TIMED)
        for number, line in enumerate(self._crops):
            report_progress(number, len(self._crops))
            for runtime, runner in self._recognition.items():
                texts[runtime].append(read_lines(self._parts[1], runner, [line])[0].text)
            if number % every == 0:
                tensor = to_tensor(line)
                runs = {one: [partial(runner.run, tensor, OUTPUTS)] for one, runner in self._recognition.items()}
                spent_s = time_in_turn(runs, rounds=1, clock=time.process_time)
                for runtime in others:
                    gains[runtime].append(spent_s[FP32][0] / max(spent_s[runtime][0], _LEAST_S))
        report_progress(len(self._crops), len(self._crops))
        self.characters = sum(map(len, texts[FP32]))
        return compared + [
            make_proof(RECOGNITION, one, gains[one], self.characters, sum(map(count_edits, texts[FP32], texts[one])))
            for one in others
        ]

    def choose(self, compared: Sequence[Proof]) -> RuntimeChoice:
        """The quickest of those that win, for each model; single precision where none does."""
        reason = f"by `ocrsvc optimize` with {len(self._found)} pages"
        return RuntimeChoice(quickest(compared, DETECTION), quickest(compared, RECOGNITION), reason)

    def save(self, choice: RuntimeChoice) -> bool:
        """Let the engine take that choice from its next start on; whether the cache took it."""
        key = choice_key(self._parts, self._config.provider, read_reference_file())
        return store_choice(self._cache, choice_name(self._parts[1]), key, choice)


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


def count_found(single: Sequence[Outline], other: Sequence[Outline]) -> int:
    """How many of the lines of one detector another one finds in the same place."""
    if not other:
        return 0
    places = np.stack([corners(line) for line in other])
    shifts = [np.abs(places - corners(line)).max(axis=(1, 2)).min() for line in single]
    return sum(bool(shift <= max(2.0, _SHIFT * extent(line)[1])) for shift, line in zip(shifts, single, strict=True))


def table(compared: Sequence[Proof]) -> Iterable[str]:
    """What was measured, in lines to print."""
    yield f"{'model':12} {'runtime':18} {'speed':>7} {'alike':>8}  verdict"
    for one in compared:
        least = LEAST_SHARE[one.model]
        verdict = "may be used" if one.wins else f"not used: at least x{LEAST_GAIN:g} and {least:.0%} are asked"
        yield f"{one.model:12} {one.runtime!s:18} {'x' + format(one.gain, '.2f'):>7} {one.agreement:>8.2%}  {verdict}"


def _timed(run: Callable[[], list[Outline]]) -> tuple[float, list[Outline]]:
    began_s = time.process_time()
    found = run()
    return time.process_time() - began_s, found


def _compare_found(
    runtime: Runtime, pages: Sequence[tuple[tuple[float, list[Outline]], tuple[float, list[Outline]]]]
) -> Proof:
    gains = [single[0] / max(other[0], _LEAST_S) for single, other in pages]
    count = sum(len(single[1]) for single, _ in pages)
    same = sum(count_found(single[1], other[1]) for single, other in pages)
    return make_proof(DETECTION, runtime, gains, count, count - same)


def make_proof(model: Kind, runtime: Runtime, gains: Sequence[float], count: int, differing: int) -> Proof:
    """Of so many lines or characters, where so many are found or read otherwise; the median gain counts."""
    agreement = max(0, count - differing) / max(1, count)
    fault = "" if agreement >= LEAST_SHARE[model] else "too little is alike"
    return Proof(model, runtime, median(gains) if gains else 0.0, agreement, fault)
