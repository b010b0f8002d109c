"""Searchable PDF: the pages of a PDF with an invisible text layer, or a page per image.

Text is added to a PDF by a child process with limits of memory and time, as in `ocrsvc.imaging.pdf.open_pdf`.
"""

import heapq
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import orjson

from ocrsvc.errors import BrokenImage, CallerError, DeadlineExceeded
from ocrsvc.formats.document import DocumentResult, Output, PictureOf
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.page_image import page_image
from ocrsvc.formats.pdf.text_lines import PageText, text_of
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.codecs.tiff_directories import find_pages
from ocrsvc.imaging.document import is_pdf, may_have_pages
from ocrsvc.results import Check, Page
from ocrsvc.system.child_process import ChildFailed, ChildLate, ChildProcess

# No practical limit: images were checked against the limits when they were recognized.
_LIMITS: Final = PixelLimits(1 << 40)
_COPIED_BYTES: Final = 1 << 20
_CHILD: Final = "ocrsvc.formats.pdf.text_layer_child"
_CHILD_BYTES: Final = 192 << 20
# The result is limited to this factor times PDF and text, plus _MORE_BYTES: decompressed data may be huge.
_GROWTH: Final = 2
_MORE_BYTES: Final = 64 << 20
_REMEDY: Final = "Ask for another output format, such as text."

NumberedText = tuple[int, PageText | CallerError]
"""A page's number in its file, and its text, or the error raised when it was read."""


def write_searchable_pdf(result: DocumentResult, output: Output, limit_s: float, check: Check) -> None:
    """Write a document as a searchable PDF; parameters and errors are those of a `Writer` (formats/document.py)."""
    if is_pdf(result.file) and result.picture_of is None:
        with TemporaryFile() as file:
            file.write(result.file)
            file.flush()
            texts = (text_of(page, is_over_own=True) for page in result.pages)
            lay_over_pages(file, texts, output, limit_s, check)
    else:
        write_images([result], output, limit_s, check)


def lay_over_pages(file: BinaryIO, texts: Iterable[PageText], output: Output, limit_s: float, check: Check) -> None:
    """Add `texts`, in any order, to the pages of a PDF file, which must have a descriptor. Raises as a `Writer` does.

    Pages without a text stay unchanged; without any text, the PDF is copied.
    """
    stop_s = time.monotonic() + limit_s
    with TemporaryFile() as text, TemporaryFile() as laid:
        for page in texts:
            text.write(orjson.dumps(astuple(page)) + b"\n")
            check()
        text.flush()
        if text.tell():
            _lay_text(file.fileno(), text.fileno(), laid.fileno(), _left_s(stop_s), check)
        source = laid if text.tell() else file
        source.seek(0)
        shutil.copyfileobj(source, output, _COPIED_BYTES)


def _lay_text(file: int, text: int, result: int, limit_s: float, check: Check) -> None:
    """Have the child process write a PDF with text on its pages; `file`, `text` and `result` are file descriptors."""
    file_bytes, text_bytes = os.fstat(file).st_size, os.fstat(text).st_size
    max_bytes = _GROWTH * (file_bytes + text_bytes) + _MORE_BYTES
    child = ChildProcess(_CHILD, _CHILD_BYTES + 4 * file_bytes + text_bytes, max_bytes, (file, text, result), check)
    failure = BrokenImage("Text cannot be added to this PDF.", _REMEDY)
    try:
        answer, _ = child.ask("lay", limit_s, check)
    except ChildLate as late:
        raise BrokenImage(f"Adding text to this PDF takes longer than {limit_s:g} s.", _REMEDY) from late
    except ChildFailed as failed:
        raise failure from failed
    finally:
        child.close()
    if answer != "written" or os.fstat(result).st_size > max_bytes:
        raise failure


def write_images(results: Iterable[DocumentResult], output: Output, limit_s: float, check: Check) -> None:
    """Write several documents as one PDF with a page per image; parameters and errors are those of a `Writer`."""
    stop_s = time.monotonic() + limit_s

    def check_time() -> None:
        check()
        _left_s(stop_s)

    pdf = ImagePdf(output)
    for result in results:
        if result.picture_of is None:
            add_pictures(pdf, result.file, _texts_of(result), check_time)
        else:
            _add_masked(pdf, result, result.picture_of, check_time)
    pdf.finish()


def add_pictures(pdf: ImagePdf, file: bytes, pages: Iterable[NumberedText], check: Check) -> CallerError | None:
    """Add the pages of an image file with their text; pages that cannot be shown are blank.

    Returns the last error if no page can be shown.
    """
    directories = find_pages(file) if may_have_pages(file) else []
    shown, failure = 0, None
    for number, text in pages:
        check()
        try:
            _add_picture(pdf, file, directories[number - 1] if len(directories) > 1 else None, text)
            shown += 1
        except CallerError as error:
            failure = error
            pdf.add_blank_page()
    return None if shown else failure or BrokenImage("None of its pages can be shown.")


def _add_picture(pdf: ImagePdf, file: bytes, directory: int | None, text: PageText | CallerError) -> None:
    if isinstance(text, PageText):
        pdf.add_page(page_image(file, _LIMITS, directory), text)
        return
    if directory is not None:
        raise text
    # Do not decode an image that could not be read: it may crash a decoder.
    pdf.add_page(page_image(file, _LIMITS, decodes=False), None)


def _add_masked(pdf: ImagePdf, result: DocumentResult, picture_of: PictureOf, check: Check) -> None:
    """Add pages drawn with masked parts in black; unread pages are blank, because what to mask there is unknown."""
    for _, page in _pages_of(result):
        check()
        if page is None:
            pdf.add_blank_page()
            continue
        picture = page_image(picture_of(page), _LIMITS)
        pdf.add_page(replace(picture, dpi=(result.dpi, result.dpi)), text_of(page))


def _texts_of(result: DocumentResult) -> Iterator[NumberedText]:
    for number, page in _pages_of(result):
        yield number, BrokenImage("This page could not be read.") if page is None else text_of(page)


def _pages_of(result: DocumentResult) -> Iterator[tuple[int, Page | None]]:
    read: Iterator[tuple[int, Page | None]] = ((page.number, page) for page in result.pages)
    failed: list[tuple[int, Page | None]] = [(number, None) for number in sorted(result.failed)]
    return heapq.merge(read, failed, key=lambda pair: pair[0])


def _left_s(stop_s: float) -> float:
    """Seconds until `stop_s` on the monotonic clock. Raises DeadlineExceeded when no time is left."""
    left_s = stop_s - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceeded("Making the searchable PDF exceeded the time limit.", "Request fewer pages.")
    return left_s
