"""Makes the words and characters of a line's answer: split by script, placed by the ink, mapped onto the page.

CTC gives the characters of a line from left to right, whatever the script. For text from right to left
`imaging.text_direction` undoes what Unicode's bidirectional algorithm (UAX #9) does to show it, with the same
results as the package PaddleOCR's. Packages that implement UAX #9 return a string; here each character has a place, so
the order itself is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.ppocr.pipeline.character_places import CharacterPlaces, Columns, place_characters
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX
from ocrsvc.imaging.geometry import as_boxes, upright_boxes
from ocrsvc.imaging.outline import Outline, parts_of
from ocrsvc.imaging.text_direction import logical_order
from ocrsvc.imaging.word_split import Segmenter, by_character, open_jieba, word_begins
from ocrsvc.records import Box, Character, Check, ReadOptions, Word


def in_logical_order(line: LineText) -> LineText:
    """A line of a recognizer that reads from right to left, in logical order; one without such letters as it is.

    The characters of its path follow, so their steps are not ascending any more.
    """
    path = line.path
    if path is None:
        return line
    order, characters = logical_order(path.characters)
    if order == list(range(len(order))):
        return line
    return replace(line, text="".join(characters), path=_rearranged(path, np.array(order), characters))


def by_steps(path: Path) -> Path:
    """The path of a line in logical order, its characters as they stand on the line from left to right."""
    order = np.argsort(path.first, kind="stable")
    return _rearranged(path, order, [path.characters[place] for place in order.tolist()])


def _rearranged(path: Path, order: NDArray[np.intp], characters: list[str]) -> Path:
    return Path(characters, path.first[order], path.last[order], path.steps, path.confidence, path.probabilities[order])


def by_path(path: Path, found: CharacterPlaces) -> CharacterPlaces:
    """The places of the characters of `by_steps(path)` as those of the path's characters, in their order."""
    logical = np.argsort(path.first, kind="stable")[found.places]
    order = np.argsort(logical)
    left, right, top, bottom = (sides[order] for sides in (found.left, found.right, found.top, found.bottom))
    return CharacterPlaces(logical[order], left, right, top, bottom, found.line_top, found.line_bottom)


OWN_ROWS: Final = 0.5  # how far a box's top and bottom move from those of the line's ink to those of its own ink
TOGETHER: Final = 32  # lines that are placed at once: of the longest, some megabytes and a few milliseconds
FULL_HEIGHT: Final = "\u2e80"
"""The first character of Unicode's scripts whose characters fill their line's height: Chinese, kana and Hangul."""


def words_of(
    lines: Sequence[tuple[LineText, Outline]], options: ReadOptions, check: Check
) -> list[tuple[Word, ...] | None]:
    """The words of each line, as the options ask for them; None where they do not, or the recognizer cannot tell.

    Outlines are in the direction of reading.
    """
    answers: list[tuple[Word, ...] | None] = [None] * len(lines)
    known = [
        (number, line.path, line.ink)
        for number, (line, _) in enumerate(lines)
        if options.wants_words and line.path is not None and line.ink is not None
    ]
    for begin in range(0, len(known), TOGETHER):
        check()
        some = known[begin : begin + TOGETHER]
        found = _place([(lines[number][0], path, ink) for number, path, ink in some])
        for (number, path, _), places in zip(some, found, strict=True):
            answers[number] = () if places is None else _words_of(path, places, lines[number][1], options)
    return answers


def _place(lines: Sequence[tuple[LineText, Path, Columns]]) -> list[CharacterPlaces | None]:
    """Where the characters of each line stand, in the order of its path."""
    turned = [line.direction == "rtl" for line, _, _ in lines]
    steps = zip(lines, turned, strict=True)
    found = place_characters([(by_steps(path) if turn else path, ink) for (_, path, ink), turn in steps], HEIGHT_PX)
    return [
        by_path(path, places) if turn and places is not None else places
        for (_, path, _), places, turn in zip(lines, found, turned, strict=True)
    ]


def _words_of(path: Path, places: CharacterPlaces, outline: Outline, options: ReadOptions) -> tuple[Word, ...]:
    """The words of one line."""
    texts = [path.characters[place] for place in places.places]
    parts = _parts(texts, places)
    confidences = np.clip(path.probabilities[places.places], 0.0, 1.0)
    characters: tuple[Character, ...] = ()
    if options.characters:
        characters = tuple(map(Character, texts, confidences.tolist(), _boxes(parts, outline, options)))
    begins = _begins(path, places, open_jieba() if options.words == "segmented" else by_character)
    spans = list(pairwise([*begins.tolist(), len(texts)]))
    means = np.add.reduceat(confidences, begins) / [end - begin for begin, end in spans]
    boxes = _boxes(_join(parts, begins), outline, options)
    return tuple(
        Word("".join(texts[begin:end]), mean, box, characters[begin:end])
        for (begin, end), mean, box in zip(spans, means.tolist(), boxes, strict=True)
    )


def _parts(texts: Sequence[str], places: CharacterPlaces) -> NDArray[np.float64]:
    """(N, 4) left, top, right and bottom of each character's box, as shares of the crop."""
    own = np.array([0.0 if text >= FULL_HEIGHT else OWN_ROWS for text in texts])
    top = places.line_top + own * (places.top - places.line_top)
    bottom = places.line_bottom + own * (places.bottom - places.line_bottom)
    return np.stack([places.left, top, places.right, bottom], axis=1)


def _join(parts: NDArray[np.float64], begins: NDArray[np.intp]) -> NDArray[np.float64]:
    """(W, 4) the same of the runs of characters that begin at these."""
    least, most = np.minimum.reduceat(parts, begins), np.maximum.reduceat(parts, begins)
    return np.concatenate([least[:, :2], most[:, 2:]], axis=1)


def _begins(path: Path, places: CharacterPlaces, segment: Segmenter) -> NDArray[np.intp]:
    """(W,) with which of the places each word begins."""
    text = "".join(path.characters)
    begins = word_begins(text, segment)
    if len(text) == len(path.characters):
        return np.searchsorted(places.places, begins)
    # Some characters are more than one code point long.
    offsets = np.array([0, *accumulate(map(len, path.characters))])[places.places]
    return np.unique(np.searchsorted(offsets, begins, side="right") - 1)


def _boxes(parts: NDArray[np.float64], outline: Outline, options: ReadOptions) -> list[Box]:
    """Where parts of the line's crop stand on the page."""
    quads = parts_of(outline, parts)
    return as_boxes(upright_boxes(quads) if options.upright_boxes else quads)
