"""Computes the words and characters of lines: located by their ink, split by script, mapped onto the page.

CTC steps give the approximate position of each character, the ink the exact one. The crop is cut once between the
middles of two consecutive characters: in the middle of the widest gap in the ink if a space was read, else at a gap
near the midpoint or, if there is no gap, at the thinnest column. A character is the ink between two cuts. A column of
pixels is an integer with one bit per row, so the rows with ink in a range of columns are a bitwise or. Several lines
are processed at once, side by side, with a column full of ink after each. CTC reads lines from left to right in any
script; `imaging.text_direction` gives the order of right-to-left text.
"""

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
from ocrsvc.imaging.text_contour import Outline, parts_of
from ocrsvc.imaging.text_direction import logical_order
from ocrsvc.imaging.word_split import Segmenter, by_character, open_jieba, word_begins
from ocrsvc.results import Box, Character, Check, Pixels, ReadOptions, Word

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]
Columns = NDArray[np.uint64]  # (w,) the ink in each column: bit 1 << row is set if the row has ink
# Pixels with at least this share of the line's strongest contrast are ink. It is below 0.5 because edges are smoothed.
INK_CONTRAST: Final = 0.4
STRONG_QUANTILE: Final = 0.98  # quantile of the pixels' contrasts that counts as the strongest; higher ones are specks
# Share of the crop's height, at the top and the bottom, that may contain ink of neighbouring lines.
EDGE_SHARE: Final = 0.2
# Weight of a cut's distance from the midpoint between two characters, relative to its distance from ink.
MIDPOINT_COST: Final = 0.5
# Number of CTC steps by which the model reports a character after its middle. On the pages of benchmarks/words.py it is
# 0.16 for Chinese characters, 0.21 for Latin letters and 0.29 for marks; one character in ten is off by more than 0.5.
LATE_STEPS: Final = 0.2
# Where no space was read, cuts at least this far from ink count as equal: the widest gap may be beside a narrow mark.
CLEAR_PX: Final = 4
EDGE_INK: Final = np.array([(1 << 64) - 1], np.uint64)  # ink in all rows, to separate lines placed side by side
# Ink farther than this from the middle of the line's first or last character, in crop heights, is ignored.
MAX_REACH: Final = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class CharacterPlaces:
    """The box around each character's ink, as shares of the crop's width and height."""

    places: Ints  # (N,) indices of the characters in the path; spaces are left out
    boxes: Floats  # (N, 4) left, top, right, bottom
    line: Floats  # (2,) top and bottom of all the line's ink


def place_characters(lines: Sequence[tuple[Path, Columns]], height: int) -> list[CharacterPlaces | None]:
    """Locate characters by the paths of lines and the ink of their crops, up to 63 px high; None if a line is blank."""
    kept = [np.flatnonzero([not character.isspace() for character in path.characters]) for path, _ in lines]
    full = [(path, ink, places) for (path, ink), places in zip(lines, kept, strict=True) if len(places)]
    found = _place(full, height) if full else iter(())
    return [next(found) if len(places) else None for places in kept]


