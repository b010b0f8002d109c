"""Reads one page: detect lines, find the page's orientation, recognize, order. Pixels are in memory or on a GPU.

The recognizer itself shows the orientation: a few long lines are read first, and turned by 180 degrees if the
recognizer is unsure of them. Classifying every line first (0 or 180 degrees) costs more and turns good lines upside
down: F1 is 0.939 with such a classifier and 0.949 without, on the same 48 pages.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import LineReader, LineText
from ocrsvc.engines.model.description import Direction
from ocrsvc.engines.ppocr.pipeline.network_input import at_usual_height
from ocrsvc.engines.ppocr.pipeline.spaces import decide_spaces
from ocrsvc.engines.ppocr.pipeline.words import in_logical_order, ink_columns, words_of
from ocrsvc.imaging.geometry import Quad, as_box, headings, sides, turn_points, upright_boxes
from ocrsvc.imaging.reading_order.blocks import reading_order
from ocrsvc.imaging.reading_order.leveling import level_quads
from ocrsvc.imaging.reading_order.rules import find_rules
from ocrsvc.imaging.text_contour import Outline, corners, cut, ends, extent, is_curved, parts_of, turned_round
from ocrsvc.imaging.text_direction import runs_from_right_to_left
from ocrsvc.results import Check, EngineTimes, Line, Page, Pixels, ReadTask, Spaces, no_check

TALL_RATIO = 1.5  # height / width above which a line counts as vertical
SAMPLE_LINES = 4
CONFIDENT = 0.85  # the page is upright if the sample's mean confidence is at least this
CLEARLY_BETTER = 0.05  # a line or page is turned only if its confidence rises by at least this
DOUBTFUL_LINE = 0.7  # a line with less confidence is also read upside down
MIN_CONFIDENCE = 0.5
MAJORITY = 0.7  # share of the text, by length, that must agree on the page's orientation

# A line that the detector joined across the gutter between two columns is split where it has a wide blank that ends at
# the left edge of other nearby lines. A space between words is rarely that wide, and rarely ends at a column's edge.
MIN_GUTTER: Final = 0.9  # smallest width of a gutter, in line heights; spaces between words have a third of it
EDGE_TOLERANCE: Final = 0.4  # how far lines of one column may differ at their left edge, in line heights
MAX_DISTANCE: Final = 10.0  # largest vertical distance of nearby lines, in line heights
MIN_BESIDE: Final = 2.0  # smallest length of text on each side of a gutter, in line heights
MIN_LINES: Final = 3  # a gutter needs this many lines that begin at its right side, including parts of joined lines
MARGIN: Final = 0.1  # blank that each part of a split line keeps beside the gutter, in line heights
INK_CONTRAST: Final = 0.3  # least contrast of a pixel column with ink, as a share of the line's strongest contrast
MAX_LINES: Final = 1000  # on pages with more lines, no line is split at gutters
MAX_CUTS: Final = 200  # most lines per page that are searched for gutters


class PageReader(Protocol):
    """Runs the models on one image; with `in_batches` many lines are read in one run."""

    @property
    def in_batches(self) -> bool: ...  # noqa: D102  described above

    def find(self) -> list[Outline]:
        """Detect lines; returns outlines in any order, in pixels of the image, clockwise from the top left corner."""
        ...

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """Recognize lines, each along its upper edge; returns their texts in the same order."""
        ...


@dataclass(frozen=True, slots=True)
class InMemoryPageReader:
    """A PageReader that crops lines in memory, for any LineReader."""

    pixels: Pixels  # (H, W[, 3]) uint8
    find_lines: Callable[[Pixels], list[Outline]]
    reader: LineReader
    check: Check = no_check
    in_batches: bool = False  # see PageReader
    with_ink: bool = False  # whether to add the ink of each line, for word boxes

    def find(self) -> list[Outline]:
        """See PageReader."""
        return self.find_lines(self.pixels)

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """See PageReader."""
        crops = [cut(self.pixels, outline, *self.reader.crop_size(*extent(outline))) for outline in outlines]
        texts = self.reader.read(crops, self.check)
        return list(map(add_ink, texts, crops)) if self.with_ink else texts


def add_ink(text: LineText, crop: Pixels) -> LineText:
    """Add the ink in a line's crop to its text, if the positions of its characters are known."""
    return text if text.path is None else replace(text, ink=ink_columns(at_usual_height(crop)))


# Moves the corners (N, 4, 2) of lines, in pixels, to where they would be if the lines were straight.
Straighten = Callable[[NDArray[np.float32]], NDArray[np.float32]]
UNREAD: Final = LineText("", 0.0)


@dataclass(slots=True)
class _DetectedLine:
    """A detected line: its outline, with corners from the start of the text, and its text once it is recognized."""

    outline: Outline
    read: LineText = UNREAD

    @property
    def quad(self) -> Quad:
        """The four corners of the outline."""
        return corners(self.outline)


