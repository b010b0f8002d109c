"""The operators of a PDF's page that write what was read on it, invisibly, over the places where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ocrsvc.searchable_pdf.page_text import Run
from ocrsvc.searchable_pdf.text_font import ADVANCE, DESCENT, FontCodes

Point = tuple[float, float]
ToPoints = Callable[[float, float], Point]
"""From pixels of the page as displayed to points of the page itself, whose y grows upwards."""

_LEAST_PX: Final = 0.01


def page_content(runs: Iterable[Run], to_points: ToPoints, font: bytes, codes: FontCodes) -> bytes:
    """What a page's stream holds for its text; it leaves the state of what is drawn after it as it was.

    Args:
        runs: In reading order.
        to_points: Where pixels lie on the page.
        font: Its name among the page's resources.
        codes: Of the document, which are added to.
    """
    drawn = b"\n".join(_drawn(runs, to_points, font, codes))
    return b"q BT 3 Tr\n%b\nET Q\n" % drawn


def _drawn(runs: Iterable[Run], to_points: ToPoints, font: bytes, codes: FontCodes) -> Iterator[bytes]:
    size_now = b""
    for text, box in runs:
        if not text:
            continue
        top, _, end, start = [to_points(x, y) for x, y in zip(box[0::2], box[1::2], strict=True)]
        size = max(_LEAST_PX, math.dist(top, start))
        wide = size * len(text) * ADVANCE
        along = [(one - other) / wide for one, other in zip(end, start, strict=True)]
        up = [(one - other) / size for one, other in zip(top, start, strict=True)]
        x, y = (begin + rise * size * DESCENT for begin, rise in zip(start, up, strict=True))
        sized = b"/%b %b Tf\n" % (font, number_of(size))
        matrix = b" ".join(map(number_of, (*along, *up, x, y)))
        yield b"%b%b Tm <%b> Tj" % (
            sized if sized != size_now else b"",
            matrix,
            codes.codes_of(text).hex().encode(),
        )
        size_now = sized


def number_of(value: float) -> bytes:
    """As PDF writes numbers: no exponent, no more digits than places need."""
    written = f"{value:.4f}".rstrip("0").rstrip(".")
    return b"0" if written == "-0" else written.encode()
