"""The files that one request asks for: which they are, what they are named, and all of them as one zip."""

from __future__ import annotations

import zipfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Final

from ocrsvc.document_output.document_formats import DOCUMENT_FORMATS, Output, write_document
from ocrsvc.document_output.file_names import UNNAMED, stem_of
from ocrsvc.document_output.result import DocumentResult
from ocrsvc.imaging.document import is_pdf
from ocrsvc.records import Page
from ocrsvc.system.child_process import Check

JSON: Final = "json"
PDF: Final = "pdf"
PDF_TYPE: Final = "application/pdf"
JSON_TYPE: Final = "application/json"
ZIP_TYPE: Final = "application/zip"
# The first date that a zip can hold: the same results give the same bytes.
_DATE: Final = (1980, 1, 1, 0, 0, 0)

WriteFile = Callable[[Output, float, Check], None]
"""Writes a file: where to, within how many seconds, and what it asks meanwhile."""


@dataclass(frozen=True, slots=True)
class NamedResult:
    """A document that was read, and the name under which it was sent, "" for none."""

    name: str
    result: DocumentResult


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that can be made.

    Attributes:
        name: Of it, with its ending; safe to be saved under.
        media_type: Its Content-Type.
        write: Makes it. Raises as `write_document`.
    """

    name: str
    media_type: str
    write: WriteFile


def files_of(
    formats: Sequence[str], documents: Sequence[NamedResult], as_json: Callable[[], bytes], *, words: bool
) -> list[MadeFile]:
    """The files that these formats ask for of one or more documents.

    Of several documents all formats make one file, with the pages counted through. Searchable PDF does so of pictures
    alone; with a PDF among them it makes a file for each document.

    Args:
        formats: Of DOCUMENT_FORMATS, or "json".
        documents: At least one, in the order in which they were sent.
        as_json: Makes the file of the format "json".
        words: Whether text formats have the lines' words, where these are known; searchable PDF always has.
    """
    stem = _stem(documents)
    lines = documents if words else [replace(one, result=_without_words(one.result)) for one in documents]
    return [file for name in formats for file in _files_of(name, stem, documents if name == PDF else lines, as_json)]


def zip_name(documents: Sequence[NamedResult]) -> str:
    """What a zip of several of their files is named."""
    return f"{_stem(documents)}.zip"


def _stem(documents: Sequence[NamedResult]) -> str:
    return stem_of(documents[0].name) if len(documents) == 1 else UNNAMED


def page_without_words(page: Page) -> Page:
    """The page with its lines alone."""
    if not any(line.words for line in page.lines):
        return page
    return replace(page, lines=tuple(replace(line, words=None) for line in page.lines))


def _files_of(
    name: str, stem: str, documents: Sequence[NamedResult], as_json: Callable[[], bytes]
) -> Iterator[MadeFile]:
    if name == JSON:
        yield MadeFile(f"{stem}.json", JSON_TYPE, lambda output, _limit_s, _check: _write_all(output, as_json()))
        return
    form = DOCUMENT_FORMATS[name]
    results = [document.result for document in documents]
    if len(documents) == 1:
        yield MadeFile(stem + form.suffix, form.media_type, partial(write_document, name, results[0]))
    elif not form.writer:
        yield MadeFile(stem + form.suffix, form.media_type, partial(write_document, name, _joined(results)))
    elif not any(is_pdf(result.file) for result in results):
        yield MadeFile(stem + form.suffix, form.media_type, partial(_write_pictures, results))
    else:
        digits = len(str(len(documents)))
        for number, document in enumerate(documents, start=1):
            own = f"{number:0{digits}}-{stem_of(document.name)}{form.suffix}"
            yield MadeFile(own, form.media_type, partial(write_document, name, document.result))


def write_zip(files: Sequence[MadeFile], output: IO[bytes], limit_s: float, check: Check) -> None:
    """A zip of these files; memory holds none of them whole, but JSON. Raises as they do, and OSError."""
    with zipfile.ZipFile(output, "w") as packed:
        for file in files:
            entry = zipfile.ZipInfo(file.name, _DATE)
            # What a PDF holds is packed.
            is_packed = file.media_type == PDF_TYPE
            entry.compress_type = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            with packed.open(entry, "w", force_zip64=True) as member:
                file.write(member, limit_s, check)


def _without_words(result: DocumentResult) -> DocumentResult:
    return replace(result, pages=_LinesAlone(result.pages))


@dataclass(frozen=True, slots=True)
class _LinesAlone:
    """Pages without words, which can be gone through as often as those can."""

    pages: Iterable[Page]

    def __iter__(self) -> Iterator[Page]:
        return map(page_without_words, self.pages)


def _joined(results: Sequence[DocumentResult]) -> DocumentResult:
    """The pages of all documents as those of one, counted through; pages that failed have their numbers."""
    return replace(results[0], pages=_Counted(results), count=sum(result.count for result in results))


@dataclass(frozen=True, slots=True)
class _Counted:
    """Pages that can be gone through several times."""

    results: Sequence[DocumentResult]

    def __iter__(self) -> Iterator[Page]:
        before = 0
        for result in self.results:
            failed = sorted(result.failed)
            for at, page in enumerate(result.pages, start=1):
                yield replace(page, number=before + at + bisect_left(failed, page.number))
            before += result.count + len(failed)


def _write_pictures(results: Sequence[DocumentResult], output: Output, limit_s: float, check: Check) -> None:
    # Needs what reads and writes images.
    from ocrsvc.document_output.searchable import write_pictures

    write_pictures(results, output, limit_s, check)


def _write_all(output: Output, data: bytes) -> None:
    output.write(data)
