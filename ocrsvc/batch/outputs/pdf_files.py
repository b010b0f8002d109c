"""Output as searchable PDFs, one of each source: PDFs with text over their pages, and pictures that became pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final

import orjson

from ocrsvc.batch.outputs.contract import FileResults
from ocrsvc.batch.outputs.hashed_writing import HashedFile
from ocrsvc.batch.outputs.source_files import SourceFiles
from ocrsvc.errors import BrokenImage, CallerError
from ocrsvc.imaging.decode import PixelLimits
from ocrsvc.imaging.document import is_pdf, may_have_pages
from ocrsvc.imaging.tiff_pages import find_pages
from ocrsvc.records import no_check
from ocrsvc.searchable_pdf.image_pdf import ImagePdf
from ocrsvc.searchable_pdf.page_image import PageImage, page_image
from ocrsvc.searchable_pdf.page_text import PageText
from ocrsvc.searchable_pdf.text_layer import lay_text, pack_page
from ocrsvc.searchable_pdf.text_lines import text_of_record

# Whoever reads files of their own may read large ones, and what is decoded here was decoded once to be read.
_LIMITS: Final = PixelLimits(1 << 40)
_LIMIT_S: Final = 60.0
_LIMIT_OF_PAGE_S: Final = 0.5
_COPIED_BYTES: Final = 1 << 20


def pdf_files(folder: str) -> SourceFiles:
    """What writes them; `folder` as of SourceFiles."""
    return SourceFiles("pdf", folder, ".pdf", _write)


def _write(results: FileResults, output: HashedFile) -> None:
    data = results.load()
    if not is_pdf(data):
        _write_pictures(data, results, output)
        return
    with TemporaryFile() as file:
        file.write(data)
        # From here on the file alone holds it: it may be as large as memory allows.
        del data
        file.flush()
        _write_pdf(file, results, output)


def _write_pdf(file: BinaryIO, results: FileResults, output: HashedFile) -> None:
    """The PDF with what was read; pages that have failed, or were not to be read, stay as they are."""
    with TemporaryFile() as text, TemporaryFile() as result:
        for record in _records_of(results):
            if record["error"] is None:
                text.write(pack_page(text_of_record(record)))
        text.flush()
        if text.tell():
            limit_s = _LIMIT_S + _LIMIT_OF_PAGE_S * results.file.total
            lay_text(file.fileno(), text.fileno(), result.fileno(), limit_s, no_check)
        source = result if text.tell() else file
        source.seek(0)
        shutil.copyfileobj(source, output, _COPIED_BYTES)


def _write_pictures(data: bytes, results: FileResults, output: HashedFile) -> None:
    """A page for each of an image file's."""
    directories = find_pages(data) if may_have_pages(data) else []
    pdf, shown = ImagePdf(output), 0
    failure: CallerError = BrokenImage("None of its pages can be shown.")
    for record in _records_of(results):
        directory = directories[record["page"] - 1] if len(directories) > 1 else None
        try:
            image, text = _picture_of(data, directory, record)
        except CallerError as error:
            failure = error
            pdf.add_blank_page()
        else:
            pdf.add_page(image, text)
            shown += 1
    if not shown:
        raise failure
    pdf.finish()


def _picture_of(data: bytes, directory: int | None, record: dict[str, Any]) -> tuple[PageImage, PageText | None]:
    """The picture of a page, and its text if it was read."""
    if record["error"] is None:
        return page_image(data, _LIMITS, directory), text_of_record(record)
    if directory is not None:
        raise BrokenImage(record["error"]["detail"])
    # What could not be read may be what a decoder dies of.
    return page_image(data, _LIMITS, decodes=False), None


def _records_of(results: FileResults) -> Iterator[dict[str, Any]]:
    for number in results.pages:
        yield orjson.loads(results.record(number))
