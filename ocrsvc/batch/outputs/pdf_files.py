"""Output as searchable PDFs, one of each source: PDFs with text over their pages, and pictures that became pages."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Final

import orjson

from ocrsvc.batch.outputs.contract import FileResults
from ocrsvc.batch.outputs.hashed_writing import HashedFile
from ocrsvc.batch.outputs.source_files import SourceFiles
from ocrsvc.document_output.searchable import NumberedText, add_pictures, lay_over_pages
from ocrsvc.errors import BrokenImage
from ocrsvc.imaging.document import is_pdf
from ocrsvc.records import no_check
from ocrsvc.searchable_pdf.image_pdf import ImagePdf
from ocrsvc.searchable_pdf.page_text import PageText
from ocrsvc.searchable_pdf.text_lines import text_of_record

_LIMIT_S: Final = 60.0
_LIMIT_OF_PAGE_S: Final = 0.5


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
        limit_s = _LIMIT_S + _LIMIT_OF_PAGE_S * results.file.total
        texts = (text for _, text in _texts_of(results, is_over_own=True) if isinstance(text, PageText))
        lay_over_pages(file, texts, output, limit_s, no_check)


def _write_pictures(data: bytes, results: FileResults, output: HashedFile) -> None:
    """A page for each of an image file's."""
    pdf = ImagePdf(output)
    if failure := add_pictures(pdf, data, _texts_of(results), no_check):
        raise failure
    pdf.finish()


def _texts_of(results: FileResults, *, is_over_own: bool = False) -> Iterator[NumberedText]:
    """Each page with what was read of it, or why nothing was."""
    for number in results.pages:
        record = orjson.loads(results.record(number))
        failed = record["error"]
        text = text_of_record(record, is_over_own=is_over_own) if failed is None else BrokenImage(failed["detail"])
        yield number, text
