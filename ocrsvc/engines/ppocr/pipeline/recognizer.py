"""Recognizes lines: straightened crops to text, with one PP-OCR recognizer or several for several scripts.

With several, the first suitable recognizer reads each line. If it is unsure, the others read the line too until one is
sure, and the surest result is kept. Recognizers that read other lines of the page best come first, and one that reads
most lines best reads all; so a page of one script costs little more than two readings. Recognizers of columns read only
vertical lines. The work of the others is limited in proportion to that of the first; a page that the first one is sure
of costs nothing more. The result depends on the page alone.
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

# Widths to which lines are stretched, each to the next wider one. Few, because OpenVINO compiles kernels for each and
# keeps them, about 6 MB; over the corpus these give 7 % more columns than steps of 16 px.
WIDTHS_PX: Final = (
    *(48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1920, 2400, 3200),
)
SQUEEZE: Final = 0.85  # horizontal scale: reads as well and costs less, except with thin strokes
SMALL_TEXT_PX: Final = 24  # box height up to which a line is not squeezed
BEAM_WIDTH: Final = 10


def input_width(length: float, across: float, height: int = HEIGHT_PX) -> int:
    """Input width in pixels for a line of this length and height."""
    squeeze = SQUEEZE if across > SMALL_TEXT_PX else 1.0
    width = length * height / max(across, 1.0) * squeeze
    return next((allowed for allowed in WIDTHS_PX if allowed >= width), WIDTHS_PX[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Recognizer:
    """Reads line crops of one height with a line runner, and decodes by best path."""

    _runner: LineRunner
    _characters: Sequence[str]
    _direction: Direction = "ltr"
    height_px: int = HEIGHT_PX

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """See engines.line_recognizer.LineReader."""
        return input_width(along, across, self.height_px), self.height_px

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read crops (height_px, w[, 3]) uint8 of `crop_size`; see LineReader."""
        return self.read_line_images([LineImage(level_ground(crop)) for crop in crops], check)

    def read_line_images(self, line_images: Sequence[LineImage], check: Check = no_check) -> list[LineText]:
        """Read lines that are `crop_size` wide, in memory or on a GPU; calls `check` between them."""
        # The widest first, so that all cores end at about the same time.
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
    """A Recognizer that decodes by prefix beam search; if that finds the best path's text, it keeps the best path."""

    def _paths(self, line_images: Sequence[LineImage], check: Check) -> list[Path]:
        lines = self._runner.map(self._prepare, line_images, check, WITH_LOGITS)
        if not lines:
            return []
        found = beam_search(pad([steps for _, _, steps, _ in lines]), BEAM_WIDTH, check)
        return [self._choose(*line, labels) for line, labels in zip(lines, found, strict=True)]

    def _prepare(self, line: RecognizerOutput) -> tuple[Path, Ints, Steps, NDArray[np.float64]]:
        """The best path, its labels, pruned steps, and the log of each step's softmax sum."""
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
        # The score of each label at each step, -inf if pruned.
        same = steps.classes[0][:, :, None] == labels
        scores = np.where(same, steps.scores[0][:, :, None], -np.inf).max(axis=1)
        places = align(labels, scores, steps.blank[0])
        steps_of = [np.flatnonzero(places == place) for place in range(len(labels))]
        first, last = (np.array([label_steps[end] for label_steps in steps_of]) for end in (0, -1))
        # Scores and norm are both relative to the greatest logit of their step.
        probabilities = np.exp(scores[first, np.arange(len(labels))] - norm[first])
        characters = [self._characters[label] for label in labels]
        return Path(characters, first, last, len(places), float(probabilities.mean()), probabilities)


R = TypeVar("R", bound=LineReader)
R_co = TypeVar("R_co", bound=LineReader, covariant=True)

SURE: Final = 0.9  # confidence from which no other recognizer reads the line
# Width per character above which a line has too few of them: three line heights. A recognizer reads little of a script
# that it does not know, and may be sure of that; of 2303 corpus lines none is so sparse.
SPARSE_PX: Final = 144
MAX_EXTRA_SHARE: Final = 1.0  # pixel columns that other recognizers may read per column read by the first
MIN_EXTRA_PX: Final = 5120  # pixel columns that they may read on any page: sixteen lines of usual length
SAMPLE_LINES: Final = 4  # unsure lines that decide which recognizer reads the other unsure lines first


def candidates(lang: str | None, languages: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Indices of the recognizers for a page: all for "auto"; the first for None or an unsupported language."""
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
    """A reader of one page with the recognizers that the options select, the default one first."""
    chosen = [scripts[number] for number in candidates(options.lang, [script.languages for script in scripts])]
    readers = [open_reader(script.readers[options.decoder]) for script in chosen]
    if len(readers) == 1:
        return readers[0]
    return SeveralRecognizers(readers, [script.direction for script in chosen], columns_first=options.lang != AUTO)


@dataclass(slots=True)
class _Attempt:
    """One line, the recognizers that have not read it yet, and the best result so far."""

    outline: Outline
    width: int
    left: list[int]
    best: LineText | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether another recognizer should and can read the line."""
        return self.best is not None and self.confidence(self.best) < SURE and bool(self.left)

    def confidence(self, text: LineText) -> float:
        """The confidence of a result for this line, reduced if it has few characters for the line's width."""
        visible = sum(not character.isspace() for character in text.text)
        return text.confidence * min(1.0, visible * SPARSE_PX / self.width)


@dataclass(slots=True)
class SeveralRecognizers:
    """A page.PageReader with several recognizers."""

    readers: Sequence[PageReader]  # one per recognizer, the likeliest first; each of them can detect the lines
    directions: Sequence[Direction]  # text direction of each recognizer
    # whether recognizers of columns read vertical lines first, as for a given language; otherwise the order is that of
    # `readers`, because the page may lie on its side
    columns_first: bool = False
    _lines: int = 0
    _read_px: int = 0
    _more_px: int = 0  # read by other recognizers than a line's first
    _wins: dict[int, int] = field(default_factory=dict)

    @property
    def in_batches(self) -> bool:
        """As in the readers."""
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
            self._read_with(number, [line for line in attempts if line.best is None and line.left[0] == number])
        unsure = [attempt for attempt in attempts if attempt.is_unsure]
        sample = 0 if any(self._wins.values()) else SAMPLE_LINES
        for group in (unsure[:sample], unsure[sample:]):
            # The recognizer that won most lines of the page first.
            for number in sorted(range(len(self.readers)), key=lambda number: -self._wins.get(number, 0)):
                self._read_too(number, [attempt for attempt in group if attempt.is_unsure])
        # Short words of two scripts look alike, so one that won most lines reads all.
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
        """Read lines with one recognizer; returns how many it read better than the earlier ones."""
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
