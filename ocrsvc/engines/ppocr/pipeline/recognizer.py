"""Recognizes lines: straightened crops to text, with one PP-OCR recognizer, or with several for several scripts.

If there are several, the first suitable recognizer reads each line. If it is unsure, the others read the line too until
one is sure, and the surest result is kept. Recognizers that won on other lines of the page are tried first, and one
that wins on most lines reads all of them; so a page of one script costs little more than two readings. Recognizers for
columns read only vertical lines. The work of the other recognizers is limited in proportion to that of the first; a
page of which the first is sure costs nothing more. The result depends on the page alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineReader, LineText, Path
from ocrsvc.engines.model.description import AUTO, Direction, with_language
from ocrsvc.engines.ppocr.pipeline.ctc import Ints, Steps, align, beam_search, best_path, pad, prune
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, at_usual_height, level_ground
from ocrsvc.engines.ppocr.pipeline.page import PageReader
from ocrsvc.engines.ppocr.pipeline.recognition_batches import WITH_LOGITS, LineImage, LineRunner, RecognizerOutput
from ocrsvc.engines.ppocr.pipeline.spaces import measure_gaps
from ocrsvc.imaging.geometry import headings
from ocrsvc.imaging.text_contour import Outline, corners, extent
from ocrsvc.results import Check, Decoder, Pixels, ReadOptions, no_check

# Widths of crops; a line is stretched to the next one. There are few, because OpenVINO compiles and keeps kernels for
# each, about 6 MB. On the corpus, crops have 7 % more pixel columns than with widths in steps of 16 px.
WIDTHS_PX: Final = (
    *(48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1920, 2400, 3200),
)
SQUEEZE: Final = 0.85  # horizontal scale: costs less, and reads equally well except for thin strokes
SQUEEZE_OF_SMALL_TEXT: Final = 0.8  # the same for lines up to SMALL_TEXT_PX, whose crops are enlarged and lose nothing
SMALL_TEXT_PX: Final = 24
BEAM_WIDTH: Final = 10


def input_width(length: float, across: float, height: int = HEIGHT_PX) -> int:
    """The width of the network's input, one of WIDTHS_PX, for a line with this length and height on the page."""
    squeeze = SQUEEZE if across > SMALL_TEXT_PX else SQUEEZE_OF_SMALL_TEXT
    width = length * height / max(across, 1.0) * squeeze
    return next((allowed for allowed in WIDTHS_PX if allowed >= width), WIDTHS_PX[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Recognizer:
    """Reads line crops of one height with a line runner, and decodes the best path."""

    _runner: LineRunner
    _characters: Sequence[str]
    _direction: Direction = "ltr"
    height_px: int = HEIGHT_PX

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of a line's crop; see engines.line_recognizer.LineReader."""
        return input_width(along, across, self.height_px), self.height_px

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read (height_px, w[, 3]) uint8 crops that have the `crop_size`; see LineReader."""
        return self.read_line_images([LineImage(level_ground(crop)) for crop in crops], check)

    def read_line_images(self, line_images: Sequence[LineImage], check: Check = no_check) -> list[LineText]:
        """Read line images of the width that `crop_size` gives, in memory or on a GPU; calls `check` between lines."""
        # Start with the widest lines, so that all cores finish at about the same time.
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


class BeamRecognizer(Recognizer):
    """A Recognizer with prefix beam search; if that finds the same text as the best path, the best path is kept."""

    def _paths(self, line_images: Sequence[LineImage], check: Check) -> list[Path]:
        lines = self._runner.map(self._prepare, line_images, check, WITH_LOGITS)
        if not lines:
            return []
        found = beam_search(pad([steps for _, _, steps, _ in lines]), BEAM_WIDTH, check)
        return [self._choose(*line, labels) for line, labels in zip(lines, found, strict=True)]

    def _prepare(self, line: RecognizerOutput) -> tuple[Path, Ints, Steps, NDArray[np.float64]]:
        """One line's data for `_choose`: best path, its labels, pruned steps, logarithms of softmax denominators."""
        assert line.logits is not None, "the logits were requested"
        path = self._best_path(line)
        steps = prune(line.logits[None])
        greatest = line.logits.max(axis=1)
        norm = np.log(np.exp(line.logits - greatest[:, None]).sum(axis=1, dtype=np.float64))
        return path, line.best[path.first], steps, norm

    def _choose(self, best: Path, own: Ints, steps: Steps, norm: NDArray[np.float64], labels: Ints) -> Path:
        if np.array_equal(labels, own) or not len(labels):
            none = np.zeros(0, np.intp)
            return best if len(labels) else Path([], none, none, best.steps, 0.0, np.zeros(0))
        # The score of each label at each step; -inf if the label was pruned there.
        same = steps.classes[0][:, :, None] == labels
        scores = np.where(same, steps.scores[0][:, :, None], -np.inf).max(axis=1)
        places = align(labels, scores, steps.blank[0])
        steps_of = [np.flatnonzero(places == place) for place in range(len(labels))]
        first, last = (np.array([label_steps[end] for label_steps in steps_of]) for end in (0, -1))
        # Logits (`scores`) and logarithms of softmax denominators (`norm`), both minus their step's greatest logit.
        probabilities = np.exp(scores[first, np.arange(len(labels))] - norm[first])
        characters = [self._characters[label] for label in labels]
        return Path(characters, first, last, len(places), float(probabilities.mean()), probabilities)


R = TypeVar("R", bound=LineReader)
R_co = TypeVar("R_co", bound=LineReader, covariant=True)

SURE: Final = 0.9  # if the confidence reaches this, no other recognizer reads the line
# A line wider than this per character (three line heights) has too few characters. In a script that it does not know, a
# recognizer reads only a few characters, but may be sure of them. None of the corpus's 2303 lines has so few.
SPARSE_PX: Final = 144
MAX_EXTRA_SHARE: Final = 1.0  # pixel columns that the other recognizers may read, per column that the first one reads
MIN_EXTRA_PX: Final = 5120  # pixel columns that the other recognizers may read on any page: 16 lines of usual length
SAMPLE_LINES: Final = 4  # unsure lines that decide which recognizer reads the other unsure lines first


def candidates(lang: str | None, languages: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Indices of the recognizers for a page: all for "auto"; the first for None or an unsupported language."""
    if lang == AUTO:
        return tuple(range(len(languages)))
    return (with_language(lang, languages) if lang is not None else ()) or (0,)


@dataclass(frozen=True, slots=True)
class Script(Generic[R_co]):
    """One of a model's recognizers, for the languages of one script."""

    readers: Mapping[Decoder, R_co]
    languages: tuple[str, ...] = ()
    direction: Direction = "ltr"
    careful: R_co | None = None  # reads with tier=small and spaces=model if readers["greedy"] is a cascade, else None

    def reader(self, options: ReadOptions) -> R_co:
        """The reader that the options select."""
        wants_careful = options.tier == "small" or options.spaces == "model"
        if self.careful is not None and wants_careful and options.decoder == "greedy":
            return self.careful
        return self.readers[options.decoder]


def open_page(scripts: Sequence[Script[R]], options: ReadOptions, open_reader: Callable[[R], PageReader]) -> PageReader:
    """Open a reader of one page with the recognizers that the options select, the default one first."""
    chosen = [scripts[number] for number in candidates(options.lang, [script.languages for script in scripts])]
    readers = [open_reader(script.reader(options)) for script in chosen]
    if len(readers) == 1:
        return readers[0]
    return SeveralRecognizers(readers, [script.direction for script in chosen], columns_first=options.lang != AUTO)


@dataclass(slots=True)
class _Attempt:
    """One line: the recognizers that have not read it yet, and the best result so far."""

    outline: Outline
    width: int
    left: list[int]
    best: LineText | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether the result is unsure and another recognizer can still read the line."""
        return self.best is not None and self.confidence(self.best) < SURE and bool(self.left)

    def confidence(self, text: LineText) -> float:
        """A result's confidence for this line, reduced if it has too few characters for the line's width."""
        visible = sum(not character.isspace() for character in text.text)
        return text.confidence * min(1.0, visible * SPARSE_PX / self.width)


@dataclass(slots=True)
class SeveralRecognizers:
    """A page.PageReader that reads with several recognizers."""

    readers: Sequence[PageReader]  # one per recognizer, the likeliest first; each of them can detect lines
    directions: Sequence[Direction]  # writing direction of each recognizer
    # whether vertical lines go to recognizers of vertical scripts first; False for lang=auto, where vertical lines may
    # also mean a page that lies on its side
    columns_first: bool = False
    _lines: int = 0
    _read_px: int = 0
    _more_px: int = 0  # pixel columns read by any recognizer but the first of each line
    _wins: dict[int, int] = field(default_factory=dict)

    @property
    def in_batches(self) -> bool:
        """Whether the readers read many lines in one run."""
        return self.readers[0].in_batches

    def find(self) -> list[Outline]:
        """Detect the page's lines; see page.PageReader."""
        return self.readers[0].find()

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """Recognize the page's lines; see page.PageReader."""
        attempts = [_Attempt(outline, input_width(*extent(outline)), self._order(outline)) for outline in outlines]
        self._read_px += sum(attempt.width for attempt in attempts)
        self._lines += len(attempts)
        for number in range(len(self.readers)):
            self._read_with(number, [line for line in attempts if line.best is None and line.left[0] == number])
        unsure = [attempt for attempt in attempts if attempt.is_unsure]
        sample = 0 if any(self._wins.values()) else SAMPLE_LINES
        for group in (unsure[:sample], unsure[sample:]):
            # Try the recognizer first that has given the best result for most lines of the page.
            for number in sorted(range(len(self.readers)), key=lambda number: -self._wins.get(number, 0)):
                self._read_too(number, [attempt for attempt in group if attempt.is_unsure])
        # Short words of two scripts look alike, so a recognizer that won on most lines reads all.
        leader = max(self._wins, key=lambda number: self._wins[number], default=0)
        if 2 * self._wins.get(leader, 0) > self._lines:
            self._read_too(leader, attempts)
        return [attempt.best for attempt in attempts if attempt.best is not None]

    def _order(self, outline: Outline) -> list[int]:
        runs_down = headings(corners(outline)) in (90, 270)
        vertical = [number for number, direction in enumerate(self.directions) if direction == "vertical"]
        others = [number for number in range(len(self.readers)) if number not in vertical]
        if not runs_down:
            return others or vertical
        return vertical + others if self.columns_first else list(range(len(self.readers)))

    def _read_too(self, number: int, attempts: Sequence[_Attempt]) -> None:
        chosen = []
        for attempt in attempts:
            fits = self._more_px + attempt.width <= MIN_EXTRA_PX + MAX_EXTRA_SHARE * self._read_px
            if number in attempt.left and fits:
                self._more_px += attempt.width
                chosen.append(attempt)
        self._wins[number] = self._wins.get(number, 0) + self._read_with(number, chosen)

    def _read_with(self, number: int, attempts: Sequence[_Attempt]) -> int:
        """Read lines with one recognizer; returns how many it read better than earlier recognizers."""
        if not attempts:
            return 0
        better = 0
        texts = self.readers[number].read([attempt.outline for attempt in attempts])
        for attempt, text in zip(attempts, texts, strict=True):
            attempt.left.remove(number)
            if attempt.best is None or attempt.confidence(text) > attempt.confidence(attempt.best):
                better += attempt.best is not None
                attempt.best = text
        return better
