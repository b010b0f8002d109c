"""Recognizes lines: straightened crops to text with the PP-OCR recognizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.ppocr.pipeline.ctc import Steps, align, beam_search, best_path, pad, prune
from ocrsvc.engines.ppocr.pipeline.line_ground import level_ground
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX, at_usual_height
from ocrsvc.engines.ppocr.pipeline.recognition_batches import WITH_LOGITS, LineImage, LineRunner, RecognizerOutput
from ocrsvc.engines.ppocr.pipeline.spaces import measure_gaps
from ocrsvc.records import Check, Pixels, no_check

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
    """Network input width in pixels for a line of that length and height; depends on the line alone.

    `height` is that of the network's input.
    """
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
        scores = _scores_of(labels, line.steps)
        places = align(labels, scores, line.steps.blank[0])
        first = np.array([np.flatnonzero(places == place)[0] for place in range(len(labels))])
        last = np.array([np.flatnonzero(places == place)[-1] for place in range(len(labels))])
        # Scores are relative to the greatest of their step, as the norm is.
        probabilities = np.exp(scores[first, np.arange(len(labels))] - line.norm[first])
        characters = [self._characters[label] for label in labels]
        return Path(characters, first, last, len(places), float(probabilities.mean()), probabilities)


def _scores_of(labels: NDArray[np.intp], steps: Steps) -> NDArray[np.float64]:
    """(T, L) the score of each label at each step, -inf where it was pruned."""
    same = steps.classes[0][:, :, None] == labels
    scores: NDArray[np.float64] = np.where(same, steps.scores[0][:, :, None], -np.inf).max(axis=1)
    return scores
