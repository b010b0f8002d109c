"""Writes what was read of a document in the formats of docling-serve, for an answer and for an archive."""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Final

import orjson

from ocrsvc.adapters.docling.conversion import ENDINGS, Conversion
from ocrsvc.adapters.docling.document_json import blocks_of, frame_of, write_document_json
from ocrsvc.errors import CallerError
from ocrsvc.formats.document import DocumentResult, Output, write_document
from ocrsvc.formats.json_stream import JsonText
from ocrsvc.formats.markup import to_html, to_markup
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import JobPages
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Box, Check, Line, Page, Table

SUCCESS, PARTIAL, FAILURE = "success", "partial_success", "failure"
# DocTags place everything on a grid of this many steps a side.
_GRID: Final = 500
_NOWHERE: Final = EngineInfo("", "", "", "", "", "")
# Below its cell's first row, right of its first column.
_SPANNED: Final = {(False, True): "<lcel>", (True, False): "<ucel>", (True, True): "<xcel>"}


@dataclass(frozen=True, slots=True)
class Converted:
    """One document, as the caller calls it, and the `count` pages that were read; gone through once for each format.

    `errors` are why others were not: their numbers, or None for the whole document, and a sentence.
    """

    filename: str
    pages: Iterable[Page]
    count: int
    errors: Sequence[tuple[int | None, str]] = ()

    @property
    def status(self) -> str:
        """In docling's words."""
        if not self.errors:
            return SUCCESS
        return PARTIAL if self.count else FAILURE


@dataclass(frozen=True, slots=True)
class Writing:
    """What documents are written with: seconds within which they are worth having, and what is asked meanwhile."""

    limit_s: float
    check: Check


def write_answer(converted: Converted, asked: Conversion, spent_s: float, output: Output, writing: Writing) -> None:
    """Write the answer for one document, a page of one format at a time."""
    output.write(b'{"document":' + orjson.dumps({"filename": converted.filename})[:-1])
    for name in ENDINGS:
        output.write(b',"%b_content":' % name.encode())
        if name not in asked.to_formats or converted.status == FAILURE:
            output.write(b"null")
        elif name == "json":
            _write_content(name, converted, asked, output, writing)
        else:
            with JsonText(output) as text:
                _write_content(name, converted, asked, text, writing)
    rest = {
        "status": converted.status,
        "errors": [_error(number, why) for number, why in converted.errors],
        "processing_time": spent_s,
        "timings": {},
    }
    output.write(b"}," + orjson.dumps(rest)[1:])


def write_task_answer(job: Job, output: IO[bytes], check: Check) -> None:
    """Write the answer of a task whose pages are all read, a page at a time.

    Raises:
        CallerError: It is to be an archive, and no page was read.
        FileNotFoundError: It was cleared.
    """
    record, asked = job.record(), Conversion.model_validate(job.record().asked)
    errors = [(row["number"], row["error"]) for row in job.pages() if "error" in row] if job.failed_pages() else []
    count = 0 if errors and asked.stops_at_error else job.page_count() - len(errors)
    converted, writing = Converted(record.name, JobPages(job), count, errors), Writing(math.inf, check)
    if asked.target == "zip":
        write_archive([converted], asked, output, writing)
    else:
        write_answer(converted, asked, time.time() - (job.started_at_s() or record.came_at_s), output, writing)


def write_archive(documents: Sequence[Converted], asked: Conversion, output: IO[bytes], writing: Writing) -> None:
    """Write a zip with a file for each document and format; documents of which nothing was read have none.

    Raises CallerError where nothing was read of any.
    """
    if all(document.status == FAILURE for document in documents):
        raise CallerError("None of the documents can be read: " + documents[0].errors[0][1])
    names: set[str] = set()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for converted in documents:
            stem = _free_name(converted.filename, names)
            for name in dict.fromkeys(asked.to_formats) if converted.status != FAILURE else ():
                with packed.open(stem + ENDINGS[name], "w", force_zip64=True) as member:
                    _write_content(name, converted, asked, member, writing)


def _free_name(filename: str, taken: set[str]) -> str:
    """A name for a document's files which no other has, without folders."""
    stem = PurePath(filename.replace("\\", "/")).stem or "document"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _write_content(name: str, converted: Converted, asked: Conversion, output: Output, writing: Writing) -> None:
    if name == "json":
        write_document_json(converted.filename, converted.pages, output, writing.check)
    elif name == "md" and asked.page_break:
        _write_parted(converted, asked.page_break.encode(), output, writing)
    elif name in _PARTS:
        for part in _PARTS[name](converted.pages, writing.check):
            output.write(part.encode())
    else:
        result = DocumentResult(b"", converted.pages, converted.count, _NOWHERE)
        write_document(name, result, output, writing.limit_s, writing.check)


def _write_parted(converted: Converted, page_break: bytes, output: Output, writing: Writing) -> None:
    """Markdown, as docling writes it: a break between two pages that hold something, and none for blank ones."""
    between = b""
    for page in converted.pages:
        if page.lines:
            output.write(between)
            between = page_break
            result = DocumentResult(b"", [page], 1, _NOWHERE)
            write_document("md", result, output, writing.limit_s, writing.check)


def _html(pages: Iterable[Page], check: Check) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html>\n<head><meta charset="utf-8"/></head>\n<body>\n'
    for page in pages:
        check()
        yield f"<div class='page'>\n{''.join(_html_blocks(page))}</div>\n"
    yield "</body>\n</html>\n"


def _html_blocks(page: Page) -> Iterator[str]:
    for block in blocks_of(page):
        yield f"<p>{to_markup(block.text)}</p>\n" if isinstance(block, Line) else f"{to_html(block)}\n"


def _doctags(pages: Iterable[Page], check: Check) -> Iterator[str]:
    between = ""
    yield "<doctag>"
    for page in pages:
        check()
        yield between + "".join(_doctags_blocks(page))
        between = "<page_break>\n"
    yield "</doctag>"


def _doctags_blocks(page: Page) -> Iterator[str]:
    for block in blocks_of(page):
        place = _on_grid(block.box, page)
        if isinstance(block, Line):
            yield f"<text>{place}{to_markup(block.text)}</text>\n"
        else:
            yield f"<otsl>{place}{_otsl(block)}</otsl>\n"


def _on_grid(box: Box, page: Page) -> str:
    sides = zip(frame_of(box), (page.width, page.height) * 2, strict=True)
    return "".join(f"<loc_{min(max(round(at * _GRID / side), 0), _GRID)}>" for at, side in sides)


def _otsl(table: Table) -> str:
    """The table in OTSL: a tag for each place of its grid, those under a spanning cell saying in which direction."""
    grid = [["<ecel>"] * table.columns for _ in range(table.rows)]
    for cell in table.cells:
        for row in range(cell.row, cell.row + cell.row_span):
            for column in range(cell.column, cell.column + cell.column_span):
                grid[row][column] = _SPANNED.get((row > cell.row, column > cell.column), "<ecel>")
        if cell.text:
            grid[cell.row][cell.column] = f"<fcel>{to_markup(' '.join(cell.text.split()))}"
    return "".join(f"{''.join(row)}<nl>" for row in grid)


_PARTS: Final[Mapping[str, Callable[[Iterable[Page], Check], Iterator[str]]]] = {"html": _html, "doctags": _doctags}
"""The formats that nobody else makes, piece by piece."""


def _error(number: int | None, why: str) -> dict[str, object]:
    return {
        "component_type": "document_backend",
        "module_name": "ocrsvc",
        "error_message": why,
        **({} if number is None else {"page_no": number}),
    }