def ink_columns(crop: Pixels) -> Columns:
    """The ink in a line's crop (h <= 64, w[, 3]) uint8: pixels that differ from the crop's median shade."""
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY) if crop.ndim == 3 else crop
    # A histogram of every third row is accurate enough.
    counts = cv2.calcHist([gray[::3]], [0], None, [256], [0, 256]).ravel()
    ground = int(np.searchsorted(counts.cumsum(), counts.sum() / 2))
    contrast = np.abs(np.arange(256) - ground)
    strongest = np.searchsorted(np.bincount(contrast, counts).cumsum(), counts.sum() * STRONG_QUANTILE)
    inked = np.asarray(cv2.LUT(gray, (contrast > INK_CONTRAST * strongest).astype(np.uint8)), np.uint8)
    packed = np.zeros((crop.shape[1], 8), np.uint8)
    packed[:, : -(-len(gray) // 8)] = np.packbits(inked, axis=0, bitorder="little").T
    return packed.view("<u8").ravel()


def _place(lines: Sequence[tuple[Path, Columns, Ints]], height: int) -> Iterator[CharacterPlaces]:
    """Locate characters. Each line is a path, its ink, and the indices of the characters to locate (at least one)."""
    widths, counts = np.array([(len(ink), len(places)) for _, ink, places in lines]).T
    starts, first = (np.cumsum(sizes) - sizes for sizes in (widths + 1, counts))
    ink = np.concatenate([part for _, columns, _ in lines for part in (columns, EDGE_INK)])
    ink = _without_neighbours(ink, starts, widths, height)
    step_px = np.repeat(widths / np.array([path.steps for path, _, _ in lines]), counts)
    steps = np.concatenate([(path.first[places] + path.last[places] + 1.0) / 2 for path, _, places in lines])
    middles = np.repeat(starts, counts) + (steps - LATE_STEPS) * step_px
    spaced = np.diff(np.concatenate([places for _, _, places in lines])) > 1
    reach, last = MAX_REACH * height, first + counts - 1
    begins = np.maximum(starts, (middles[first] - reach).astype(np.intp))
    ends = np.minimum(starts + widths, (middles[last] + reach).astype(np.intp) + 1)
    left, right = _sides(middles, spaced, ink, (first, begins, last, ends), step_px)
    rows = np.bitwise_or.reduceat(ink, np.stack([left, right], axis=1).ravel())[::2]
    whole = np.bitwise_or.reduceat(rows, first)
    whole[whole == 0] = (1 << height) - 1
    rows = np.where(rows == 0, np.repeat(whole, counts), rows)
    sides = np.stack([left, right], axis=1) - np.repeat(starts, counts)[:, None]
    across, line_across = _first_and_last(rows, height) / height, _first_and_last(whole, height) / height
    boxes = np.concatenate([sides / np.repeat(widths, counts)[:, None], across], axis=1)[:, [0, 2, 1, 3]]
    for (_, _, places), of_line, line in zip(lines, np.split(boxes, first[1:]), line_across, strict=True):
        yield CharacterPlaces(places, of_line, line)


def _without_neighbours(ink: Columns, starts: Ints, widths: Ints, height: int) -> Columns:
    """Remove ink of neighbouring lines, which touches the crop's upper or lower edge and ends near it."""
    rows = np.bitwise_or.reduceat(ink, np.stack([starts, starts + widths], axis=1).ravel())[::2]
    inked, near = _bits(rows, height), round(height * EDGE_SHARE)
    top, bottom = _neighbour_rows(inked[:, :near]), _neighbour_rows(inked[:, : -near - 1 : -1])
    one = np.uint64(1)
    own = (one << (height - bottom).astype(np.uint64)) - (one << top.astype(np.uint64))
    ink &= np.repeat(own, widths + 1)
    ink[starts + widths] = EDGE_INK
    return ink


def _neighbour_rows(inked: NDArray[np.bool_]) -> Ints:
    """(L,) number of rows to clear, from the edge: those before the last blank row if the first has ink, else none."""
    blank = ~inked
    last = blank.shape[1] - 1 - blank[:, ::-1].argmax(axis=1)
    return np.where(inked[:, 0] & blank.any(axis=1), last, 0)


# Four arrays over lines: index of the first character, first column of its ink; index of the last one, end of its ink.
Bounds = tuple[Ints, Ints, Ints, Ints]


def _sides(
    middles: Floats, spaced: NDArray[np.bool_], ink: Columns, bounds: Bounds, step_px: Floats
) -> tuple[Ints, Ints]:
    """(N,) the first column of each character's ink, and the column after its last.

    `middles` (N,): columns of the characters' middles, ascending; `spaced` (N - 1,): whether a space was read between
    two characters; `step_px` (N,): columns per CTC step.
    """
    filled = np.flatnonzero(ink)
    cuts = _cuts(middles, spaced, ink)
    left, right = _trimmed(cuts, bounds, filled)
    empty = left == right
    if empty.any():
        # The cut gave all of a narrow character's ink to its neighbour: cut at the midpoint instead.
        moved = empty[1:] | empty[:-1]
        cuts = np.where(moved, ((middles[1:] + middles[:-1]) / 2).astype(np.intp), cuts)
        left, right = _trimmed(cuts, bounds, filled)
        empty = left == right
    begins = np.maximum(np.rint(middles - step_px / 2), 0).astype(np.intp)
    ends = np.minimum(np.rint(middles + step_px / 2).astype(np.intp), len(ink) - 1)
    return np.where(empty, begins, left), np.where(empty, np.maximum(ends, begins + 1), right)


def _cuts(middles: Floats, spaced: NDArray[np.bool_], ink: Columns) -> Ints:
    """(N - 1,) the best column for a cut between consecutive middles."""
    starts = middles.astype(np.intp)
    if len(starts) < 2:
        return starts[:0]
    sizes = np.diff(starts)
    columns = np.arange(starts[0], starts[-1])
    midpoints = np.repeat((middles[1:] + middles[:-1]) / 2, sizes)
    clearance = _clearance(ink)[columns]
    near = np.minimum(clearance, CLEAR_PX) - MIDPOINT_COST * np.abs(columns + 0.5 - midpoints)
    value = np.where(np.repeat(spaced, sizes), clearance, near)
    best = np.maximum.reduceat(value, starts[:-1] - starts[0])
    hits = np.flatnonzero(value == np.repeat(best, sizes))
    return cast("Ints", columns[hits[np.searchsorted(hits, starts[:-1] - starts[0])]])


def _clearance(ink: Columns) -> Floats:
    """(w,) distance of each column to the nearest ink, in columns; in a column with ink -0.5 times its inked rows."""
    columns, width = np.arange(len(ink)), len(ink)
    inked = ink != 0
    before = np.maximum.accumulate(np.where(inked, columns, -width))
    after = np.minimum.accumulate(np.where(inked, columns, 2 * width)[::-1])[::-1]
    return np.where(inked, np.bitwise_count(ink) * -0.5, np.minimum(columns - before, after - columns))


def _trimmed(cuts: Ints, bounds: Bounds, filled: Ints) -> tuple[Ints, Ints]:
    """Between consecutive cuts, the first column with ink and the one after the last; equal if there is no ink."""
    first, line_begins, last, line_ends = bounds
    begins, ends = np.append(0, cuts), np.append(cuts, 0)
    begins[first], ends[last] = line_begins, line_ends
    at, after = np.searchsorted(filled, begins), np.searchsorted(filled, ends)
    left = filled[at]
    return left, np.where(at < after, filled[after - 1] + 1, left)


def _first_and_last(rows: Columns, height: int) -> Ints:
    """(N, 2) for each number in `rows`: index of its lowest set bit, and of the bit above its highest set bit."""
    inked = _bits(rows, height)
    return np.stack([inked.argmax(axis=1), height - inked[:, ::-1].argmax(axis=1)], axis=1)


def _bits(rows: Columns, height: int) -> NDArray[np.bool_]:
    return (rows[:, None] >> np.arange(height, dtype=np.uint64) & np.uint64(1)).astype(bool)


def in_logical_order(line: LineText) -> LineText:
    """Put the characters of a right-to-left line into logical order, in which their CTC steps do not ascend."""
    path = line.path
    if path is None:
        return line
    order, characters = logical_order(path.characters)
    if order == list(range(len(order))):
        return line
    return replace(line, text="".join(characters), path=_rearranged(path, np.array(order), characters))


def by_steps(path: Path) -> Path:
    """Put the characters of a line in logical order back into left-to-right order."""
    order = np.argsort(path.first, kind="stable")
    return _rearranged(path, order, [path.characters[place] for place in order.tolist()])


def _rearranged(path: Path, order: Ints, characters: list[str]) -> Path:
    return Path(characters, path.first[order], path.last[order], path.steps, path.confidence, path.probabilities[order])


def by_path(path: Path, found: CharacterPlaces) -> CharacterPlaces:
    """Put character boxes that were found from left to right, for `by_steps(path)`, into the order of `path`."""
    logical = np.argsort(path.first, kind="stable")[found.places]
    order = np.argsort(logical)
    return CharacterPlaces(logical[order], found.boxes[order], found.line)


OWN_INK_SHARE: Final = 0.5  # height of a character's box, between that of the line's ink (0) and of its own ink (1)
LINES_AT_ONCE: Final = 32  # number of lines located at once; long ones take some megabytes and a few milliseconds
# First code point of the scripts whose characters fill the line's height: Chinese, kana and Hangul.
FULL_HEIGHT: Final = "\u2e80"


def words_of(
    lines: Sequence[tuple[LineText, Outline]], options: ReadOptions, check: Check
) -> list[tuple[Word, ...] | None]:
    """The words of each line; None if they are not requested, or if the line has no character positions.

    A line's outline must begin where its text begins.
    """
    answers: list[tuple[Word, ...] | None] = [None] * len(lines)
    known = [
        (number, line.path, line.ink)
        for number, (line, _) in enumerate(lines)
        if options.wants_words and line.path is not None and line.ink is not None
    ]
    for begin in range(0, len(known), LINES_AT_ONCE):
        check()
        group = known[begin : begin + LINES_AT_ONCE]
        found = _place_in_order([(lines[number][0], path, ink) for number, path, ink in group])
        for (number, path, _), places in zip(group, found, strict=True):
            answers[number] = () if places is None else _words_of(path, places, lines[number][1], options)
    return answers


def _place_in_order(lines: Sequence[tuple[LineText, Path, Columns]]) -> list[CharacterPlaces | None]:
    turned = [line.direction == "rtl" or line.order == "logical" for line, _, _ in lines]
    steps = zip(lines, turned, strict=True)
    found = place_characters([(by_steps(path) if turn else path, ink) for (_, path, ink), turn in steps], HEIGHT_PX)
    return [
        by_path(path, places) if turn and places is not None else places
        for (_, path, _), places, turn in zip(lines, found, turned, strict=True)
    ]


def _words_of(path: Path, places: CharacterPlaces, outline: Outline, options: ReadOptions) -> tuple[Word, ...]:
    texts = [path.characters[place] for place in places.places]
    own = np.array([0.0 if text >= FULL_HEIGHT else OWN_INK_SHARE for text in texts])[:, None]
    parts = places.boxes.copy()
    parts[:, 1::2] = places.line + own * (parts[:, 1::2] - places.line)
    confidences = np.clip(path.probabilities[places.places], 0.0, 1.0)
    characters: tuple[Character, ...] = ()
    if options.characters:
        characters = tuple(map(Character, texts, confidences.tolist(), _boxes(parts, outline, options)))
    begins = _begins(path, places, open_jieba() if options.words == "segmented" else by_character)
    spans = list(pairwise([*begins.tolist(), len(texts)]))
    means = np.add.reduceat(confidences, begins) / [end - begin for begin, end in spans]
    smallest, largest = np.minimum.reduceat(parts, begins), np.maximum.reduceat(parts, begins)
    boxes = _boxes(np.concatenate([smallest[:, :2], largest[:, 2:]], axis=1), outline, options)
    return tuple(
        Word("".join(texts[begin:end]), mean, box, characters[begin:end])
        for (begin, end), mean, box in zip(spans, means.tolist(), boxes, strict=True)
    )


def _begins(path: Path, places: CharacterPlaces, segment: Segmenter) -> Ints:
    """(W,) index of each word's first character."""
    text = "".join(path.characters)
    begins = word_begins(text, segment)
    if len(text) == len(path.characters):
        return np.searchsorted(places.places, begins)
    # A character may have more than one code point.
    offsets = np.array([0, *accumulate(map(len, path.characters))])[places.places]
    return np.unique(np.searchsorted(offsets, begins, side="right") - 1)


def _boxes(parts: Floats, outline: Outline, options: ReadOptions) -> list[Box]:
    quads = parts_of(outline, parts)
    return as_boxes(upright_boxes(quads) if options.upright_boxes else quads)
