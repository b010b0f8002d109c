"""Writes the PDF operators that place a page's invisible text."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.formats.pdf.font import ADVANCE, DESCENT, FontCodes
from ocrsvc.formats.pdf.text_lines import Piece, TextLine

Point = tuple[float, float]
ToPoints = Callable[[float, float], Point]  # maps pixels of the displayed page to points of the PDF page, y upwards

_MIN_POINTS: Final = 0.1
_TURN_DIGITS: Final = 4
_STEP_DIGITS: Final = 1
_MIN_STRETCH: Final = 0.1
# A line that climbs less than 0.1 points is level; a line with a word that climbs over one line height stays slanted.
_MIN_CLIMB, _MAX_CLIMB = 0.1, 1.0
_WORD: Final = re.compile(r"\S+\s*|\s+")
_NO_BOX: Final = (0.0, 0.0, 612.0, 792.0)

Frame = tuple[float, float, float, float]  # left, bottom, right and top, in points


@dataclass(frozen=True, slots=True)
class PageFrame:
    """The visible part of a page in points, and its clockwise turn (0, 90, 180, 270), as pdfium interprets a PDF."""

    box: Frame
    turn: int

    def to_points(self, width: int, height: int) -> ToPoints:
        """Make a mapping from pixels of the page, drawn in this size, to points of the PDF page."""
        left, bottom, right, top = self.box
        wide, high = right - left, top - bottom

        def point(x: float, y: float) -> Point:
            across, down = x / width, y / height
            match self.turn:
                case 90:
                    return left + down * wide, bottom + across * high
                case 180:
                    return right - across * wide, bottom + down * high
                case 270:
                    return right - down * wide, top - across * high
                case _:
                    return left + across * wide, top - down * high

        return point


def frame_of(media: Sequence[float], crop: Sequence[float], turn: int) -> PageFrame:
    """The frame of a page by its MediaBox, CropBox and Rotate (`turn`) in the file; US Letter if no box is valid."""
    whole = _box_of(media) or _NO_BOX
    left, bottom, right, top = _box_of(crop) or whole
    common = (max(whole[0], left), max(whole[1], bottom), min(whole[2], right), min(whole[3], top))
    has_area = common[0] < common[2] and common[1] < common[3]
    return PageFrame(common if has_area else whole, turn // 90 % 4 * 90)


def _box_of(numbers: Sequence[float]) -> Frame | None:
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        return None
    (left, right), (bottom, top) = sorted(numbers[0::2]), sorted(numbers[1::2])
    return (left, bottom, right, top) if left < right and bottom < top else None


def page_content(lines: Iterable[TextLine], to_points: ToPoints, font: bytes, codes: FontCodes) -> bytes:
    """Make the content stream that writes lines as invisible text, and then restores the graphics state.

    `font` is the font's name in the page's resources; `codes` assigns codes to new letters.
    """
    drawn = b"\n".join(_drawn(line, to_points, font, codes) for line in lines)
    return b"q BT 3 Tr\n%b\nET Q\n" % drawn


def _drawn(line: TextLine, to_points: ToPoints, font: bytes, codes: FontCodes) -> bytes:
    """The PDF operators that draw one line, as wide as its box's lower side and as high as its left side."""
    box, pieces = line
    top, _, end, start = [to_points(x, y) for x, y in zip(box[0::2], box[1::2], strict=True)]
    size, length = max(_MIN_POINTS, math.dist(top, start)), max(_MIN_POINTS, math.dist(start, end))
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    up = ((top[0] - start[0]) / size, (top[1] - start[1]) / size)
    steps = _steps(pieces, along, up, length, size)
    before = steps.places[0]
    begins = zip(start, up, steps.run, steps.rise, strict=True)
    place = [at + high * size * DESCENT + run * before[0] + rise * before[1] for at, high, run, rise in begins]
    turned = b" ".join(number_of(part, _TURN_DIGITS) for part in (*steps.run, *steps.rise))
    written = [b"/%b %b Tf %b %b Tm" % (font, number_of(size, 1), turned, _numbers_of(place))]
    for (text, begin, stop), at in zip(steps.pieces, steps.places, strict=True):
        step = [round(one - other, _STEP_DIGITS) for one, other in zip(at, before, strict=True)]
        if any(step):
            written.append(b"%b Td" % _numbers_of(step))
        # Continue from the rounded position, so that rounding errors do not add up along the line.
        before = (before[0] + step[0], before[1] + step[1])
        stretch = max(_MIN_STRETCH, 100 * (stop - begin) * length / (round(size, 1) * len(text) * ADVANCE))
        written.append(b"%b Tz <%b> Tj" % (number_of(stretch, 1), codes.codes_of(text).hex().encode()))
    return b"\n".join(written)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A line's unit vectors in reading direction and across it, its pieces, and each piece's start in these vectors."""

    run: Point
    rise: Point
    pieces: Sequence[Piece]
    places: Sequence[Point]


def _steps(pieces: Sequence[Piece], along: Point, up: Point, length: float, size: float) -> _Steps:
    """Divide a slightly slanted line into level words.

    PDF readers split a slanted word: poppler does at a letter half a point higher than the first. Level words may be
    wrong by half their height; a line with a word that would be off by more stays slanted.
    """
    x, y = along
    run = (math.copysign(1.0, x), 0.0) if abs(x) > abs(y) else (0.0, math.copysign(1.0, y))
    rise, climb = (-run[1], run[0]), min(abs(x), abs(y))
    words = pieces if climb * length < _MIN_CLIMB else [word for piece in pieces for word in _words(piece)]
    longest = max((stop - begin for _, begin, stop in words), default=0.0) * length
    if climb * longest > _MAX_CLIMB * size or up[0] * rise[0] + up[1] * rise[1] <= 0:
        return _Steps(along, up, pieces, [(begin * length, 0.0) for _, begin, _ in pieces])
    ahead, higher = (x * side[0] + y * side[1] for side in (run, rise))
    places = []
    for _, begin, stop in words:
        middle = (begin + stop) / 2 * length
        places.append((ahead * middle - (stop - begin) / 2 * length, higher * middle))
    return _Steps(run, rise, words, places)


def _words(piece: Piece) -> Iterator[Piece]:
    """Divide a piece into words with the spaces after them, as if all letters had equal widths."""
    text, begin, stop = piece
    letter = (stop - begin) / len(text)
    for word in _WORD.finditer(text):
        yield word[0], begin + word.start() * letter, begin + word.end() * letter


def _numbers_of(values: Iterable[float]) -> bytes:
    return b" ".join(number_of(value, _STEP_DIGITS) for value in values)


def number_of(value: float, digits: int = 2) -> bytes:
    """Format a number in PDF syntax: without exponent and trailing zeros."""
    written = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return b"0" if written == "-0" else written.encode()
