"""Makes the words and characters of a line's answer: placed by the ink, split by script, mapped onto the page.

The steps of a line's path say about where its characters stand, the ink says exactly. Between the middles of two
characters that follow each other the crop is cut once: in the middle of the widest gap in the ink where a space was
read, and otherwise at a gap near the midpoint; where the ink has no gap, at its thinnest column. A character is the ink
between two cuts. A line costs a time linear in its pixels. A column of pixels is one number here, whose bits are its
rows; so the rows of any run of columns are their bitwise or. Lines are laid side by side, with a column full of ink
after each, and worked on together.

CTC gives the characters of a line from left to right, whatever the script. For text from right to left
`imaging.text_direction` undoes what Unicode's bidirectional algorithm (UAX #9) does to show it, with the same
results as the package PaddleOCR's. Packages that implement UAX #9 return a string; here each character has a place, so
the order itself is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineText, Path
from ocrsvc.engines.ppocr.pipeline.network_input import HEIGHT_PX
from ocrsvc.imaging.geometry import as_boxes, upright_boxes
from ocrsvc.imaging.outline import Outline, parts_of
from ocrsvc.imaging.text_direction import logical_order
from ocrsvc.imaging.word_split import Segmenter, by_character, open_jieba, word_begins
from ocrsvc.results import Box, Character, Check, Pixels, ReadOptions, Word

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]
Columns = NDArray[np.uint64]  # (w,) the ink of each column: the bit 1 << row is set where that row has some
INKED: Final = 0.4
"""Of the line's strongest contrast with its ground, from which a pixel is ink: half, less what smoothing takes away."""

STRONG: Final = 0.98  # the share of pixels with less contrast than the strongest; fewer than the others are specks
EDGE: Final = 0.2
"""Share of the crop's height at its top and at its bottom that may hold ink of the lines above and below."""

FAR_FROM_MIDPOINT: Final = 0.5
"""What a column of distance from the midpoint between two characters costs, in columns of distance from ink."""

LATE: Final = 0.2
"""Steps by which the model reports a character behind its middle: on the pages of benchmarks/words.py 0.16 for Chinese
characters, 0.21 for Latin letters and 0.29 for marks, with one in ten more than half a step away from that."""

CLEAR: Final = 4
"""Columns from ink that are as good as any more, where no space was read: a wider gap may be beside a narrow mark."""

EDGE_INK: Final = np.array([(1 << 64) - 1], np.uint64)  # the column after each line
HALF_CHARACTER: Final = 0.75
"""Of the crop's height, how far the first and the last character of a line reach out from their middles at most."""


@dataclass(frozen=True, slots=True, eq=False)
class CharacterPlaces:
    """Where the ink of a line's characters stands, as shares of the crop's width and height."""

    places: Ints  # (N,) which of the path's characters these are: all but the spaces
    left: Floats  # (N,) where each begins and ends, along the line
    right: Floats
    top: Floats  # (N,) where each begins and ends, across it
    bottom: Floats
    line_top: float  # where the line's ink begins and ends, across it
    line_bottom: float


def place_characters(lines: Sequence[tuple[Path, Columns]], height: int) -> list[CharacterPlaces | None]:
    """The places of all characters that are not spaces; None for a line without any. Crops are at most 63 px high.

    `lines` are what was read of each crop, and its ink; some dozens at a time, which bounds the memory.
    """
    kept = [np.flatnonzero([not character.isspace() for character in path.characters]) for path, _ in lines]
    full = [(path, ink, places) for (path, ink), places in zip(lines, kept, strict=True) if len(places)]
    found = _place(full, height) if full else iter(())
    return [next(found) if len(places) else None for places in kept]


