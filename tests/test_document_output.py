"""Files made of what was read of a document."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pypdfium2
import pytest
from documents import pdf, tiff
from web_support import running_reader

from ocrsvc.errors import DeadlineExceeded
from ocrsvc.formats.document import DocumentResult, options_for, write_document
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import EngineInfo, Reading
from ocrsvc.records import Page, ReadOptions, no_check
from ocrsvc.registry import needs_of
from ocrsvc.settings.settings import Settings

ENGINE = EngineInfo("fake", "fake", "1", "cpu", "fp32", "none")


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with running_reader(Settings(engine="fake"), opener=None, threads=1) as reader:
        yield reader


def pages_of(reader: Reader, file: bytes) -> list[Page]:
    with closing(reader.read_files_by_page([file], ReadOptions(), 60)) as read:
        return [page.outcome.page for page in read if isinstance(page.outcome, Reading)]


def made(name: str, file: bytes, pages: list[Page], limit_s: float = 60) -> bytes:
    output = io.BytesIO()
    write_document(name, DocumentResult(file, pages, len(pages), ENGINE), output, limit_s, no_check)
    return output.getvalue()


def test_formats_have_pages_read_with_what_they_need_and_leave_what_is_asked_for() -> None:
    assert needs_of(["json", "text", "pdf", "md"]) == {"words": True, "tables": True}
    assert options_for(["pdf", "md"], ReadOptions(layout=True)) == ReadOptions(layout=True, words=True, tables=True)
    assert options_for(["pdf"], ReadOptions(words="segmented")) == ReadOptions(words="segmented")
    assert options_for(["json", "ndjson", "alto"], ReadOptions()) == ReadOptions()


def test_pages_of_a_file_come_one_by_one_and_the_rest_can_be_given_up(reader: Reader) -> None:
    read = reader.read_files_by_page([tiff([40, 50, 60])], ReadOptions(), 60)
    first = next(read)
    read.close()
    assert (first.number, first.total, first.chosen) == (1, 3, 3)
    assert [page.width for page in pages_of(reader, tiff([40, 50, 60]))] == [40, 50, 60]


def test_text_that_a_page_has_itself_is_not_written_over_it_again(reader: Reader) -> None:
    file = pdf(b"BT /F 12 Tf 10 40 Td (own text) Tj ET", size=(300, 72))
    (page,) = pages_of(reader, file)
    first, *others = page.lines
    lines = (replace(first, text="own text", source="text_layer"), *(replace(line, source="ocr") for line in others))
    with pypdfium2.PdfDocument(made("pdf", file, [replace(page, lines=lines)])) as document:
        found = document[0].get_textpage().get_text_range()
    assert (found.count("own text"), others[0].text in found) == (1, True)


def test_a_searchable_pdf_that_comes_too_late_is_given_up(reader: Reader) -> None:
    file = tiff([200])
    with pytest.raises(DeadlineExceeded):
        made("pdf", file, pages_of(reader, file), limit_s=0)
