"""Reads the lines of a page with several recognizers, for several scripts: which one reads a line, and at what cost.

Each line is read by the first recognizer that it may be read by. Where that one is unsure, the others read it too until
one is sure, and the surest reading is kept. Those that read other lines of the page best are asked first, and one that
reads most of them best reads all; so a page of one script costs little more than two readings. Recognizers of columns
read only lines that run down the page.

What the others read is bounded by what the first ones have read; a page that these are sure of costs nothing more. All
this depends on the page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ocrsvc.engines.line_recognizer import LineReader, LineText
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.model.languages import AUTO, with_language
from ocrsvc.engines.ppocr.pipeline.page import PageReader
from ocrsvc.engines.ppocr.pipeline.recognizer import input_width
from ocrsvc.imaging.geometry import heading
from ocrsvc.imaging.outline import Outline, corners, extent
from ocrsvc.records import Decoder, ReadOptions

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
    readers = [ScriptReader(open_reader(script.readers[options.decoder]), script.direction) for script in chosen]
    return readers[0].reader if len(readers) == 1 else SeveralRecognizers(readers, columns_first=options.lang != AUTO)


@dataclass(frozen=True, slots=True)
class ScriptReader:
    """A reader of a page with one recognizer, and the direction of the lines that this one reads."""

    reader: PageReader
    direction: Direction


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

    scripts: Sequence[ScriptReader]  # with each of them, the likeliest first; any of them finds the lines
    # lines that run down the page are read by recognizers of columns first, as where a language was asked for;
    # otherwise in the order of `scripts`, because a page may lie on its side
    columns_first: bool = False
    _lines: int = 0
    _read_px: int = 0
    _more_px: int = 0
    _wins: dict[int, int] = field(default_factory=dict)

    @property
    def in_batches(self) -> bool:
        """As of the readers."""
        return self.scripts[0].reader.in_batches

    def find(self) -> list[Outline]:
        """See page.PageReader."""
        return self.scripts[0].reader.find()

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """See page.PageReader."""
        attempts = [_Attempt(outline, input_width(*extent(outline)), self._order(outline)) for outline in outlines]
        self._read_px += sum(attempt.width for attempt in attempts)
        self._lines += len(attempts)
        for number in range(len(self.scripts)):
            self._read_with(number, [one for one in attempts if one.best is None and one.left[0] == number])
        unsure = [attempt for attempt in attempts if attempt.is_unsure]
        sample = 0 if any(self._wins.values()) else SAMPLE_LINES
        for group in (unsure[:sample], unsure[sample:]):
            self._read_unsure(group)
        self._read_with_leader(attempts)
        return [attempt.best for attempt in attempts if attempt.best is not None]

    def _order(self, outline: Outline) -> list[int]:
        """Who may read a line, in this order."""
        runs_down = heading(corners(outline)) in (90, 270)
        vertical = [number for number, script in enumerate(self.scripts) if script.direction == "vertical"]
        others = [number for number in range(len(self.scripts)) if number not in vertical]
        if not runs_down:
            return others or vertical
        return vertical + others if self.columns_first else list(range(len(self.scripts)))

    def _read_unsure(self, attempts: Sequence[_Attempt]) -> None:
        """Have the others read these, the one that read most lines of the page best first, while there is room."""
        for number in sorted(range(len(self.scripts)), key=lambda number: -self._wins.get(number, 0)):
            self._read_too(number, [attempt for attempt in attempts if attempt.is_unsure])

    def _read_with_leader(self, attempts: Sequence[_Attempt]) -> None:
        """Have the recognizer that read most of the page best read the other lines too: there the first was sure.

        Short words of one script look like words of another, to the first one too.
        """
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
        texts = self.scripts[number].reader.read([attempt.outline for attempt in attempts])
        for attempt, text in zip(attempts, texts, strict=True):
            attempt.left.remove(number)
            if attempt.best is None:
                attempt.best = text
            elif attempt.confidence(text) > attempt.confidence(attempt.best):
                attempt.best = text
                better += 1
        return better