def ink_columns(crop: Pixels) -> Columns:
    """The pixels of a line's crop, (h <= 64, w[, 3]) uint8, that differ from its ground, the shade of most of it."""
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY) if crop.ndim == 3 else crop
    # Every third row shows the shades.
    counts = cv2.calcHist([gray[::3]], [0], None, [256], [0, 256]).ravel()
    ground = int(np.searchsorted(counts.cumsum(), counts.sum() / 2))
    contrast = np.abs(np.arange(256) - ground)
    strongest = np.searchsorted(np.bincount(contrast, counts).cumsum(), counts.sum() * STRONG)
    inked = np.asarray(cv2.LUT(gray, (contrast > INKED * strongest).astype(np.uint8)), np.uint8)
    packed = np.zeros((crop.shape[1], 8), np.uint8)
    packed[:, : -(-len(gray) // 8)] = np.packbits(inked, axis=0, bitorder="little").T
    return packed.view("<u8").ravel()


def _place(lines: Sequence[tuple[Path, Columns, Ints]], height: int) -> Iterator[CharacterPlaces]:
    """The places in lines that have characters, whose numbers are given."""
    widths, counts = np.array([(len(ink), len(places)) for _, ink, places in lines]).T
    starts, first = (np.cumsum(sizes) - sizes for sizes in (widths + 1, counts))
    ink = np.concatenate([part for _, columns, _ in lines for part in (columns, EDGE_INK)])
    ink = _without_neighbours(ink, starts, widths, height)
    step_px = np.repeat(widths / np.array([path.steps for path, _, _ in lines]), counts)
    steps = np.concatenate([(path.first[places] + path.last[places] + 1.0) / 2 for path, _, places in lines])
    middles = np.repeat(starts, counts) + (steps - LATE) * step_px
    spaced = np.diff(np.concatenate([places for _, _, places in lines])) > 1
    reach, last = HALF_CHARACTER * height, first + counts - 1
    begins = np.maximum(starts, (middles[first] - reach).astype(np.intp))
    ends = np.minimum(starts + widths, (middles[last] + reach).astype(np.intp) + 1)
    left, right = _sides(middles, spaced, ink, (first, begins, last, ends), step_px)
    rows = np.bitwise_or.reduceat(ink, np.stack([left, right], axis=1).ravel())[::2]
    whole = np.bitwise_or.reduceat(rows, first)
    whole[whole == 0] = (1 << height) - 1
    rows = np.where(rows == 0, np.repeat(whole, counts), rows)
    sides = np.stack([left, right], axis=1) - np.repeat(starts, counts)[:, None]
    across, line_across = _first_and_last(rows, height) / height, _first_and_last(whole, height) / height
    shares = np.concatenate([sides / np.repeat(widths, counts)[:, None], across], axis=1)
    for (_, _, places), part, (top, bottom) in zip(lines, np.split(shares, first[1:]), line_across, strict=True):
        left, right, upper, lower = part.T
        yield CharacterPlaces(places, left, right, upper, lower, float(top), float(bottom))


def _without_neighbours(ink: Columns, starts: Ints, widths: Ints, height: int) -> Columns:
    """The ink without what touches a crop's upper or lower edge and ends near it: that is of the next line."""
    rows = np.bitwise_or.reduceat(ink, np.stack([starts, starts + widths], axis=1).ravel())[::2]
    inked, near = _bits(rows, height), round(height * EDGE)
    top, bottom = _neighbour_rows(inked[:, :near]), _neighbour_rows(inked[:, : -near - 1 : -1])
    one = np.uint64(1)
    own = (one << (height - bottom).astype(np.uint64)) - (one << top.astype(np.uint64))
    ink &= np.repeat(own, widths + 1)
    ink[starts + widths] = EDGE_INK
    return ink


def _neighbour_rows(inked: NDArray[np.bool_]) -> Ints:
    """(L,) how many rows from the edge are a neighbour's: those up to the last blank one, if the first has ink."""
    blank = ~inked
    last = blank.shape[1] - 1 - blank[:, ::-1].argmax(axis=1)
    return np.where(inked[:, 0] & blank.any(axis=1), last, 0)


Bounds = tuple[Ints, Ints, Ints, Ints]
"""The first characters of lines, the columns where they may begin, the last ones, and where these may end."""


def _sides(
    middles: NDArray[np.floating],
    spaced: NDArray[np.bool_],
    ink: Columns,
    bounds: Bounds,
    step_px: NDArray[np.floating],
) -> tuple[Ints, Ints]:
    """(N,) the first column of each character's ink, and the one after its last.

    `middles` (N,) ascend, in columns; `spaced` (N - 1,) says whether a space was read between them; a step has
    `step_px` (N,) columns.
    """
    filled = np.flatnonzero(ink)
    cuts = _cuts(middles, spaced, ink)
    left, right = _trimmed(cuts, bounds, filled)
    empty = left == right
    if empty.any():
        # A narrow mark lay on its neighbour's side of the cut: let them share at the midpoint.
        moved = empty[1:] | empty[:-1]
        cuts = np.where(moved, ((middles[1:] + middles[:-1]) / 2).astype(np.intp), cuts)
        left, right = _trimmed(cuts, bounds, filled)
        empty = left == right
    begins = np.maximum(np.rint(middles - step_px / 2), 0).astype(np.intp)
    ends = np.minimum(np.rint(middles + step_px / 2).astype(np.intp), len(ink) - 1)
    return np.where(empty, begins, left), np.where(empty, np.maximum(ends, begins + 1), right)


def _cuts(middles: NDArray[np.floating], spaced: NDArray[np.bool_], ink: Columns) -> Ints:
    """(N - 1,) the best column between each two middles."""
    starts = middles.astype(np.intp)
    if len(starts) < 2:
        return starts[:0]
    sizes = np.diff(starts)
    columns = np.arange(starts[0], starts[-1])
    midpoints = np.repeat((middles[1:] + middles[:-1]) / 2, sizes)
    clearance = _clearance(ink)[columns]
    near = np.minimum(clearance, CLEAR) - FAR_FROM_MIDPOINT * np.abs(columns + 0.5 - midpoints)
    value = np.where(np.repeat(spaced, sizes), clearance, near)
    best = np.maximum.reduceat(value, starts[:-1] - starts[0])
    hits = np.flatnonzero(value == np.repeat(best, sizes))
    return cast("Ints", columns[hits[np.searchsorted(hits, starts[:-1] - starts[0])]])


def _clearance(ink: Columns) -> Floats:
    """(w,) columns to the nearest ink; on ink less than 0, by half a column for each inked row."""
    columns, width = np.arange(len(ink)), len(ink)
    inked = ink != 0
    before = np.maximum.accumulate(np.where(inked, columns, -width))
    after = np.minimum.accumulate(np.where(inked, columns, 2 * width)[::-1])[::-1]
    return np.where(inked, np.bitwise_count(ink) * -0.5, np.minimum(columns - before, after - columns))


def _trimmed(cuts: Ints, bounds: Bounds, filled: Ints) -> tuple[Ints, Ints]:
    """The first column with ink of each share between cuts, and the one after its last; the same where it has none."""
    first, line_begins, last, line_ends = bounds
    begins, ends = np.append(0, cuts), np.append(cuts, 0)
    begins[first], ends[last] = line_begins, line_ends
    at, after = np.searchsorted(filled, begins), np.searchsorted(filled, ends)
    left = filled[at]
    return left, np.where(at < after, filled[after - 1] + 1, left)


def _first_and_last(rows: Columns, height: int) -> Ints:
    """(N, 2) the lowest bit of each, and the one after its highest."""
    inked = _bits(rows, height)
    return np.stack([inked.argmax(axis=1), height - inked[:, ::-1].argmax(axis=1)], axis=1)


def _bits(rows: Columns, height: int) -> NDArray[np.bool_]:
    """(N, height) whether each bit is set."""
    return (rows[:, None] >> np.arange(height, dtype=np.uint64) & np.uint64(1)).astype(bool)


def in_logical_order(line: LineText) -> LineText:
    """A line that was read from right to left in logical order, so its steps do not ascend any more."""
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


def _rearranged(path: Path, order: Ints, characters: list[str]) -> Path:
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
    """The words of each line, whose outline is in the direction of reading; None where none are asked for or known."""
    answers: list[tuple[Word, ...] | None] = [None] * len(lines)
    known = [
        (number, line.path, line.ink)
        for number, (line, _) in enumerate(lines)
        if options.wants_words and line.path is not None and line.ink is not None
    ]
    for begin in range(0, len(known), TOGETHER):
        check()
        some = known[begin : begin + TOGETHER]
        found = _place_in_order([(lines[number][0], path, ink) for number, path, ink in some])
        for (number, path, _), places in zip(some, found, strict=True):
            answers[number] = () if places is None else _words_of(path, places, lines[number][1], options)
    return answers


def _place_in_order(lines: Sequence[tuple[LineText, Path, Columns]]) -> list[CharacterPlaces | None]:
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


def _parts(texts: Sequence[str], places: CharacterPlaces) -> Floats:
    """(N, 4) left, top, right and bottom of each character's box, as shares of the crop."""
    own = np.array([0.0 if text >= FULL_HEIGHT else OWN_ROWS for text in texts])
    top = places.line_top + own * (places.top - places.line_top)
    bottom = places.line_bottom + own * (places.bottom - places.line_bottom)
    return np.stack([places.left, top, places.right, bottom], axis=1)


def _join(parts: Floats, begins: Ints) -> Floats:
    """(W, 4) the same of the runs of characters that begin at these."""
    least, most = np.minimum.reduceat(parts, begins), np.maximum.reduceat(parts, begins)
    return np.concatenate([least[:, :2], most[:, 2:]], axis=1)


def _begins(path: Path, places: CharacterPlaces, segment: Segmenter) -> Ints:
    """(W,) with which of the places each word begins."""
    text = "".join(path.characters)
    begins = word_begins(text, segment)
    if len(text) == len(path.characters):
        return np.searchsorted(places.places, begins)
    # Some characters are more than one code point long.
    offsets = np.array([0, *accumulate(map(len, path.characters))])[places.places]
    return np.unique(np.searchsorted(offsets, begins, side="right") - 1)


def _boxes(parts: Floats, outline: Outline, options: ReadOptions) -> list[Box]:
    """Where parts of the line's crop stand on the page."""
    quads = parts_of(outline, parts)
    return as_boxes(upright_boxes(quads) if options.upright_boxes else quads)
