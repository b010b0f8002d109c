"""PDF pages with text layers of many kinds: fonts with and without Unicode maps, scans, rotated pages."""

import zlib
from collections.abc import Mapping
from contextlib import closing

from documents import pdf, stream

from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import open_document
from ocrsvc.results import ReadOptions

SIZE = (300, 200)
"""Page size in points, 833 x 555 px at 200 dpi."""

HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding %s >>"


def page_pdf(
    *contents: bytes,
    page: bytes = b"",
    font: bytes = HELVETICA % b"",
    more: Mapping[int, bytes] | None = None,
    resources: bytes = b"",
) -> bytes:
    """Return a PDF with the font /F, Helvetica as /S, and `more` objects, which begin at number 50."""
    objects = {3: font, 4: HELVETICA % b"", **(more or {})}
    return pdf(*contents, size=SIZE, page=page, resources=resources, fonts=b"/F 3 0 R /S 4 0 R", objects=objects)


def text(line: bytes, x: float = 20, y: float = 150, size: float = 12, more: bytes = b"") -> bytes:
    """Return the content stream of a line of text; `more` are operators before it."""
    escaped = line.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
    return b"BT /F %g Tf %s %g %g Td (%s) Tj ET\n" % (size, more, x, y, escaped)


def mapped(pairs: Mapping[int, str]) -> tuple[bytes, dict[int, bytes]]:
    """Return a font that maps these codes to these texts, and the object of its Unicode map."""
    rows = b"".join(b"<%02X> <%s>\n" % (code, one.encode("utf-16-be").hex().encode()) for code, one in pairs.items())
    head = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /M def /CMapType 2 def\n"
        b"1 begincodespacerange <00> <FF> endcodespacerange\n"
    )
    cmap = head + b"%d beginbfchar\n%sendbfchar endcmap end end" % (len(pairs), rows)
    return HELVETICA % b"/ToUnicode 50 0 R", {50: stream(cmap)}


def type3() -> tuple[bytes, dict[int, bytes]]:
    """Return a font of bars whose glyph names have no meaning."""
    glyphs = b" ".join(b"/g%d 51 0 R" % code for code in range(65, 91))
    differences = b" ".join(b"/g%d" % code for code in range(65, 91))
    font = (
        b"<< /Type /Font /Subtype /Type3 /FontBBox [0 0 600 700] /FontMatrix [0.001 0 0 0.001 0 0] /FirstChar 65 "
        b"/LastChar 90 /Widths [%s] /CharProcs << %s >> /Encoding << /Type /Encoding /Differences [65 %s] >> "
        b"/Resources << >> >>"
    ) % (b"600 " * 26, glyphs, differences)
    return font, {51: stream(b"600 0 0 0 500 700 d1 0 0 100 700 re f 400 0 100 700 re f 0 300 500 80 re f")}


def image(name: bytes = b"I", width: int = 300, height: int = 200, x: int = 0, y: int = 0) -> bytes:
    return b"q %d 0 0 %d %d %d cm /%s Do Q\n" % (width, height, x, y, name)


def with_image(pixels: bytes, width: int, height: int) -> dict[str, object]:
    """Return arguments of `page_pdf` that add a gray image of these pixels to each page."""
    packed = zlib.compress(pixels)
    body = (
        b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8 "
        b"/Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream"
    ) % (width, height, len(packed), packed)
    return {"more": {60: body}, "resources": b"/XObject << /I 60 0 R >>"}


def own_lines(file: bytes, mode: str = "auto") -> list[str]:
    options = ReadOptions(text_layer=mode)  # type: ignore[arg-type]
    with closing(open_document(file, PixelLimits(1 << 27), 200, bool, bool)) as document:
        page = document.own_page(1, options, bool, bool)
    assert page is not None
    return [line.text for line in page.text.lines]
