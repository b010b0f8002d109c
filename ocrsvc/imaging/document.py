"""Opens an image, TIFF or PDF as a document of one or more pages, and each page as an image."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Final

from ocrsvc.errors import BadOption, BrokenImage, TooManyPages, UnsupportedImage
from ocrsvc.imaging.codecs.decode import FORMATS, SUPPORTED, PixelLimits, check_size, open_encoded_image
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.imaging.codecs.gif_and_tiff import open_tiff
from ocrsvc.imaging.codecs.tiff_directories import begin_with, find_pages
from ocrsvc.imaging.engine_input import clip_region
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose, no_such_pages
from ocrsvc.imaging.pdf.characters import PageFrame
from ocrsvc.imaging.pdf.open_pdf import CANVAS_BYTES_PER_PIXEL, DrawingLimits, Pdf
from ocrsvc.imaging.pdf.own_text import CHARACTER_BYTES, OwnPage, own_text
from ocrsvc.imaging.pdf.page_look import look_frame
from ocrsvc.results import Check, Image, OwnText, ReadOptions

TakeMemory = Callable[[int], object]
"""Reserves bytes before they are allocated. Raises QueueFull or BodyTooLarge."""

_PDF: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,16}%PDF-")
_TIFF: Final = next(pattern for pattern, opener in FORMATS if opener is open_tiff)


class Document:
    """An open file: an image, or a TIFF with directories at the offsets `pages`. Not thread-safe; needs a `close`.

    `kind` is PDF, TIFF or image, for messages; `count` is the number of pages.
    """

    def __init__(self, data: bytes, limits: PixelLimits, pages: Sequence[int] = ()) -> None:
        self._data, self._limits, self._pages = data, limits, pages
        self.kind, self.count, self.file_bytes = "TIFF" if pages else "image", len(pages) or 1, len(data)

    def open(
        self, number: int, *, gray: bool, check: Check, take: TakeMemory, to_read: bool = False
    ) -> EncodedImage | Image:
        """Open page `number`, from 1: an encoded image whose header was checked, or a drawn page of a PDF.

        `take` reserves memory for drawn pixels. With `to_read`, a PDF page that consists of one image is drawn at the
        image's resolution, because scaling makes recognition worse. Raises as `codecs.decode`, `check` and `take` do.
        """
        del gray, take, to_read
        if not self._pages:
            return open_encoded_image(self._data, self._limits)
        check()
        encoded = open_tiff(self._data, self._pages[number - 1])
        check_size(encoded, self._limits)
        return encoded

    def file(self, number: int, take: TakeMemory) -> bytes | None:
        """An image file whose first page is this page; None for a PDF. `take` reserves memory if the file is copied."""
        if not self._pages:
            return self._data
        take(len(self._data))
        return begin_with(self._data, self._pages[number - 1])

    def key(self, number: int) -> bytes:
        """The page's key in the result cache, made of the file's content, the page number and the drawing limits."""
        return b"tiff %d " % number + self._digest if self._pages else self._data

    def own_page(self, number: int, options: ReadOptions, check: Check, take: TakeMemory) -> OwnPage | None:
        """The text layer and size of a PDF page; None for an image. A damaged text layer counts as empty.

        Raises as `open` does, and BadOption for a region outside the page. With text_layer=only an image raises
        BadOption, and a damaged text layer BrokenImage.
        """
        del number, check, take
        if options.text_layer == "only":
            raise BadOption(
                "The request asks for text layers only, and this file is an image.",
                "Send a PDF, or let the engine read the image.",
            )
        return None

    def close(self) -> None:
        """Release all resources."""

    @cached_property
    def _digest(self) -> bytes:
        return blake2b(self._data, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """One page of an open document."""

    document: Document
    number: int


def is_pdf(data: bytes | memoryview) -> bool:
    """Whether a file begins as a PDF does."""
    return _PDF.match(data[:32]) is not None


def may_have_pages(data: bytes | memoryview) -> bool:
    """Whether the file is a PDF or a TIFF, which may have several pages."""
    return is_pdf(data) or _TIFF.match(data[:32]) is not None


def open_document(data: bytes, limits: PixelLimits, dpi: int, check: Check, take: TakeMemory) -> Document:
    """Open a file as a document; PDF pages are drawn at `dpi`, and 0 refuses PDFs with UnsupportedImage.

    `take` reserves memory for an open PDF without its pages. Raises EncryptedDocument, BrokenImage, TooManyPages.
    """
    if is_pdf(data):
        if not dpi:
            raise UnsupportedImage("This is a PDF, and this service reads none.", f"Send one of: {SUPPORTED}.")
        return _PdfDocument(data, limits, dpi, check, take)
    pages = find_pages(data) if may_have_pages(data) else []
    return Document(data, limits, pages if len(pages) > 1 else ())


def chosen_pages(document: Document, ranges: Ranges, max_pages: int, *, cut: bool) -> Sequence[int]:
    """The pages to read: at most `max_pages` if `cut`, else raises TooManyPages for more. Raises BadOption for none."""
    numbers = choose(ranges, document.count)
    if not numbers:
        raise no_such_pages(document.kind, document.count)
    if len(numbers) > max_pages and not cut:
        requested = "" if ranges == ALL else f", of which {len(numbers)} are requested"
        raise TooManyPages(
            f"This {document.kind} has {document.count} pages{requested}; the limit is {max_pages} (OCRSVC_MAX_PAGES).",
            f"Request at most {max_pages} pages at a time, or submit a job: POST /v1/jobs.",
        )
    return numbers[:max_pages]


class _PdfDocument(Document):
    def __init__(self, data: bytes, limits: PixelLimits, dpi: int, check: Check, take: TakeMemory) -> None:
        super().__init__(data, limits)
        self._take, self._canvas_bytes = take, 0
        # Reserve memory for the child process's copy of the file.
        take(len(data))
        max_pixels = min(limits.max_pixels, limits.by_format.get("pdf", limits.max_pixels))
        self._drawing = DrawingLimits(dpi, max_pixels, limits.max_side)
        self._pdf = Pdf(data, self._drawing, check)
        self.kind, self.count = "PDF", self._pdf.count

    def open(self, number: int, *, gray: bool, check: Check, take: TakeMemory, to_read: bool = False) -> Image:
        check()
        frame = self._pdf.measure(number, check)
        own = self._pdf.measure_image(number, check) if to_read else None
        width, height = own or frame
        # The PDF's canvas never shrinks, so only its growth is reserved.
        more_bytes = max(0, width * height * CANVAS_BYTES_PER_PIXEL - self._canvas_bytes)
        self._take(more_bytes)
        self._canvas_bytes += more_bytes
        take(width * height * (1 if gray else 3))
        drawn = self._pdf.draw(number, (width, height), check, gray=gray, is_image=own is not None)
        return Image(drawn, "pdf", frame)

    def file(self, number: int, take: TakeMemory) -> None:
        del number, take

    def key(self, number: int) -> bytes:
        limits = self._drawing
        return b"pdf %d %d %d %d " % (number, limits.dpi, limits.max_pixels, limits.longest_side) + self._digest

    def own_page(self, number: int, options: ReadOptions, check: Check, take: TakeMemory) -> OwnPage:
        check()
        width, height = self._pdf.measure(number, check)
        if options.region is not None:
            options = replace(options, region=clip_region(options.region, width, height))
        only = options.text_layer == "only"
        frame = PageFrame(width, height) if only else look_frame(width, height, self._drawing.dpi)
        try:
            count = self._pdf.count_characters(number, check)
            take(CHARACTER_BYTES * count + frame.small_width * frame.small_height)
            text = own_text(*self._pdf.characters(number, count, frame, check), frame, options)
        except BrokenImage:
            if only:
                raise
            text = OwnText(())
        return OwnPage(width, height, text)

    def close(self) -> None:
        self._pdf.close()
