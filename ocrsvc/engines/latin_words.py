"""Reads the Latin words on pages whose recognizer knows another script only.

Such a recognizer is unsure of Latin words. They are read again by ppocr's recognizer, whose text is kept if it is sure
and reads only Latin letters: first lines of mostly doubtful words, then runs of doubtful words, then single words of
these runs. The total length that is read again is at most the length of all lines.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, path_at
from ocrsvc.engines.ppocr.pipeline.page import PageReader
from ocrsvc.imaging.text_contour import Outline, extent, parts_of

# ppocr reads words with a character below this confidence again; its text is used if the mean confidence reaches this.
SURE: Final = 0.9
# A text is used only if its image is at most this many line heights long per character, plus one. In a longer image
# ppocr's recognizer has skipped unknown characters, although it may be sure of the others.
MAX_PITCH: Final = 0.7
_LATIN: Final = "LATIN "  # how Unicode's names of Latin letters begin
_Span = tuple[int, int]  # indices of a word's first character, and of the one after its last


@dataclass(frozen=True, slots=True)
class LatinWords:
    """A PageReader that reads with `first`, and doubtful words with `latin`; see engines/ppocr/pipeline/page.py."""

    first: PageReader
    latin: PageReader

    @property
    def in_batches(self) -> bool:
        """See PageReader."""
        return self.first.in_batches

    def find(self) -> list[Outline]:
        """See PageReader."""
        return self.first.find()

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """See PageReader."""
        texts = self.first.read(outlines)
        left = sum(map(_length, outlines))
        for choose in (_doubtful_lines, _doubtful_runs, _words_of_runs):
            runs = [(number, run) for number, text in enumerate(texts) for run in choose(text)]
            left -= self._read_again(texts, outlines, runs, left)
        return texts

    def _read_again(
        self, texts: list[LineText], outlines: Sequence[Outline], runs: Sequence[tuple[int, _Span]], most: float
    ) -> float:
        """Read runs of characters again, and replace those in `texts` that turn out to be Latin.

        `runs` has pairs of a line's index and a span, ascending within a line. Reads the first runs with a total length
        of at most `most` line heights; returns the total length that was read.
        """
        sides = [_sides(texts[number], run) for number, run in runs]
        parts = [
            parts_of(outlines[number], np.array([[left, 0.0, right, 1.0]]))[0]
            for (number, _), (left, right) in zip(runs, sides, strict=True)
        ]
        lengths = np.cumsum([_length(part) for part in parts])
        count = int(np.searchsorted(lengths, most, side="right"))
        runs, sides, parts = runs[:count], sides[:count], parts[:count]
        # Replace the last run first, so that the indices of earlier runs stay valid.
        found = zip(runs, sides, parts, self.latin.read(parts), strict=True)
        for (number, run), place, part, read in reversed(list(found)):
            if read.path is not None and read.confidence >= SURE and _is_latin(read.text, extent(part)):
                texts[number] = _replaced(texts[number], run, read, place)
        return float(lengths[count - 1]) if count else 0.0


def _length(outline: Outline) -> float:
    """Length of a line in line heights; the time to read a line is proportional to it."""
    along, across = extent(outline)
    return along / max(across, 1.0)


def _doubtful_lines(text: LineText) -> list[_Span]:
    """The whole line as one run, if at least half of its characters are in doubtful words; otherwise nothing."""
    runs, characters = list(_doubtful_runs(text)), text.path.characters if text.path is not None else []
    doubtful = sum(end - begin for begin, end in runs)
    return [(0, len(characters))] if 2 * doubtful >= len(characters) > 0 else []


def _doubtful_runs(text: LineText) -> list[_Span]:
    """The runs of neighbouring words that each have a doubtful character."""
    return [(run[0][0], run[-1][1]) for run in _runs(text)]


def _words_of_runs(text: LineText) -> list[_Span]:
    """The individual words of each doubtful run that has more than one word."""
    return [word for run in _runs(text) if len(run) > 1 for word in run]


def _runs(text: LineText) -> Iterator[list[_Span]]:
    if text.path is None:
        return
    words = list(_words(text.path.characters))
    unsure = [bool((text.path.probabilities[begin:end] < SURE).any()) for begin, end in words]
    for is_unsure, run in groupby(zip(unsure, words, strict=True), key=lambda pair: pair[0]):
        if is_unsure:
            yield [word for _, word in run]


def _words(characters: Sequence[str]) -> Iterator[_Span]:
    for is_space, places in groupby(range(len(characters)), key=lambda place: characters[place].isspace()):
        if not is_space:
            first, *others = places
            yield first, (others or [first])[-1] + 1


def _middles(text: LineText) -> NDArray[np.float64]:
    """The horizontal middle of each character, as a share of the crop's width."""
    path = text.path
    assert path is not None, "only lines with a path have doubtful words"
    return (path.first + path.last + 1.0) / 2 / path.steps


def _sides(text: LineText, run: _Span) -> tuple[float, float]:
    """Left and right side of a run, as shares of the crop's width: half way to the next characters."""
    (begin, end), middles, path = run, _middles(text), text.path
    assert path is not None, "only lines with a path have doubtful words"
    own = middles[begin:end]
    kept = [place for place in (*range(begin), *range(end, len(middles))) if not path.characters[place].isspace()]
    left, right = own.min(), own.max()
    before, after = middles[kept][middles[kept] < left], middles[kept][middles[kept] > right]
    return (
        float((left + before.max()) / 2) if len(before) else 0.0,
        float((right + after.min()) / 2) if len(after) else 1.0,
    )


def _is_latin(text: str, size: tuple[float, float]) -> bool:
    """Whether a text has Latin letters only, and as many characters as its length and height on the page suggest."""
    letters, (along, across) = [letter for letter in text if letter.isalpha()], size
    is_dense = along <= across * (MAX_PITCH * len("".join(text.split())) + 1)
    return is_dense and bool(letters) and all(unicodedata.name(letter, "").startswith(_LATIN) for letter in letters)


def _replaced(text: LineText, run: _Span, read: LineText, sides: tuple[float, float]) -> LineText:
    """Replace the characters of `run` by the text `read`, which lies between `sides`, in shares of the crop's width."""
    path, other = text.path, read.path
    assert path is not None, "only lines with a path have doubtful words"
    assert other is not None, "such a word is refused"
    begin, end = run
    left, right = sides
    middles = _middles(text)
    characters = [*path.characters[:begin], *other.characters, *path.characters[end:]]
    placed = [*middles[:begin], *(left + (right - left) * _middles(read)), *middles[end:]]
    probabilities = [*path.probabilities[:begin], *other.probabilities, *path.probabilities[end:]]
    merged = path_at(characters, placed, probabilities, path.steps)
    return replace(text, text="".join(characters), confidence=float(np.mean(probabilities)), path=merged)
