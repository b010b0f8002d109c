"""Recognizes lines: straightened crops to text with the PP-OCR recognizer, or with several for several scripts.

With several, each line is read by the first recognizer that it may be read by. Where that one is unsure, the others
read it too until one is sure, and the surest reading is kept. Those that read other lines of the page best are asked
first, and one that reads most of them best reads all; so a page of one script costs little more than two readings.
Recognizers of columns read only lines that run down the page. What the others read is bounded by what the first ones
have read; a page that these are sure of costs nothing more. All this depends on the page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineReader, LineText, Path
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.model.languages import AUTO, with_language
from ocrsvc.engines.ppocr.pipeline.ctc import Steps, align, beam_search, best_path, pad, prune
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, at_usual_height, level_ground
from ocrsvc.engines.ppocr.pipeline.page import PageReader
from ocrsvc.engines.ppocr.pipeline.recognition_batches import WITH_LOGITS, LineImage, LineRunner, RecognizerOutput
from ocrsvc.engines.ppocr.pipeline.spaces import measure_gaps
from ocrsvc.imaging.geometry import heading
from ocrsvc.imaging.outline import Outline, corners, extent
from ocrsvc.results import Check, Decoder, Pixels, ReadOptions, no_check

WIDTHS_PX: Final = (
    *(48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1920, 2400, 3200),
)
"""To which lines are stretched, the next wider one. Few, because OpenVINO compiles kernels for each and keeps them, in
about 6 MB; over the corpus these are 7 % more columns than steps of 16 px give."""
SQUEEZE: Final = 0.85  # of the width that keeps the shape: reads as well and costs less, except where strokes are thin
SMALL_TEXT_PX: Final = 24  # height of a box up to which a line is not squeezed
BEAM_WIDTH: Final = 10


def input_width(length: float, across: float, height: int = HEIGHT_PX) -> int:
    """Input width in pixels for a line of that length and height, which it depends on alone."""
    squeeze = SQUEEZE if across > SMALL_TEXT_PX else 1.0
    width = length * height / max(across, 1.0) * squeeze
    return next((one for one in WIDTHS_PX if one >= width), WIDTHS_PX[-1])


class Recognizer:
    """Reads line crops of a height with one line runner, decoded by best path."""

    def __init__(
        self,
        runner: LineRunner,
        characters: Sequence[str],
        direction: Direction = "ltr",
        height_px: int = HEIGHT_PX,
    ) -> None:
        self._runner = runner
        self._characters = characters
        self._direction: Direction = direction
        self.height_px = height_px

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """See engines.line_recognizer.LineReader."""
        return input_width(along, across, self.height_px), self.height_px

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """One LineText for each crop (height_px, w[, 3]) uint8, cut to `crop_size`; see LineReader."""
        return self.read_line_images([LineImage(level_ground(crop)) for crop in crops], check)

    def read_line_images(self, line_images: Sequence[LineImage], check: Check = no_check) -> list[LineText]:
        """One LineText for each line, `crop_size` wide, wherever its pixels lie; `check` is called between them."""
        # The widest first, so that no core ends long after the others.
        order = sorted(range(len(line_images)), key=lambda index: -line_images[index].width)
        paths = dict(zip(order, self._paths([line_images[index] for index in order], check), strict=True))
        return [self._as_text(paths[index], line_image) for index, line_image in enumerate(line_images)]

    def _as_text(self, path: Path, line_image: LineImage) -> LineText:
        gaps = measure_gaps(path, lambda: at_usual_height(line_image.pixels()))
        return LineText("".join(path.characters), path.confidence, path, gaps, direction=self._direction)

    def _paths(self, line_images: Sequence[LineImage], check: Check) -> list[Path]:
        return self._runner.map(self._best_path, line_images, check)

    def _best_path(self, line: RecognizerOutput) -> Path:
        return best_path(line.best, line.probabilities, self._characters)


@dataclass(frozen=True, slots=True)
class _SearchedLine:
    """One line before its beam search: the best path, the pruned steps, and the logarithm of each step's sum."""

    best: Path
    labels: NDArray[np.intp]
    steps: Steps
    norm: NDArray[np.float64]


