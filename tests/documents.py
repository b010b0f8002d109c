"""Documents for tests: PDF files assembled from objects, TIFF files written by Pillow."""

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from tempfile import TemporaryFile
from typing import Any

import pypdfium2
from PIL import Image

from ocrsvc.formats.pdf.searchable import lay_over_pages
from ocrsvc.formats.pdf.text_lines import text_of
from ocrsvc.imaging.pdf.open_pdf import DrawingLimits, Pdf
from ocrsvc.results import Check, Page, Pixels, no_check

HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf(
    *contents: bytes,
    size: tuple[float, float] = (72, 36),
    extra: bytes = b"",
    page: bytes = b"",
    resources: bytes = b"",
    fonts: bytes = b"/F 3 0 R",
    objects: Mapping[int, bytes] | None = None,
) -> bytes:
    """A PDF with a page for each content stream; `size` is in points.

    `extra` is added to the catalog, `page` and `resources` to every page's dictionaries. `objects` may use the numbers
    3 to 9 and 50 upwards.
    """
    kids = b" ".join(b"%d 0 R" % (10 + 2 * index) for index in range(len(contents)))
    whole = {1: b"<< /Type /Catalog /Pages 2 0 R %s >>" % extra, 3: HELVETICA, **(objects or {})}
    whole[2] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents))
    head = b"/Type /Page /Parent 2 0 R /MediaBox [0 0 %g %g] %s " % (*size, page)
    for index, content in enumerate(contents):
        number = 10 + 2 * index
        own = b"/Contents %d 0 R /Resources << /Font << %s >> %s >>" % (number + 1, fonts, resources)
        whole[number], whole[number + 1] = b"<< %s %s >>" % (head, own), stream(content)
    return assemble(whole)


def stream(content: bytes, head: bytes = b"") -> bytes:
    packed = zlib.compress(content)
    return b"<< %s /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (head, len(packed), packed)


def assemble(objects: dict[int, bytes], trailer: bytes = b"") -> bytes:
    body, places = b"%PDF-1.7\n", {}
    for number, content in sorted(objects.items()):
        places[number] = len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    rows = b"".join(
        b"%010d %05d %s \n" % ((places[number], 0, b"n") if number in places else (0, 65535, b"f"))
        for number in range(max(objects) + 1)
    )
    count = max(objects) + 1
    end = b"xref\n0 %d\n%strailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF"
    return body + end % (count, rows, count, trailer, len(body))


BLACK = b"0 g 0 0 10000 10000 re f"
GRAY = b"0.5 g 0 0 10000 10000 re f"


def tiff(widths: Sequence[int], kinds: Sequence[int] | None = None, **how: Any) -> bytes:
    """A TIFF of gray pages with these widths, 32 px high; `kinds` are their NewSubfileType values."""
    file = io.BytesIO()
    pages = [Image.new("L", (width, 32), 128) for width in widths]
    for page, kind in zip(pages, kinds or [0] * len(pages), strict=True):
        page.encoderinfo = {"tiffinfo": {254: kind}}
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:], **how)
    return file.getvalue()


@contextmanager
def open_pdf(data: bytes, max_pixels: int = 1_000_000, check: Check = no_check) -> Iterator[Pdf]:
    """Open a PDF; its pages are drawn at 72 dpi and at most 1000 px long."""
    with closing(Pdf(data, DrawingLimits(72, max_pixels, 1000), check)) as document:
        yield document


def drawn(document: Pdf, number: int = 1, *, gray: bool = True) -> Pixels:
    return document.draw(number, document.measure(number, no_check), no_check, gray=gray)


def page_texts(data: bytes) -> list[str]:
    """The text that pdfium extracts from each page."""
    with pypdfium2.PdfDocument(data) as document:
        return [page.get_textpage().get_text_range() for page in document]


def with_text(raw: bytes, pages: Sequence[Page], limit_s: float = 20.0) -> bytes:
    """Add a text layer with the lines of `pages` to a PDF."""
    output = io.BytesIO()
    with TemporaryFile() as file:
        file.write(raw)
        file.flush()
        lay_over_pages(file, map(text_of, pages), output, limit_s, no_check)
    return output.getvalue()
