"""Compares the int8 recognizer with the one in single precision on this machine: speed and text, on sample lines.

The int8 model is kept only if it is measurably quicker here and reads the same: a processor without the instructions
for it (VNNI on x86) computes eight bits more slowly than single precision, and less exactly. Speed is measured in pairs
of runs, one right after the other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import open_detector
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.pipeline.recognition_batches import OUTPUTS, LineRunner, SingleLineRunner
from ocrsvc.engines.ppocr.pipeline.recognizer import Recognizer, read_characters
from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.cached_models import has_int8, make_int8, remove_int8
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime.session_pool import ModelRunner
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.records import Check, Image, Pixels, ReadTask, no_check

LEAST_GAIN: Final = 1.1
"""How many times as quick a model must be to be kept."""

LEAST_AGREEMENT: Final = 0.99
"""Share of the characters that must be read as in single precision."""

FEWEST_CHARACTERS: Final = 500
"""With fewer, the agreement says nothing."""

_MOST_TIMED: Final = 200


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model in eight bits beside the same in single precision.

    Attributes:
        times_s: For each line, the processor's seconds in single precision and in eight bits.
        lines: How many were read.
        same: How many of them alike.
        characters: Read in single precision.
        edits: Characters inserted, left out or replaced in eight bits.
    """

    times_s: Sequence[tuple[float, float]]
    lines: int
    same: int
    characters: int
    edits: int

    @property
    def gain(self) -> float:
        """How many times as quick: the median over the lines."""
        return median(fp32 / int8 for fp32, int8 in self.times_s) if self.times_s else 0.0

    @property
    def agreement(self) -> float:
        """Share of the characters that are read alike."""
        return 1 - self.edits / max(1, self.characters)

    @property
    def wins(self) -> bool:
        """Whether it is worth keeping."""
        return self.gain >= LEAST_GAIN and self.agreement >= LEAST_AGREEMENT


class LineSamples:
    """Lines of pages, as the recognizer is given them, and the models that are compared on them.

    Args:
        cache: Keeps models; what it holds in eight bits is not used here.
    """

    def __init__(self, cache: ModelCache) -> None:
        config = SessionConfig("cpu", 1, precision="fp32")
        self._cache = cache
        self._fp32 = open_model(models.RECOGNITION, config, cache)
        self._int8 = make_int8(config)
        self._shared_threads = SharedThreads(1)
        self._characters = read_characters(self._fp32.metadata)
        self._recording = _RecordingRecognizer(SingleLineRunner(self._fp32, self._shared_threads), self._characters)
        self._handle = PageHandle(open_detector(config, cache), {"greedy": self._recording}, self._shared_threads)

    def collect(self, image: Image) -> int:
        """Find and read the lines of one more page; returns how many there are now."""
        self._handle.read([ReadTask(image)])
        return len(self._recording.crops)

    def compare(self, report_progress: Callable[[int, int], None] = lambda _done, _count: None) -> Comparison:
        """Read all lines with both models and time some of them, in pairs.

        Args:
            report_progress: Called with the number of lines done and of all lines.
        """
        crops = self._recording.crops
        every = max(1, len(crops) // _MOST_TIMED)
        times_s, same, characters, edits = [], 0, 0, 0
        for number, crop in enumerate(crops):
            report_progress(number, len(crops))
            if number % every == 0:
                times_s.append(time_pair(self._fp32, self._int8, crop, int8_first=number // every % 2 == 1))
            fp32, int8 = (self._read(session, crop) for session in (self._fp32, self._int8))
            characters, same = characters + len(fp32), same + (fp32 == int8)
            edits += count_edits(fp32, int8)
        report_progress(len(crops), len(crops))
        return Comparison(times_s, len(crops), same, characters, edits)

    def save(self, compared: Comparison) -> bool:
        """Let the engine use the model from now on if it won, and not if it lost; whether the cache did so."""
        if compared.wins:
            make_int8(SessionConfig("cpu", 1), self._cache)
        else:
            with contextlib.suppress(OSError):
                remove_int8(self._cache)
        return has_int8(self._cache) == compared.wins

    def close(self) -> None:
        """End the threads."""
        self._shared_threads.close()

    def _read(self, session: ModelRunner, crop: Pixels) -> str:
        return Recognizer(SingleLineRunner(session, self._shared_threads), self._characters).read([crop])[0].text


class _RecordingRecognizer(Recognizer):
    """A recognizer that records the crops it is given."""

    def __init__(self, runner: LineRunner, characters: Sequence[str]) -> None:
        super().__init__(runner, characters)
        self.crops: list[Pixels] = []

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """See Recognizer."""
        self.crops += crops
        return super().read(crops, check)


def time_pair(fp32: ModelRunner, int8: ModelRunner, crop: Pixels, *, int8_first: bool) -> tuple[float, float]:
    """Processor seconds of one line in single precision and in eight bits, one right after the other."""
    tensor = to_tensor(crop)
    spent_s = {}
    for session in (int8, fp32) if int8_first else (fp32, int8):
        began_s = time.thread_time()
        session.run(tensor, OUTPUTS)
        spent_s[session.precision] = time.thread_time() - began_s
    return spent_s[fp32.precision], spent_s[int8.precision]


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


def table(compared: Comparison) -> Iterable[str]:
    """What was measured, in lines to print."""
    yield f"{'model':22} {'speed':>7} {'lines alike':>13} {'characters alike':>17}  verdict"
    verdict = "kept" if compared.wins else f"not kept: at least x{LEAST_GAIN:g} and {LEAST_AGREEMENT:.0%} are asked"
    yield (
        f"{'recognition in int8':22} {'x' + format(compared.gain, '.2f'):>7} {compared.same:>6}/{compared.lines:<6} "
        f"{compared.agreement:>16.2%}   {verdict}"
    )
