"""Writes pages as a PDF of text, with each line where it stood.

The font is the viewer's own for simplified Chinese (Adobe-GB1: Chinese, Japanese kana, Latin, Greek and Cyrillic): it
is not embedded, so a page of text takes a kilobyte, and other characters are not shown.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import IO, Final

from ocrsvc.records import Line, Page

_POINTS_PER_INCH: Final = 72
# After the catalogue, the list of pages and the font: a page and its content each.
_FIRST_PAGE, _OBJECTS_PER_PAGE = 4, 2
# The part of a line's height that lies below the base line.
_DESCENT: Final = 0.2
_FONT: Final = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UTF16-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 4 "
    b">> /DW 1000 /W [1 95 500] /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 /FontBBox "
    b"[-25 -254 1000 880] /ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 /StemV 93 >> >>] >>"
)


def write_text_pdf(pages: Iterable[Page], count: int, dpi: int, output: IO[bytes]) -> None:
    """Write a PDF of `count` pages that were drawn at `dpi`; memory holds one of them."""
    file = _PdfFile(output)
    kids = b" ".join(b"%d 0 R" % (_FIRST_PAGE + _OBJECTS_PER_PAGE * at) for at in range(count))
    file.add(b"<< /Type /Catalog /Pages 2 0 R >>")
    file.add(b"<< /Type /Pages /Count %d /Kids [%b] >>" % (count, kids))
    file.add(_FONT)
    for at, page in enumerate(pages):
        for content in _page_objects(page, _FIRST_PAGE + _OBJECTS_PER_PAGE * at, _POINTS_PER_INCH / dpi):
            file.add(content)
    file.finish()


class _PdfFile:
    """Writes a file of numbered objects."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output, self._at = output, 0
        self._places: list[int] = []
        self._write(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")

    def add(self, content: bytes) -> None:
        self._places.append(self._at)
        self._write(b"%d 0 obj\n%b\nendobj\n" % (len(self._places), content))

    def finish(self) -> None:
        begin, size = self._at, len(self._places) + 1
        self._write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
        for place in self._places:
            self._write(b"%010d 00000 n \n" % place)
        self._write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, begin))

    def _write(self, data: bytes) -> None:
        self._output.write(data)
        self._at += len(data)


def _page_objects(page: Page, number: int, scale: float) -> list[bytes]:
    """A page and its content, numbered from `number` on."""
    drawn = zlib.compress(b"\n".join(_drawn(line, page.height, scale) for line in page.lines if line.text))
    return [
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %.2f %.2f] /Resources << /Font << /F 3 0 R >> >> "
        b"/Contents %d 0 R >>" % (page.width * scale, page.height * scale, number + 1),
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(drawn), drawn),
    ]


def _drawn(line: Line, height: int, scale: float) -> bytes:
    """The operators that write one line: as wide as the lower side of its box, as high as its left one."""
    top, _, end, start = [(x * scale, (height - y) * scale) for x, y in line.box]
    size = max(1.0, math.dist(top, start))
    wide = sum(0.5 if letter.isascii() else 1.0 for letter in line.text) * size
    stretch = max(1.0, 100 * math.dist(start, end) / wide)
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = start[0] - sin * size * _DESCENT, start[1] + cos * size * _DESCENT
    shown = line.text.encode("utf-16-be", "replace").hex().upper().encode()
    return b"BT /F %.2f Tf %.2f Tz %.5f %.5f %.5f %.5f %.2f %.2f Tm <%b> Tj ET" % (
        *(size, stretch, cos, sin, -sin, cos, x, y),
        shown,
    )
