"""Writes pages as a PDF of text alone, with each line in its place.

The font is not embedded: viewers use theirs for simplified Chinese (Adobe-GB1: Chinese, Japanese kana, Latin, Greek and
Cyrillic), so a page takes about a kilobyte and other characters are not displayed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import IO, Final

from ocrsvc.formats.pdf.image_pdf import PdfObjects
from ocrsvc.results import Line, Page

_POINTS_PER_INCH: Final = 72
# Objects 1 to 3 are catalogue, page list and font; each page adds itself and its content.
_FIRST_PAGE, _OBJECTS_PER_PAGE = 4, 2
# Fraction of a line's height below the baseline.
_DESCENT: Final = 0.2
_FONT: Final = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UTF16-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 4 "
    b">> /DW 1000 /W [1 95 500] /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 /FontBBox "
    b"[-25 -254 1000 880] /ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 /StemV 93 >> >>] >>"
)


def write_text_pdf(pages: Iterable[Page], count: int, dpi: int, output: IO[bytes]) -> None:
    """Write a PDF of `count` pages rendered at `dpi`, one page at a time."""
    pdf = PdfObjects(output)
    kids = b" ".join(b"%d 0 R" % (_FIRST_PAGE + _OBJECTS_PER_PAGE * at) for at in range(count))
    pdf.add(1, [b"<< /Type /Catalog /Pages 2 0 R >>"])
    pdf.add(2, [b"<< /Type /Pages /Count %d /Kids [%b] >>" % (count, kids)])
    pdf.add(3, [_FONT])
    for at, page in enumerate(pages):
        number, scale = _FIRST_PAGE + _OBJECTS_PER_PAGE * at, _POINTS_PER_INCH / dpi
        frame = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %.2f %.2f] " % (page.width * scale, page.height * scale)
        pdf.add(number, [frame, b"/Resources << /Font << /F 3 0 R >> >> /Contents %d 0 R >>" % (number + 1)])
        drawn = zlib.compress(b"\n".join(_drawn(line, page.height, scale) for line in page.lines if line.text))
        pdf.add_stream(number + 1, b"/Filter /FlateDecode", [drawn])
    pdf.end()


def _drawn(line: Line, height: int, scale: float) -> bytes:
    """The operators of one line: as wide as the lower side of its box, as high as the left one."""
    top, _, end, start = [(x * scale, (height - y) * scale) for x, y in line.box]
    size = max(1.0, math.dist(top, start))
    wide = sum(0.5 if character.isascii() else 1.0 for character in line.text) * size
    stretch = max(1.0, 100 * math.dist(start, end) / wide)
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = start[0] - sin * size * _DESCENT, start[1] + cos * size * _DESCENT
    shown = line.text.encode("utf-16-be", "replace").hex().upper().encode()
    return b"BT /F %.2f Tf %.2f Tz %.5f %.5f %.5f %.5f %.2f %.2f Tm <%b> Tj ET" % (
        *(size, stretch, cos, sin, -sin, cos, x, y),
        shown,
    )
