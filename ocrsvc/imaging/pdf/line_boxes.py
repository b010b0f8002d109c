"""Boxes of a text layer's lines, words and characters, from the ink of the glyphs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, cast

import numpy as np

from ocrsvc.imaging.geometry import Quads, as_boxes, headings, upright_boxes
from ocrsvc.imaging.pdf.characters import Indices, Numbers, PageCharacters
from ocrsvc.imaging.pdf.lines import TextLine
from ocrsvc.imaging.word_split import Segmenter, by_character, open_jieba, word_begins
from ocrsvc.results import Box, Character, Line, ReadOptions, Word

CONFIDENCE: Final = 1.0

_MARGIN: Final = 0.06  # margin in ems between a line's ink and its box, above and below
_ASCENT, _DESCENT, _WIDTH = 0.75, 0.2, 0.55  # in ems, assumed for characters whose ink along their line is unknown
_CORNERS: Final = [0, 1, 2, 1, 2, 3, 0, 3]  # indices in (left, top, right, bottom) of x, y of corners, clockwise


@dataclass(frozen=True, slots=True)
class PlacedLines:
    """Lines and their boxes (L, 4, 2) in pixels of the drawn page, clockwise from where reading starts.

    For each of the lines' M characters, `turns` (M,) is the direction of its line in clockwise degrees, and `spans`
    (M, 4) is its left, top, right and bottom after turning the line level.
    """

    lines: Sequence[TextLine]
    quads: Quads
    spans: Numbers
    turns: Numbers


def place_lines(characters: PageCharacters, lines: Sequence[TextLine]) -> PlacedLines:
    """Compute the boxes of lines and of their characters."""
    if not lines:
        return PlacedLines([], np.zeros((0, 4, 2), np.float32), np.zeros((0, 4)), np.zeros(0))
    lengths = [len(line.members) for line in lines]
    turns = np.repeat(np.array([line.degrees for line in lines], np.float64), lengths)
    members = characters.of(np.concatenate([line.members for line in lines]))
    spans = _spans(members, turns)
    starts = np.array([0, *accumulate(lengths[:-1])])
    margin = _MARGIN * np.maximum.reduceat(members.em, starts)
    joined = _join(spans, starts) + np.stack([0 * margin, -margin, 0 * margin, margin], axis=1)
    return PlacedLines(lines, _quads(joined, turns[starts]), spans, turns)


def make_lines(placed: PlacedLines, chosen: Sequence[int], options: ReadOptions) -> tuple[Line, ...]:
    """Convert the chosen lines to results, in the given order, with words if requested."""
    boxes, lines = as_boxes(upright_boxes(placed.quads) if options.upright_boxes else placed.quads), placed.lines
    starts = [0, *accumulate(len(line.members) for line in lines)]
    segment = open_jieba() if options.words == "segmented" else by_character
    words = {at: _words_of(placed, options, segment, lines[at], starts[at]) for at in chosen if options.wants_words}
    return tuple(Line(lines[at].text, CONFIDENCE, boxes[at], words.get(at), "text_layer") for at in chosen)


def page_angle(lines: Sequence[TextLine], quads: Quads) -> int:
    """Clockwise degrees by which the page must be turned so that most of its text is upright."""
    if not lines:
        return 0
    counts = np.zeros(360, int)
    np.add.at(counts, headings(quads), [len(line.members) for line in lines])
    return int(-np.argmax(counts)) % 360


def _spans(characters: PageCharacters, turns: Numbers) -> Numbers:
    """Left, top, right and bottom of each character, (M, 4), turned so that its line is level."""
    across, down = _axes(turns)
    corners = characters.ink[:, _CORNERS].reshape(-1, 4, 2)
    x, y = np.einsum("mkj,mj->mk", corners, across), np.einsum("mkj,mj->mk", corners, down)
    spans = np.stack([x.min(axis=1), y.min(axis=1), x.max(axis=1), y.max(axis=1)], axis=1)
    em, origin = characters.em, characters.origin
    start, base = np.einsum("mj,mj->m", origin, across), np.einsum("mj,mj->m", origin, down)
    guessed = np.stack([start, base - _ASCENT * em, start + _WIDTH * em, base + _DESCENT * em], axis=1)
    unknown = (turns % 90 != 0) | (spans[:, 2:] <= spans[:, :2]).any(axis=1)
    return cast(Numbers, np.where(unknown[:, None], guessed, spans))


def _axes(turns: Numbers) -> tuple[Numbers, Numbers]:
    angle = np.radians(turns)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([cos, sin], axis=1), np.stack([-sin, cos], axis=1)


def _quads(spans: Numbers, turns: Numbers) -> Quads:
    """Rotate rectangles (left, top, right, bottom) by `turns` clockwise degrees; returns their corners, (N, 4, 2)."""
    across, down = _axes(turns)
    corners = spans[:, _CORNERS].reshape(-1, 4, 2)
    points = corners[..., :1] * across[:, None] + corners[..., 1:] * down[:, None]
    return points.astype(np.float32)


def _join(spans: Numbers, starts: Indices) -> Numbers:
    least, most = np.minimum.reduceat(spans, starts), np.maximum.reduceat(spans, starts)
    return np.concatenate([least[:, :2], most[:, 2:]], axis=1)


def _words_of(
    placed: PlacedLines, options: ReadOptions, segment: Segmenter, line: TextLine, start: int
) -> tuple[Word, ...]:
    """The words of a line; `start` is the index of its first character in `placed.spans`."""
    lengths = (len(text) + blank for text, blank in zip(line.texts, line.blanks, strict=True))
    offsets = list(accumulate(lengths, initial=0))
    begins = np.unique(np.searchsorted(offsets, word_begins(line.text, segment), side="right") - 1)
    own = slice(start, start + len(line.members))
    spans, turns = placed.spans[own], placed.turns[own]

    def boxes(spans: Numbers, turns: Numbers) -> list[Box]:
        quads = _quads(spans, turns)
        return as_boxes(upright_boxes(quads) if options.upright_boxes else quads)

    texts = zip(line.texts, boxes(spans, turns), strict=True) if options.characters else ()
    letters = tuple(Character(text, CONFIDENCE, box) for text, box in texts)
    word_boxes = boxes(_join(spans, begins), turns[begins])
    return tuple(
        Word("".join(line.texts[begin:end]), CONFIDENCE, box, letters[begin:end])
        for (begin, end), box in zip(pairwise([*begins.tolist(), len(line.texts)]), word_boxes, strict=True)
    )
