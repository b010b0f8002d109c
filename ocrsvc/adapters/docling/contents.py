"""Writes what was read of a document in the formats of docling-serve, for an answer and for an archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import orjson

from ocrsvc.adapters.docling.conversion import MEMBERS, Conversion
from ocrsvc.adapters.docling.document_json import blocks_of, document_json, frame_of
from ocrsvc.document_output.document_formats import write_document
from ocrsvc.document_output.result import DocumentResult
from ocrsvc.formats.table_markup import to_html
from ocrsvc.formats.xml_text import to_markup
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Box, Check, Line, Page, Table

SUCCESS, PARTIAL, FAILURE = "success", "partial_success", "failure"
# DocTags place everything on a grid of this many steps a side.
_GRID: Final = 500
_NOWHERE: Final = EngineInfo("", "", "", "", "", "")


@dataclass(frozen=True, slots=True)
class Converted:
    """One document, and what was read of it.

    Attributes:
        filename: As the caller calls it.
        pages: Those that were read, in order.
        errors: Why others were not: their numbers, or None for the whole document, and a sentence.
    """

    filename: str
    pages: Sequence[Page]
    errors: Sequence[tuple[int | None, str]] = ()

    @property
    def status(self) -> str:
        """In docling's words."""
        if not self.errors:
            return SUCCESS
        return PARTIAL if self.pages else FAILURE


@dataclass(frozen=True, slots=True)
class Writing:
    """What documents are written with: seconds within which they are worth having, and what is asked meanwhile."""

    limit_s: float
    check: Check


def to_answer(converted: Converted, asked: Conversion, spent_s: float, writing: Writing) -> dict[str, object]:
    """The answer for one document."""
    contents: dict[str, object] = {f"{name}_content": None for name in MEMBERS}
    if converted.status != FAILURE:
        contents |= {f"{name}_content": _content(name, converted, asked, writing) for name in asked.to_formats}
    return {
        "document": {"filename": converted.filename, **contents},
        "status": converted.status,
        "errors": [_error(number, why) for number, why in converted.errors],
        "processing_time": spent_s,
        "timings": {},
    }


def to_archive(documents: Sequence[Converted], asked: Conversion, writing: Writing) -> bytes:
    """A zip with a file for each document and format; documents of which nothing was read have none."""
    whole = io.BytesIO()
    names: set[str] = set()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for converted in documents:
            stem = _free_name(converted.filename, names)
            for name in asked.to_formats if converted.status != FAILURE else ():
                content = _content(name, converted, asked, writing)
                packed.writestr(stem + MEMBERS[name], content if isinstance(content, str) else orjson.dumps(content))
    return whole.getvalue()


def _free_name(filename: str, taken: set[str]) -> str:
    """A name for a document's files which no other has, without folders."""
    stem = PurePath(filename.replace("\\", "/")).stem or "document"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _content(name: str, converted: Converted, asked: Conversion, writing: Writing) -> str | dict[str, object]:
    if name == "json":
        return document_json(converted.filename, converted.pages)
    if name == "md":
        return _markdown(converted.pages, asked.page_break, writing)
    return _WRITERS[name](converted.pages, writing)


def _markdown(pages: Sequence[Page], page_break: str, writing: Writing) -> str:
    """As docling does, a break between two pages that hold something, and none for blank ones."""
    if not page_break:
        return _written("md", pages, writing)
    return page_break.join(_written("md", [page], writing) for page in pages if page.lines)


def _written(name: str, pages: Sequence[Page], writing: Writing) -> str:
    whole = io.BytesIO()
    result = DocumentResult(b"", pages, len(pages), _NOWHERE)
    write_document(name, result, whole, writing.limit_s, writing.check)
    return whole.getvalue().decode()


def _text(pages: Sequence[Page], writing: Writing) -> str:
    return _written("text", pages, writing)


def _html(pages: Sequence[Page], writing: Writing) -> str:
    parts = ['<!DOCTYPE html>\n<html>\n<head><meta charset="utf-8"/></head>\n<body>\n']
    for page in pages:
        writing.check()
        parts += [f"<div class='page'>\n{''.join(_html_blocks(page))}</div>\n"]
    return "".join([*parts, "</body>\n</html>\n"])


def _html_blocks(page: Page) -> Iterator[str]:
    for block in blocks_of(page):
        yield f"<p>{to_markup(block.text)}</p>\n" if isinstance(block, Line) else f"{to_html(block)}\n"


def _doctags(pages: Sequence[Page], writing: Writing) -> str:
    written = []
    for page in pages:
        writing.check()
        written.append("".join(_doctags_blocks(page)))
    return f"<doctag>{f'<page_break>{chr(10)}'.join(written)}</doctag>"


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
                grid[row][column] = _SPANNED[row > cell.row, column > cell.column]
        if cell.text:
            grid[cell.row][cell.column] = f"<fcel>{to_markup(' '.join(cell.text.split()))}"
        else:
            grid[cell.row][cell.column] = "<ecel>"
    return "".join(f"{''.join(row)}<nl>" for row in grid)


# Below its cell's first row, right of its first column.
_SPANNED: Final[Mapping[tuple[bool, bool], str]] = {
    (False, False): "<fcel>",
    (False, True): "<lcel>",
    (True, False): "<ucel>",
    (True, True): "<xcel>",
}

_WRITERS: Final[Mapping[str, Callable[[Sequence[Page], Writing], str]]] = {
    "text": _text,
    "html": _html,
    "doctags": _doctags,
}


def _error(number: int | None, why: str) -> dict[str, object]:
    return {
        "component_type": "document_backend",
        "module_name": "ocrsvc",
        "error_message": why,
        **({} if number is None else {"page_no": number}),
    }
