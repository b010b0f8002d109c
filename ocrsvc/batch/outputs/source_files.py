"""Formats with a file for each source: texts, hOCR, ALTO, TSV and searchable PDFs, with a list for each part."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import Any, Final

import orjson

from ocrsvc.batch.destination import Destination, HashedFile, WrittenFile
from ocrsvc.batch.outputs.output_formats import FileResults, WritePart
from ocrsvc.batch.outputs.source_paths import source_path
from ocrsvc.batch.visible_text import visible
from ocrsvc.client.response import page_of
from ocrsvc.errors import BrokenImage, CallerError, SourceGone
from ocrsvc.formats.document import text_parts
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.searchable import NumberedText, add_pictures, lay_over_pages
from ocrsvc.formats.pdf.text_lines import PageText, text_of
from ocrsvc.imaging.document import is_pdf
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Page, no_check
from ocrsvc.registry import OutputFormat, text_formats

LOGGER: Final = logging.getLogger("ocrsvc.batch")
_PDF_LIMIT_S: Final = 60.0
_PDF_LIMIT_OF_PAGE_S: Final = 0.5
# Behind the folder of the format; what reads folders of data passes over names that begin so.
_LISTS: Final = "_files/"
_OF_PAGE: Final = ("page", "width", "height", "angle", "text", "lines")

WriteFile = Callable[[FileResults, HashedFile], object]
"""Writes the file of one source. Raises CallerError or SourceGone if there cannot be one, and OSError."""


def open_source_files(name: str, folder: str, reader: Mapping[str, str]) -> WritePart:
    """What writes searchable PDFs, or the format of this name in the registry."""
    if name == "pdf":
        return _SourceFiles(name, folder, ".pdf", _write_pdf)
    form = text_formats()[name]
    engine = EngineInfo(reader["engine"], reader["model"], reader["version"], "", "", "")
    return _SourceFiles(name, folder, form.suffix, partial(_write_text, form, engine))


def is_listing(name: str) -> bool:
    """Whether a file of the output lists files of sources."""
    return f"/{_LISTS}" in f"/{name}"


@dataclass(frozen=True, slots=True)
class _SourceFiles:
    """A WritePart: a file for each source any of whose pages is known, and a list, which the manifest names.

    The list holds a line of JSON for each of these sources: `source`, and `file`, `bytes` and `sha256`, or `error`.
    """

    name: str
    folder: str
    ending: str
    write_file: WriteFile

    def __call__(
        self, destination: Destination, part: int, files: Iterator[FileResults], *, replace: bool
    ) -> WrittenFile:
        name = f"{self.folder}{_LISTS}{self.name}-{part:05d}.jsonl"
        with destination.writing(name, replace=replace) as listing:
            for results in files:
                if results.pages:
                    listing.write(orjson.dumps(self._write_source(destination, results, replace=replace)) + b"\n")
        return listing.written()

    def _write_source(self, destination: Destination, results: FileResults, *, replace: bool) -> dict[str, object]:
        """Write a source's file; gives its line in the list."""
        source = results.file.name
        try:
            name = self.folder + source_path(source, self.ending)
            with destination.writing(name, replace=replace) as output:
                self.write_file(results, output)
        except (CallerError, SourceGone) as error:
            LOGGER.warning("%s has no file in the format %s: %s", visible(source), self.name, visible(str(error)))
            what = {"code": error.code, "detail": error.detail, "remedy": error.remedy}
            return {"source": source, "error": what}
        written = output.written()
        return {"source": source, "file": written.name, "bytes": written.size, "sha256": written.sha256}


def _write_text(form: OutputFormat, engine: EngineInfo, results: FileResults, output: HashedFile) -> None:
    """The pages, one at a time."""
    pages = (_page_of(orjson.loads(results.record(number))) for number in results.pages)
    for part in text_parts(form, pages, len(results.pages), engine):
        output.write(part.encode(errors="replace"))


def _page_of(record: dict[str, Any]) -> Page:
    """The page of a record; one that has failed is empty."""
    known = {"width": 0, "height": 0, "angle": 0} | record
    return page_of({name: known[name] for name in _OF_PAGE}).record()


def _write_pdf(results: FileResults, output: HashedFile) -> None:
    data = results.load()
    if not is_pdf(data):
        pdf = ImagePdf(output)
        if failure := add_pictures(pdf, data, _texts_of(results), no_check):
            raise failure
        pdf.finish()
        return
    with TemporaryFile() as file:
        file.write(data)
        # From here on the file alone holds it: it may be as large as memory allows.
        del data
        file.flush()
        limit_s = _PDF_LIMIT_S + _PDF_LIMIT_OF_PAGE_S * results.file.total
        texts = (text for _, text in _texts_of(results, is_over_own=True) if isinstance(text, PageText))
        lay_over_pages(file, texts, output, limit_s, no_check)


def _texts_of(results: FileResults, *, is_over_own: bool = False) -> Iterator[NumberedText]:
    """Each page with what was read of it, or why nothing was."""
    for number in results.pages:
        record = orjson.loads(results.record(number))
        failed = record["error"]
        text = text_of(_page_of(record), is_over_own=is_over_own) if failed is None else BrokenImage(failed["detail"])
        yield number, text
