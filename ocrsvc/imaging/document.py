"""Opens a file as a document of one or more pages, and makes each page an image.

A PDF and a TIFF may have several pages. Of all other formats a file is one page: of a GIF or an animated PNG or WebP,
the first frame.
"""

from __future__ import annotations

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
from ocrsvc.imaging.page_ranges import ALL, Ranges, choose
from ocrsvc.imaging.pdf.characters import PageFrame
from ocrsvc.imaging.pdf.open_pdf import DrawingLimits, Pdf
from ocrsvc.imaging.pdf.own_text import CHARACTER_BYTES, MOST_CHARACTERS, OwnPage, own_text
from ocrsvc.imaging.pdf.page_look import look_frame
from ocrsvc.results import Image, OwnText, ReadOptions
from ocrsvc.system.child_process import Check

TakeMemory = Callable[[int], object]
"""Asks for so many bytes before they are allocated; raises QueueFull or BodyTooLarge."""

# In the memory that a PDF's child draws into.
_CANVAS_BYTES_PER_PIXEL: Final = 4

_PDF: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,16}%PDF-")
_TIFF: Final = next(pattern for pattern, opener in FORMATS if opener is open_tiff)


class Document:
    """A file that is open, here an image or a TIFF of several pages; `close` it. For one thread.

    `kind` is for people: PDF, TIFF or image; `count` are its pages, `file_bytes` what the whole file holds. `pages` are
    the places of a TIFF's directories.
    """

    def __init__(self, data: bytes, limits: PixelLimits, pages: Sequence[int] = ()) -> None:
        self._data, self._limits, self._pages = data, limits, pages
        self.kind, self.count, self.file_bytes = "TIFF" if pages else "image", len(pages) or 1, len(data)

    def open(
        self, number: int, *, gray: bool, check: Check, take: TakeMemory, to_read: bool = False
    ) -> EncodedImage | Image:
        """One page, from 1: to be decoded, with its header checked against the limits, or, of a PDF, drawn.

        `take` is asked for the pixels that are drawn. With `to_read`, a page of a PDF that is one image is drawn at
        that image's own resolution: enlarged or shrunk, it reads worse. Raises as `codecs.decode`, `check`, `take` do.
        """
        del gray, take, to_read
        if not self._pages:
            return open_encoded_image(self._data, self._limits)
        check()
        encoded = open_tiff(self._data, self._pages[number - 1])
        check_size(encoded, self._limits)
        return encoded

    def file(self, number: int, take: TakeMemory) -> bytes | None:
        """An image file whose first page it is, for whose copy `take` is asked; None of a PDF."""
        if not self._pages:
            return self._data
        take(len(self._data))
        return begin_with(self._data, self._pages[number - 1])

    def key(self, number: int) -> bytes:
        """The page's key in the result cache: bytes that are equal only for the same page."""
        return b"tiff %d " % number + self._digest if self._pages else self._data

    def own_page(self, number: int, options: ReadOptions, check: Check, take: TakeMemory) -> OwnPage | None:
        """The text that a page of a PDF has itself, and how large the page is; None of an image.

        `options.text_layer` is not "ignore". `take` is asked for the memory of the search, and no longer. Raises as
        `open` does, but for damage of the text alone only where no other is wanted: else the page has none. Raises
        BadOption for a region outside of the page, and for an image where no other text is wanted.
        """
        del number, check, take
        if options.text_layer == "only":
            raise BadOption(
                "Only the text that a PDF has itself is asked for, and this file is an image.",
                "Ask for images to be read, too, or send a PDF.",
            )
        return None

    def close(self) -> None:
        """Give everything back."""

    @cached_property
    def _digest(self) -> bytes:
        return blake2b(self._data, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """One page of an open document: what is read instead of a file."""

    document: Document
    number: int

    @property
    def is_drawn_in_child(self) -> bool:
        """Whether another process draws it, so that decoders here do not bound it."""
        return isinstance(self.document, _PdfDocument)


def is_pdf(data: bytes | memoryview) -> bool:
    """Whether the first bytes are those of a PDF."""
    return _PDF.match(data[:32]) is not None


def may_have_pages(data: bytes | memoryview) -> bool:
    """Whether the file is of a kind that may have several pages."""
    return is_pdf(data) or _TIFF.match(data[:32]) is not None


def open_document(data: bytes, limits: PixelLimits, dpi: int, check: Check, take: TakeMemory) -> Document:
    """A file as a document, whose pages, if it is a PDF, are drawn at `dpi`; 0 reads none.

    `take` is asked for what an open PDF holds beside the pixels of its pages. Raises UnsupportedImage for a PDF where
    none are read; EncryptedDocument, BrokenImage, TooManyPages if it cannot be opened.
    """
    if is_pdf(data):
        if not dpi:
            raise UnsupportedImage("This is a PDF, and this service reads none.", f"Send one of: {SUPPORTED}.")
        return _PdfDocument(data, limits, dpi, check, take)
    pages = find_pages(data) if may_have_pages(data) else []
    return Document(data, limits, pages if len(pages) > 1 else ())


def chosen_pages(document: Document, ranges: Ranges, most: int, *, cut: bool) -> Sequence[int]:
    """The numbers of the pages that are to be read: `most` of them, if too many are to be cut.

    Raises BadOption if it has none of them, else TooManyPages.
    """
    numbers = choose(ranges, document.count)
    if not numbers:
        pages = "1 page" if document.count == 1 else f"{document.count} pages"
        raise BadOption(f"None of the pages asked for is there: the {document.kind} has {pages}.")
    if len(numbers) > most and not cut:
        asked = "" if ranges == ALL else f", of which {len(numbers)} are asked for"
        raise TooManyPages(
            f"This {document.kind} has {document.count} pages{asked}; the limit is {most} (OCRSVC_MAX_PAGES).",
            f"Ask for {most} at most at a time, or leave it as a job: POST /v1/jobs.",
        )
    return numbers[:most]


class _PdfDocument(Document):
    def __init__(self, data: bytes, limits: PixelLimits, dpi: int, check: Check, take: TakeMemory) -> None:
        super().__init__(data, limits)
        self._take, self._canvas_bytes = take, 0
        # The child has the file in memory, too.
        take(len(data))
        most_pixels = min(limits.max_pixels, limits.by_format.get("pdf", limits.max_pixels))
        self._drawing = DrawingLimits(dpi, most_pixels, limits.max_side)
        self._pdf = Pdf(data, self._drawing, check)
        self.kind, self.count = "PDF", self._pdf.count

    def open(self, number: int, *, gray: bool, check: Check, take: TakeMemory, to_read: bool = False) -> Image:
        check()
        frame = self._pdf.measure(number, check)
        own = self._pdf.measure_image(number, check) if to_read else None
        width, height = own or frame
        # The canvas stays as large as the largest page so far.
        more_bytes = max(0, width * height * _CANVAS_BYTES_PER_PIXEL - self._canvas_bytes)
        self._take(more_bytes)
        self._canvas_bytes += more_bytes
        take(width * height * (1 if gray else 3))
        drawn = self._pdf.draw(number, (width, height), check, gray=gray, is_image=own is not None)
        return Image(drawn, "pdf", frame)

    def file(self, number: int, take: TakeMemory) -> None:
        del number, take

    def key(self, number: int) -> bytes:
        limits = self._drawing
        return b"pdf %d %d %d %d " % (number, limits.dpi, limits.most_pixels, limits.longest_side) + self._digest

    def own_page(self, number: int, options: ReadOptions, check: Check, take: TakeMemory) -> OwnPage:
        check()
        width, height = self._pdf.measure(number, check)
        if options.region is not None:
            options = replace(options, region=clip_region(options.region, width, height))
        frame = PageFrame(width, height)
        if options.text_layer != "only":
            frame = look_frame(width, height, self._drawing.dpi)
        try:
            return OwnPage(width, height, self._own_text(number, frame, options, check, take))
        except BrokenImage:
            if options.text_layer == "only":
                raise
            return OwnPage(width, height, OwnText(()))

    def _own_text(self, number: int, frame: PageFrame, options: ReadOptions, check: Check, take: TakeMemory) -> OwnText:
        count = self._pdf.count_characters(number, check)
        if count > MOST_CHARACTERS:
            raise BrokenImage(
                f"Page {number} of this PDF has {count} characters; {MOST_CHARACTERS} are taken of a page.",
                "Send text_layer=ignore, which reads the page as it is drawn.",
            )
        take(CHARACTER_BYTES * count + frame.small_width * frame.small_height)
        return own_text(*self._pdf.characters(number, count, frame, check), frame, options)

    def close(self) -> None:
        self._pdf.close()
