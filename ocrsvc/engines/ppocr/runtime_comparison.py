"""Compares what the models can be computed with on the user's own pages: speed, lines found, and text read.

This judges the same candidates as the proof at the first start (runtime_proof.py), by pages that matter to the user in
place of one that we drew. Speed is measured in pairs of runs, one right after the other, in the processor's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from ocrsvc.engines.ppocr.pipeline.db_postprocess import find_lines
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
from ocrsvc.engines.ppocr.runtime.runtimes import (
    LEAST_GAIN,
    Runtime,
    RuntimeChoice,
    choice_key,
    choice_name,
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

LEAST_AGREEMENT: Final = 0.99  # share of the characters that must be read as in single precision
LEAST_FOUND: Final = 0.97  # share of the lines that must be found where single precision finds them
FEWEST_CHARACTERS: Final = 500  # with fewer, the agreement says nothing
_SHIFT: Final = 0.15  # of a line's height: how far its corners may lie from where single precision finds them
_MOST_TIMED: Final = 200


@dataclass(frozen=True, slots=True)
class Comparison:
    """A runtime of one model beside single precision in ONNX Runtime."""

    model: str  # DETECTION or RECOGNITION
    runtime: Runtime
    # for each page or line, the processor's seconds in single precision and with this runtime
    times_s: Sequence[tuple[float, float]]
    count: int  # lines found, or characters read, in single precision
    same: int  # how many of them are found or read alike

    @property
    def gain(self) -> float:
        """How many times as quick: the median."""
        return median(single / own for single, own in self.times_s) if self.times_s else 0.0

    @property
    def agreement(self) -> float:
        """Share of what is found or read alike."""
        return self.same / max(1, self.count)

    @property
    def wins(self) -> bool:
        """Whether it may be chosen."""
        least = LEAST_FOUND if self.model == DETECTION else LEAST_AGREEMENT
        return self.gain >= LEAST_GAIN and self.agreement >= least


class PageSamples:
    """The user's pages, and the runtimes that are compared on them."""

    def __init__(self, config: SessionConfig, cache: ModelCache) -> None:
        self._config, self._cache = config, cache
        self._parts = built_in_part(DETECTION), built_in_part(RECOGNITION)
        self._detection = open_candidates(self._parts[0], config, cache)
        self._recognition = open_candidates(self._parts[1], config, cache)
        self._crops: list[Pixels] = []
        self._found: list[list[tuple[float, list[Outline]]]] = []
        self._pages = 0

    def collect(self, image: Image) -> int:
        """Find the lines of one more page with every candidate; returns how many lines there are now."""
        found = [_timed(partial(find_lines, image.pixels, partial(detect, one))) for one in self._detection.values()]
        self._found.append(found)
        self._crops += [cut_line(image.pixels, outline) for outline in found[0][1]]
        self._pages += 1
        return len(self._crops)

    def compare(self, report_progress: Callable[[int, int], None] = lambda _done, _count: None) -> list[Comparison]:
        """Compare the lines found, read them all with every candidate, and time some of those runs."""
        compared = [
            _compare_found(runtime, [(page[0], page[place]) for page in self._found])
            for place, runtime in enumerate(self._detection)
            if place
        ]
        single, *others = self._recognition
        texts: dict[Runtime, list[str]] = {runtime: [] for runtime in self._recognition}
        times_s: dict[Runtime, list[tuple[float, float]]] = {runtime: [] for runtime in others}
        every = max(1, len(self._crops) // _MOST_TIMED)
        for number, line in enumerate(self._crops):
            report_progress(number, len(self._crops))
            for runtime, runner in self._recognition.items():
                texts[runtime].append(read_lines(self._parts[1], runner, [line])[0].text)
            if number % every == 0:
                runs = {
                    one: [partial(runner.run, to_tensor(line), OUTPUTS)] for one, runner in self._recognition.items()
                }
                spent_s = time_in_turn(runs, rounds=1, clock=time.process_time)
                for runtime in others:
                    times_s[runtime].append((spent_s[single][0], spent_s[runtime][0]))
        report_progress(len(self._crops), len(self._crops))
        return compared + [_compare_read(one, times_s[one], texts[single], texts[one]) for one in others]

    def choose(self, compared: Sequence[Comparison]) -> RuntimeChoice:
        """The quickest of those that win, for each model; single precision where none does."""

        def best(name: str, single: Runtime) -> Runtime:
            winners = [one for one in compared if one.model == name and one.wins]
            return max(winners, key=lambda one: one.gain).runtime if winners else single

        reason = f"by `ocrsvc optimize` with {self._pages} pages"
        detection, recognition = next(iter(self._detection)), next(iter(self._recognition))
        return RuntimeChoice(best(DETECTION, detection), best(RECOGNITION, recognition), reason)

    def save(self, choice: RuntimeChoice) -> bool:
        """Let the engine take that choice from its next start on; whether the cache took it."""
        key = choice_key(self._parts, self._config.provider, read_reference_file())
        return store_choice(self._cache, choice_name(self._parts[1]), key, choice)


def count_characters(compared: Sequence[Comparison]) -> int:
    """How many characters were read in single precision; 0 where nothing was compared with it."""
    return max((one.count for one in compared if one.model == RECOGNITION), default=0)


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


def table(compared: Sequence[Comparison]) -> Iterable[str]:
    """What was measured, in lines to print."""
    yield f"{'model':12} {'runtime':18} {'speed':>7} {'alike':>8}  verdict"
    for one in compared:
        model = "detection" if one.model == DETECTION else "recognition"
        least = LEAST_FOUND if one.model == DETECTION else LEAST_AGREEMENT
        verdict = "may be used" if one.wins else f"not used: at least x{LEAST_GAIN:g} and {least:.0%} are asked"
        yield f"{model:12} {one.runtime!s:18} {'x' + format(one.gain, '.2f'):>7} {one.agreement:>8.2%}  {verdict}"


def _timed(run: Callable[[], list[Outline]]) -> tuple[float, list[Outline]]:
    began_s = time.process_time()
    found = run()
    return time.process_time() - began_s, found


def _compare_found(
    runtime: Runtime, pages: Sequence[tuple[tuple[float, list[Outline]], tuple[float, list[Outline]]]]
) -> Comparison:
    times_s = [(single[0], other[0]) for single, other in pages]
    same = sum(count_found(single[1], other[1]) for single, other in pages)
    return Comparison(DETECTION, runtime, times_s, sum(len(single[1]) for single, _ in pages), same)


def _compare_read(
    runtime: Runtime, times_s: Sequence[tuple[float, float]], single: Sequence[str], other: Sequence[str]
) -> Comparison:
    count = sum(map(len, single))
    edits = sum(map(count_edits, single, other))
    return Comparison(RECOGNITION, runtime, times_s, count, max(0, count - edits))
