"""Writes pages as a PDF of text, with each line where it stood: alone, or invisible over a picture of each page.

Its letters are those of the reader's own font for simplified Chinese (Adobe-GB1: Chinese, Japanese kana, Latin, Greek
and Cyrillic): nothing is embedded, so a page of text takes a kilobyte, and what that set lacks is not shown.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Final

from ocrsvc.records import Line, Page

_POINTS_PER_INCH: Final = 72
# Of the height of a line's box, below the line that letters stand on.
_DESCENT: Final = 0.2
_FONT: Final = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UTF16-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 4 "
    b">> /DW 1000 /W [1 95 500] /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 /FontBBox "
    b"[-25 -254 1000 880] /ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 /StemV 93 >> >>] >>"
)


def text_pdf(pages: Sequence[Page], dpi: int) -> bytes:
    """A PDF with a page for each page, of the same size where that was drawn at `dpi` pixels an inch."""
    return _pdf_of(pages, (None,) * len(pages), dpi)


def picture_pdf(pages: Sequence[Page], pictures: Sequence[bytes], dpi: int) -> bytes:
    """The same, with a picture on each page, whose text is found and copied but not seen.

    Args:
        pages: What was read.
        pictures: A JPEG in colour for each, as wide and high as the page.
        dpi: Pixels of the pictures to an inch.
    """
    return _pdf_of(pages, pictures, dpi)


def _pdf_of(pages: Sequence[Page], pictures: Sequence[bytes | None], dpi: int) -> bytes:
    first, each = 4, 3
    kids = b" ".join(b"%d 0 R" % (first + each * at) for at in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%b] >>" % (len(pages), kids),
        _FONT,
    ]
    for at, (page, picture) in enumerate(zip(pages, pictures, strict=True)):
        objects += _page_objects(page, picture, first + each * at, _POINTS_PER_INCH / dpi)
    return _file_of(objects)


def _page_objects(page: Page, picture: bytes | None, number: int, scale: float) -> list[bytes]:
    """The page, what is drawn on it, and its picture; numbered from `number` on."""
    size = (page.width * scale, page.height * scale)
    lines = [_drawn(line, page.height, scale) for line in page.lines if line.text]
    if picture is not None:
        lines = [b"q %.2f 0 0 %.2f 0 0 cm /P Do Q\n3 Tr" % size, *lines]
    drawn = zlib.compress(b"\n".join(lines))
    used = b"" if picture is None else b" /XObject << /P %d 0 R >>" % (number + 2)
    return [
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %.2f %.2f] /Resources << /Font << /F 3 0 R >>%b >> "
        b"/Contents %d 0 R >>" % (*size, used, number + 1),
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(drawn), drawn),
        b"null" if picture is None else _picture_object(page, picture),
    ]


def _picture_object(page: Page, picture: bytes) -> bytes:
    return (
        b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceRGB /BitsPerComponent 8 "
        b"/Filter /DCTDecode /Length %d >>\nstream\n%b\nendstream" % (page.width, page.height, len(picture), picture)
    )


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


def _file_of(objects: Sequence[bytes]) -> bytes:
    written, places = b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n", []
    parts = [written]
    at = len(written)
    for number, content in enumerate(objects, 1):
        part = b"%d 0 obj\n%b\nendobj\n" % (number, content)
        places.append(b"%010d 00000 n \n" % at)
        parts.append(part)
        at += len(part)
    table = b"xref\n0 %d\n0000000000 65535 f \n%b" % (len(objects) + 1, b"".join(places))
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, at)
    return b"".join([*parts, table, end])
