"""The operators of a PDF's page that write what was read on it, invisibly, over the places where it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ocrsvc.searchable_pdf.page_text import Piece, TextLine
from ocrsvc.searchable_pdf.text_font import ADVANCE, DESCENT, FontCodes

Point = tuple[float, float]
ToPoints = Callable[[float, float], Point]
"""From pixels of the page as displayed to points of the page itself, whose y grows upwards."""

_LEAST_POINTS: Final = 0.1
_TURN_DIGITS: Final = 4
_STEP_DIGITS: Final = 1
_LEAST_STRETCH: Final = 0.1
# From a line's beginning to its end, in points; and within a word, of the line's height.
_LEAST_CLIMB, _MOST_CLIMB = 0.1, 1.0
_WORD: Final = re.compile(r"\S+\s*|\s+")


def page_content(lines: Iterable[TextLine], to_points: ToPoints, font: bytes, codes: FontCodes) -> bytes:
    """What a page's stream holds for its text; it leaves the state of what is drawn after it as it was.

    Args:
        lines: In reading order.
        to_points: Where pixels lie on the page.
        font: Its name among the page's resources.
        codes: Of the document, which are added to.
    """
    drawn = b"\n".join(_drawn(line, to_points, font, codes) for line in lines)
    return b"q BT 3 Tr\n%b\nET Q\n" % drawn


def _drawn(line: TextLine, to_points: ToPoints, font: bytes, codes: FontCodes) -> bytes:
    """The operators of one line: as wide as the lower side of its box, as high as its left one."""
    box, pieces = line
    top, _, end, start = [to_points(x, y) for x, y in zip(box[0::2], box[1::2], strict=True)]
    size, length = max(_LEAST_POINTS, math.dist(top, start)), max(_LEAST_POINTS, math.dist(start, end))
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
        # What is rounded here must not add up along the line.
        before = (before[0] + step[0], before[1] + step[1])
        stretch = max(_LEAST_STRETCH, 100 * (stop - begin) * length / (round(size, 1) * len(text) * ADVANCE))
        written.append(b"%b Tz <%b> Tj" % (number_of(stretch, 1), codes.codes_of(text).hex().encode()))
    return b"\n".join(written)


@dataclass(frozen=True, slots=True)
class _Steps:
    """How a line is written: the directions of its letters, its pieces, and where by these directions each begins."""

    run: Point
    rise: Point
    pieces: Sequence[Piece]
    places: Sequence[Point]


def _steps(pieces: Sequence[Piece], along: Point, up: Point, length: float, size: float) -> _Steps:
    """A line that climbs a little is written in words that do not.

    Readers cut a word whose letters climb: poppler does where they are half a point higher than its first. What is
    level lies no more than half its height beside its place; a line with a word that would lie farther stays turned.
    """
    x, y = along
    run = (math.copysign(1.0, x), 0.0) if abs(x) > abs(y) else (0.0, math.copysign(1.0, y))
    rise, climb = (-run[1], run[0]), min(abs(x), abs(y))
    words = pieces if climb * length < _LEAST_CLIMB else [word for piece in pieces for word in _words(piece)]
    longest = max((stop - begin for _, begin, stop in words), default=0.0) * length
    if climb * longest > _MOST_CLIMB * size or up[0] * rise[0] + up[1] * rise[1] <= 0:
        return _Steps(along, up, pieces, [(begin * length, 0.0) for _, begin, _ in pieces])
    ahead, higher = (x * side[0] + y * side[1] for side in (run, rise))
    places = []
    for _, begin, stop in words:
        middle = (begin + stop) / 2 * length
        places.append((ahead * middle - (stop - begin) / 2 * length, higher * middle))
    return _Steps(run, rise, words, places)


def _words(piece: Piece) -> Iterator[Piece]:
    """The words of a piece with the blanks behind them, each letter as wide as another."""
    text, begin, stop = piece
    letter = (stop - begin) / len(text)
    for word in _WORD.finditer(text):
        yield word[0], begin + word.start() * letter, begin + word.end() * letter


def _numbers_of(values: Iterable[float]) -> bytes:
    return b" ".join(number_of(value, _STEP_DIGITS) for value in values)


def number_of(value: float, digits: int = 2) -> bytes:
    """As PDF writes numbers: no exponent, no more digits than are needed."""
    written = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return b"0" if written == "-0" else written.encode()