class BeamRecognizer(Recognizer):
    """The same, decoded by prefix beam search; a line whose likeliest text is its best path is read as without it."""

    def _paths(self, line_images: Sequence[LineImage], check: Check) -> list[Path]:
        lines = self._runner.map(self._prepare, line_images, check, WITH_LOGITS)
        if not lines:
            return []
        found = beam_search(pad([line.steps for line in lines]), BEAM_WIDTH, check)
        return [self._choose(line, labels) for line, labels in zip(lines, found, strict=True)]

    def _prepare(self, line: RecognizerOutput) -> _SearchedLine:
        assert line.logits is not None, "they were asked for"
        path = self._best_path(line)
        steps = prune(line.logits[None])
        most = line.logits.max(axis=1)
        norm = np.log(np.exp(line.logits - most[:, None]).sum(axis=1, dtype=np.float64))
        return _SearchedLine(path, line.best[path.first], steps, norm)

    def _choose(self, line: _SearchedLine, labels: NDArray[np.intp]) -> Path:
        if np.array_equal(labels, line.labels) or not len(labels):
            none = np.zeros(0, np.intp)
            return line.best if len(labels) else Path([], none, none, line.best.steps, 0.0, np.zeros(0))
        # The score of each label at each step, -inf where it was pruned.
        same = line.steps.classes[0][:, :, None] == labels
        scores = np.where(same, line.steps.scores[0][:, :, None], -np.inf).max(axis=1)
        places = align(labels, scores, line.steps.blank[0])
        steps = [np.flatnonzero(places == place) for place in range(len(labels))]
        first, last = (np.array([of_one[end] for of_one in steps]) for end in (0, -1))
        # Scores are relative to the greatest of their step, as the norm is.
        probabilities = np.exp(scores[first, np.arange(len(labels))] - line.norm[first])
        characters = [self._characters[label] for label in labels]
        return Path(characters, first, last, len(places), float(probabilities.mean()), probabilities)


R = TypeVar("R", bound=LineReader)
R_co = TypeVar("R_co", bound=LineReader, covariant=True)

SURE: Final = 0.9  # confidence from which no other recognizer is asked
SPARSE_PX: Final = 144
"""Columns for each character, above which a line has few: three heights. A recognizer that does not know a script reads
little of it, and may be sure of that; of 2303 lines of the corpus none has so few."""

MOST_MORE: Final = 1.0  # columns of pixels that other recognizers may read, for each that was read already
ALWAYS_PX: Final = 5120  # columns that they may read on any page: sixteen lines of a usual length
SAMPLE_LINES: Final = 4  # unsure lines that are read before it is decided who reads the others first


