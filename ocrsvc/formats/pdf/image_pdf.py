"""Writes a PDF of images with invisible text, page by page; memory holds one page."""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from ocrsvc.formats.document import Output
from ocrsvc.formats.pdf.font import FontCodes, FontParts, font_parts
from ocrsvc.formats.pdf.page_image import PageImage
from ocrsvc.formats.pdf.text_content import PageFrame, number_of, page_content
from ocrsvc.formats.pdf.text_lines import PageText

_CATALOG, _PAGES, _FONT, _LETTERS, _DESCRIPTION, _TO_UNICODE, _TO_GLYPH, _FONT_FILE = range(1, 9)
_FIRST_PAGE: Final = 9
# Each page is three objects: the page, its content stream and its image.
_OBJECTS_OF_PAGE: Final = 3
_BLANK_POINTS: Final = (595, 842)

_TURNS: Final = {
    1: (1, 0, 0, 1, 0, 0),
    2: (-1, 0, 0, 1, 1, 0),
    3: (-1, 0, 0, -1, 1, 1),
    4: (1, 0, 0, -1, 0, 1),
    5: (0, -1, -1, 0, 1, 1),
    6: (0, -1, 1, 0, 0, 1),
    7: (0, 1, 1, 0, 0, 0),
    8: (0, 1, -1, 0, 1, 0),
}
"""By EXIF orientation: the PDF matrix (a to f) that turns the stored image upright within the unit square."""


class PdfObjects:
    """Writes the numbered objects of a PDF; the first is the catalog, and `end` completes the file.

    Every method raises OSError.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._places: dict[int, int] = {}
        self._size, self._hash = 0, hashlib.sha256()
        self._write([b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n"])

    def add(self, number: int, content: Iterable[bytes | memoryview]) -> None:
        """Write the object with this number, whose content is given in pieces."""
        self._places[number] = self._size
        self._write([b"%d 0 obj\n" % number, *content, b"\nendobj\n"])

    def add_stream(self, number: int, head: bytes, content: Sequence[bytes | memoryview]) -> None:
        """Write a stream object; `head` are the entries of its dictionary."""
        size = sum(map(len, content))
        self.add(number, [b"<< %b /Length %d >>\nstream\n" % (head, size), *content, b"\nendstream"])

    def end(self) -> None:
        """Write the cross-reference table and trailer, with a hash of the content as file ID."""
        place, count = self._size, len(self._places) + 1
        rows = b"".join(b"%010d 00000 n \n" % self._places[number] for number in range(1, count))
        name = self._hash.hexdigest()[:32].encode()
        table = b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, rows)
        trailer = b"trailer\n<< /Size %d /Root %d 0 R /ID [<%b> <%b>] >>\n" % (count, _CATALOG, name, name)
        self._write([table, trailer, b"startxref\n%d\n%%%%EOF\n" % place])

    def _write(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            self._output.write(part)
            self._hash.update(part)
            self._size += len(part)


class ImagePdf(PdfObjects):
    """Writes a PDF with an image per page; `finish` completes the file."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._pages = 0
        self._codes = FontCodes()

    def add_page(self, image: PageImage, text: PageText | None) -> None:
        """Add a page with this image and its text, if any."""
        wide, high = image.size_points
        number = _FIRST_PAGE + _OBJECTS_OF_PAGE * self._pages
        turn = _TURNS[image.orientation]
        matrix = [part * side for part, side in zip(turn, (wide, high) * 3, strict=True)]
        content = b"q %b cm /I Do Q\n" % b" ".join(map(number_of, matrix))
        if text is not None and text.lines:
            to_points = PageFrame((0.0, 0.0, wide, high), 0).to_points(text.width, text.height)
            content += page_content(text.lines, to_points, b"F", self._codes)
        resources = b"/Font << /F %d 0 R >> /XObject << /I %d 0 R >>" % (_FONT, number + 2)
        self._add_page(number, (wide, high), resources)
        self.add_stream(number + 1, b"/Filter /FlateDecode", [zlib.compress(content, 9)])
        size = b"/Type /XObject /Subtype /Image /Width %d /Height %d " % (image.width, image.height)
        self.add_stream(number + 2, size + image.head, image.content)
        self._pages += 1

    def add_blank_page(self) -> None:
        """Add a blank page in place of one that cannot be shown."""
        number = _FIRST_PAGE + _OBJECTS_OF_PAGE * self._pages
        self._add_page(number, _BLANK_POINTS, b"")
        self.add_stream(number + 1, b"", [])
        self.add(number + 2, [b"null"])
        self._pages += 1

    def finish(self) -> None:
        """Write the catalog, the page tree and the font."""
        numbers = range(_FIRST_PAGE, _FIRST_PAGE + _OBJECTS_OF_PAGE * self._pages, _OBJECTS_OF_PAGE)
        kids = b" ".join(b"%d 0 R" % number for number in numbers)
        self.add(_CATALOG, [b"<< /Type /Catalog /Pages %d 0 R >>" % _PAGES])
        self.add(_PAGES, [b"<< /Type /Pages /Count %d /Kids [%b] >>" % (self._pages, kids)])
        self._add_font(font_parts(self._codes))
        self.end()

    def _add_page(self, number: int, size: tuple[float, float], resources: bytes) -> None:
        wide, high = map(number_of, size)
        head = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 %b %b] " % (_PAGES, wide, high)
        self.add(number, [head, b"/Resources << %b >> /Contents %d 0 R >>" % (resources, number + 1)])

    def _add_font(self, parts: FontParts) -> None:
        references = b"/DescendantFonts [%d 0 R] /ToUnicode %d 0 R >>" % (_LETTERS, _TO_UNICODE)
        self.add(_FONT, [parts.font[:-2], references])
        references = b"/FontDescriptor %d 0 R /CIDToGIDMap %d 0 R >>" % (_DESCRIPTION, _TO_GLYPH)
        self.add(_LETTERS, [parts.letters[:-2], references])
        self.add(_DESCRIPTION, [parts.description[:-2], b"/FontFile2 %d 0 R >>" % _FONT_FILE])
        self.add_stream(_TO_UNICODE, b"/Filter /FlateDecode", [parts.to_unicode])
        self.add_stream(_TO_GLYPH, b"/Filter /FlateDecode", [parts.to_glyph])
        self.add_stream(_FONT_FILE, b"/Filter /FlateDecode /Length1 %d" % parts.file_bytes, [parts.file])
