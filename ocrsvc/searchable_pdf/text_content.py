"""The operators of a PDF's page that write what was read on it, invisibly, over the places where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from ocrsvc.searchable_pdf.page_text import TextLine
from ocrsvc.searchable_pdf.text_font import ADVANCE, DESCENT, FontCodes

Point = tuple[float, float]
ToPoints = Callable[[float, float], Point]
"""From pixels of the page as displayed to points of the page itself, whose y grows upwards."""

_LEAST_POINTS: Final = 0.01
_TURN_DIGITS: Final = 5
_LEAST_STRETCH: Final = 0.1


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
    along = [(one - other) / length for one, other in zip(end, start, strict=True)]
    up = [(one - other) / size for one, other in zip(top, start, strict=True)]
    place = (begin + rise * size * DESCENT for begin, rise in zip(start, up, strict=True))
    turn = b" ".join(number_of(part, _TURN_DIGITS) for part in (*along, *up))
    written = [b"/%b %b Tf %b %b Tm" % (font, number_of(size), turn, b" ".join(map(number_of, place)))]
    at = 0.0
    for text, begin, stop in pieces:
        stretch = max(_LEAST_STRETCH, 100 * (stop - begin) * length / (size * len(text) * ADVANCE))
        moved = number_of((begin - at) * length)
        shown = codes.codes_of(text).hex().encode()
        written.append(b"%b 0 Td %b Tz <%b> Tj" % (moved, number_of(stretch, 1), shown))
        at = begin
    return b"\n".join(written)


def number_of(value: float, digits: int = 2) -> bytes:
    """As PDF writes numbers: no exponent, no more digits than are needed."""
    written = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return b"0" if written == "-0" else written.encode()