def candidates(lang: str | None, languages: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Which recognizers may read a page: all for "auto"; the first for None, and for a language that none has."""
    if lang == AUTO:
        return tuple(range(len(languages)))
    return (with_language(lang, languages) if lang is not None else ()) or (0,)


@dataclass(frozen=True, slots=True)
class Script(Generic[R_co]):
    """One recognizer of a model."""

    readers: Mapping[Decoder, R_co]
    languages: tuple[str, ...] = ()
    direction: Direction = "ltr"


def open_page(scripts: Sequence[Script[R]], options: ReadOptions, open_reader: Callable[[R], PageReader]) -> PageReader:
    """A reader of one page with those of a model's recognizers, the usual one first, that the options want."""
    chosen = [scripts[number] for number in candidates(options.lang, [script.languages for script in scripts])]
    readers = [open_reader(script.readers[options.decoder]) for script in chosen]
    if len(readers) == 1:
        return readers[0]
    return SeveralRecognizers(readers, [script.direction for script in chosen], columns_first=options.lang != AUTO)


@dataclass(slots=True)
class _Attempt:
    """One line on its way."""

    outline: Outline
    width: int
    left: list[int]
    best: LineText | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether others should read it, and can."""
        return self.best is not None and self.confidence(self.best) < SURE and bool(self.left)

    def confidence(self, text: LineText) -> float:
        """Of a reading of this line, less where it has few characters: blanks say nothing, however sure."""
        visible = sum(not character.isspace() for character in text.text)
        return text.confidence * min(1.0, visible * SPARSE_PX / self.width)


@dataclass(slots=True)
class SeveralRecognizers:
    """A page.PageReader of one page with several recognizers."""

    readers: Sequence[PageReader]  # with each of them, the likeliest first; any of them finds the lines
    directions: Sequence[Direction]  # of the lines that each reads
    # lines that run down the page are read by recognizers of columns first, as where a language was asked for;
    # otherwise in the order of `readers`, because a page may lie on its side
    columns_first: bool = False
    _lines: int = 0
    _read_px: int = 0
    _more_px: int = 0
    _wins: dict[int, int] = field(default_factory=dict)

    @property
    def in_batches(self) -> bool:
        """As of the readers."""
        return self.readers[0].in_batches

    def find(self) -> list[Outline]:
        """See page.PageReader."""
        return self.readers[0].find()

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """See page.PageReader."""
        attempts = [_Attempt(outline, input_width(*extent(outline)), self._order(outline)) for outline in outlines]
        self._read_px += sum(attempt.width for attempt in attempts)
        self._lines += len(attempts)
        for number in range(len(self.readers)):
            self._read_with(number, [one for one in attempts if one.best is None and one.left[0] == number])
        unsure = [attempt for attempt in attempts if attempt.is_unsure]
        sample = 0 if any(self._wins.values()) else SAMPLE_LINES
        for group in (unsure[:sample], unsure[sample:]):
            self._read_unsure(group)
        self._read_with_leader(attempts)
        return [attempt.best for attempt in attempts if attempt.best is not None]

    def _order(self, outline: Outline) -> list[int]:
        """Which recognizers may read a line, in this order."""
        runs_down = heading(corners(outline)) in (90, 270)
        vertical = [number for number, direction in enumerate(self.directions) if direction == "vertical"]
        others = [number for number in range(len(self.readers)) if number not in vertical]
        if not runs_down:
            return others or vertical
        return vertical + others if self.columns_first else list(range(len(self.readers)))

    def _read_unsure(self, attempts: Sequence[_Attempt]) -> None:
        """Have the others read these, the one that read most lines of the page best first, while there is room."""
        for number in sorted(range(len(self.readers)), key=lambda number: -self._wins.get(number, 0)):
            self._read_too(number, [attempt for attempt in attempts if attempt.is_unsure])

    def _read_with_leader(self, attempts: Sequence[_Attempt]) -> None:
        """Have the recognizer of most lines read the others too: short words of two scripts look alike to the first."""
        leader = max(self._wins, key=lambda number: self._wins[number], default=0)
        if 2 * self._wins.get(leader, 0) > self._lines:
            self._read_too(leader, attempts)

    def _read_too(self, number: int, attempts: Sequence[_Attempt]) -> None:
        """Have one of the others read those lines that it has not read, while there is room."""
        asked = []
        for attempt in attempts:
            fits = self._more_px + attempt.width <= ALWAYS_PX + MOST_MORE * self._read_px
            if number in attempt.left and fits:
                self._more_px += attempt.width
                asked.append(attempt)
        self._wins[number] = self._wins.get(number, 0) + self._read_with(number, asked)

    def _read_with(self, number: int, attempts: Sequence[_Attempt]) -> int:
        """Read lines with one recognizer; returns how many it read better than those before it."""
        if not attempts:
            return 0
        better = 0
        texts = self.readers[number].read([attempt.outline for attempt in attempts])
        for attempt, text in zip(attempts, texts, strict=True):
            attempt.left.remove(number)
            if attempt.best is None:
                attempt.best = text
            elif attempt.confidence(text) > attempt.confidence(attempt.best):
                attempt.best = text
                better += 1
        return better