def read_page(
    task: ReadTask, reader: PageReader, straighten: Straighten | None = None, outlines: Sequence[Outline] | None = None
) -> Page:
    """Read an image, or only the lines with given `outlines`; `straighten` removes a bend before lines are ordered."""
    began_s = time.monotonic()
    if outlines is None:
        outlines = reader.find() if task.options.detect else ()
    found_s = time.monotonic()
    along = list(map(_along_text, outlines))
    found = list(map(_DetectedLine, split_joined_lines(task.image.pixels, along)))
    if not found:
        width, height = task.image.width, task.image.height
        found = [_DetectedLine(np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32))]
    if task.options.rotate == "auto":
        _find_orientation(found, reader)
    _recognize([line for line in found if line.read is UNREAD], reader)
    if task.options.rotate == "auto":
        _retry_doubtful(found, reader)
    _decide_spaces(found, task.options.spaces)
    for line in found:
        if line.read.direction == "rtl" and line.read.order == "visual":
            line.read = in_logical_order(line.read)
    page = _assemble(task, found, straighten or (lambda quads: quads))
    return replace(page, times=EngineTimes(began_s, found_s, time.monotonic()))


def _along_text(outline: Outline) -> Outline:
    """Start a tall quad at its top right corner, so that it is read downwards like a column of Chinese."""
    along, across = extent(outline)
    return np.roll(outline, -1, axis=0) if across >= TALL_RATIO * along and not is_curved(outline) else outline


def _find_orientation(found: list[_DetectedLine], reader: PageReader) -> None:
    """Read the longest lines (all if `in_batches`). If they read better upside down, turn all lines by 180 degrees."""
    sample = sorted(found, key=lambda line: -_elongation(line.outline))[:SAMPLE_LINES]
    _recognize(found if reader.in_batches else sample, reader)
    if _mean_confidence([line.read for line in sample]) >= CONFIDENT:
        return
    flipped = reader.read([turned_round(line.outline) for line in sample])
    if _mean_confidence(flipped) < _mean_confidence([line.read for line in sample]) + CLEARLY_BETTER:
        return
    for line in found:
        line.outline, line.read = turned_round(line.outline), UNREAD
    for line, text in zip(sample, flipped, strict=True):
        line.read = text


def _retry_doubtful(found: list[_DetectedLine], reader: PageReader) -> None:
    """Read doubtful lines upside down too, and keep results that are clearly better."""
    doubtful = [line for line in found if 0 < line.read.confidence < DOUBTFUL_LINE]
    for line, text in zip(doubtful, reader.read([turned_round(line.outline) for line in doubtful]), strict=True):
        if text.confidence > max(line.read.confidence + CLEARLY_BETTER, DOUBTFUL_LINE):
            line.outline, line.read = turned_round(line.outline), text


def _recognize(lines: Sequence[_DetectedLine], reader: PageReader) -> None:
    for line, text in zip(lines, reader.read([line.outline for line in lines]), strict=True):
        line.read = text


def _decide_spaces(found: Sequence[_DetectedLine], spaces: Spaces) -> None:
    """Decide where spaces belong, using all confident lines, whatever `min_confidence` the request has."""
    read = [line for line in found if line.read.confidence >= MIN_CONFIDENCE]
    for line, text in zip(read, decide_spaces([(line.read, ends(line.outline)) for line in read], spaces), strict=True):
        line.read = text


def _elongation(outline: Outline) -> float:
    along, across = extent(outline)
    return along / max(across, 1.0)


def _mean_confidence(texts: Sequence[LineText]) -> float:
    return sum(text.confidence for text in texts) / max(1, len(texts))


def _assemble(task: ReadTask, found: list[_DetectedLine], straighten: Straighten) -> Page:
    image = task.image
    least = MIN_CONFIDENCE if task.options.min_confidence is None else task.options.min_confidence
    kept = [line for line in found if line.read.text.strip() and line.read.confidence >= least]
    angle = _page_angle(kept)
    direction = _page_direction(kept)
    # Compare quads from the ends of lines, because rectangles around curved lines overlap even if the lines do not.
    quads = np.array([ends(line.outline) for line in kept], np.float32).reshape(-1, 4, 2)
    # After a turn by 90 degrees, columns from right to left are rows from top to bottom.
    turn = (angle + 270) % 360 if direction == "vertical" else angle
    straight = straighten(quads), straighten(find_rules(image.pixels, quads))
    level = level_quads(*(turn_points(points, turn, image.width, image.height) for points in straight))
    texts = [line.read.text for line in kept]
    order = reading_order(level[: len(kept)], texts, level[len(kept) :], from_right=direction == "rtl")
    ordered = [kept[index] for index in order]
    shaped = upright_boxes if task.options.upright_boxes else (lambda quad: quad)
    words = words_of([(line.read, line.outline) for line in ordered], task.options, task.check)
    lines = tuple(
        Line(line.read.text, line.read.confidence, as_box(shaped(line.quad)), of_line)
        for line, of_line in zip(ordered, words, strict=True)
    )
    return Page(image.width, image.height, angle, lines)


def _page_angle(lines: Sequence[_DetectedLine]) -> int:
    """The clockwise turn (0, 90, 180, 270) that makes most of the text, by length, upright."""
    if not lines:
        return 0
    votes = {0: 0.0, 90: 0.0, 180: 0.0, 270: 0.0}
    for line in lines:
        upright = 90 if line.read.direction == "vertical" else 0
        votes[(upright - int(headings(line.quad))) % 360] += sides(line.quad)[0]
    best = max(votes, key=lambda turn: votes[turn])
    return best if votes[best] >= MAJORITY * sum(votes.values()) else 0


def _page_direction(lines: Sequence[_DetectedLine]) -> Direction:
    """The writing direction of most of the text, by length; lines without letters do not count."""
    if all(line.read.direction == "ltr" for line in lines):
        return "ltr"
    votes: dict[Direction, float] = {"ltr": 0.0, "rtl": 0.0, "vertical": 0.0}
    for line in lines:
        leftwards = runs_from_right_to_left(line.read.text)
        is_vertical = line.read.direction == "vertical"
        direction: Direction = "vertical" if is_vertical else "rtl" if leftwards else "ltr"
        votes[direction] += sides(line.quad)[0] if is_vertical or leftwards is not None else 0.0
    return max(votes, key=lambda direction: votes[direction])


Numbers = NDArray[np.float64]


def split_joined_lines(pixels: Pixels, outlines: Sequence[Outline]) -> list[Outline]:
    """Split the lines that cross a gutter between columns; pixels are (H, W[, 3])."""
    if not 1 < len(outlines) <= MAX_LINES:
        return list(outlines)
    level = level_quads(np.array([ends(outline) for outline in outlines], np.float32)).astype(np.float64)
    left, right = level[:, :, 0].min(axis=1), level[:, :, 0].max(axis=1)
    middle, height = level[:, :, 1].mean(axis=1), np.ptp(level[:, :, 1], axis=1)
    size = float(np.median(height))
    inside = (left > left[:, None] + MIN_BESIDE * size) & (left < right[:, None] - MIN_BESIDE * size)
    inside &= np.abs(middle - middle[:, None]) < MAX_DISTANCE * size
    joined = {
        line: _whites(pixels, outlines[line], float(left[line]), float(right[line]), size)
        for line in np.flatnonzero(inside.any(axis=1))[:MAX_CUTS].tolist()
        if not is_curved(outlines[line])
    }
    begins = np.concatenate([left, *(white[:, 1] for white in joined.values())])
    heights = np.concatenate([middle, *(np.full(len(white), middle[line]) for line, white in joined.items())])
    parted: list[Outline] = []
    for line, outline in enumerate(outlines):
        cuts = []
        for white in joined.get(line, np.empty((0, 2))):
            is_near = np.abs(heights - middle[line]) < MAX_DISTANCE * size
            alike = (np.abs(begins - white[1]) < EDGE_TOLERANCE * size) & is_near
            if alike.sum() >= MIN_LINES and alike[: len(left)].any():
                cuts.append((white - left[line]) / (right[line] - left[line]))
        parted += _parts(outline, cuts, MARGIN * size / (right[line] - left[line])) if cuts else [outline]
    return parted


def _whites(pixels: Pixels, outline: Outline, left: float, right: float, size: float) -> Numbers:
    """(N, 2) left and right ends of a line's wide blanks, in coordinates of the levelled page."""
    width, height = (max(1, round(side)) for side in extent(outline))
    crop = cut(pixels, outline, width, height)
    rows = crop[height // 6 : height - height // 6]
    columns = rows.reshape(len(rows), width, -1)
    contrast = (columns.max(axis=0).astype(np.int16) - columns.min(axis=0)).max(axis=-1)
    inked = np.flatnonzero(contrast > INK_CONTRAST * contrast.max())
    wide = np.flatnonzero(np.diff(inked) > MIN_GUTTER * size)
    return left + (right - left) / width * np.stack([inked[wide] + 1.0, inked[wide + 1]], axis=1)


def _parts(outline: Outline, whites: Sequence[Numbers], margin: float) -> list[Outline]:
    """Cut an outline at blanks, whose ends are given as shares of its length."""
    begins = [0.0, *(float(white[1]) - margin for white in whites)]
    stops = [*(float(white[0]) + margin for white in whites), 1.0]
    places = np.array([[begin, 0.0, stop, 1.0] for begin, stop in zip(begins, stops, strict=True)])
    return list(parts_of(outline, places))
