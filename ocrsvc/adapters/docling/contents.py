"""Writes documents in docling-serve's formats, as a response or a zip archive; JSON is a DoclingDocument."""

import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Final

import orjson

from ocrsvc.adapters.context import checked
from ocrsvc.adapters.docling.conversion import ENDINGS, Conversion
from ocrsvc.errors import CallerError
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList, JsonText
from ocrsvc.formats.markdown import markdown_by_page, markdown_parts
from ocrsvc.formats.markup import to_html, to_markup
from ocrsvc.formats.plain_text import text_parts
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import JobPages
from ocrsvc.results import Box, Check, EngineInfo, Line, Page, Table

SUCCESS, PARTIAL, FAILURE = "success", "partial_success", "failure"
# DocTags coordinates run from 0 to this on each axis.
_GRID: Final = 500
_NO_ENGINE: Final = EngineInfo("", "", "", "", "", "")
# OTSL's tags for the other grid positions of a spanning cell; keys: (below its first row, right of its first column).
_SPANNED: Final = {(False, True): "<lcel>", (True, False): "<ucel>", (True, True): "<xcel>"}
_DIGITS: Final = 2


@dataclass(frozen=True, slots=True)
class Converted:
    """One document with `count` pages; `errors` are (page, message), with page None for the whole document."""

    filename: str
    pages: Iterable[Page]
    count: int
    errors: Sequence[tuple[int | None, str]] = ()

    @property
    def status(self) -> str:
        """docling's status: success, partial_success if some pages failed, or failure."""
        if not self.errors:
            return SUCCESS
        return PARTIAL if self.count else FAILURE


def write_answer(converted: Converted, options: Conversion, spent_s: float, output: Output, check: Check) -> None:
    """Write one document's response, format by format and page by page; `check` is called for each page."""
    output.write(b'{"document":' + orjson.dumps({"filename": converted.filename})[:-1])
    for name in ENDINGS:
        output.write(b',"%b_content":' % name.encode())
        if name not in options.to_formats or converted.status == FAILURE:
            output.write(b"null")
        elif name == "json":
            _write_content(name, converted, options, output, check)
        else:
            with JsonText(output) as text:
                _write_content(name, converted, options, text, check)
    source = {"component_type": "document_backend", "module_name": "ocrsvc"}
    errors = [
        {**source, "error_message": why, **({} if number is None else {"page_no": number})}
        for number, why in converted.errors
    ]
    rest = {"status": converted.status, "errors": errors, "processing_time": spent_s, "timings": {}}
    output.write(b"}," + orjson.dumps(rest)[1:])


def write_job_answer(job: Job, output: IO[bytes], check: Check) -> None:
    """Write a finished job's response. Raises FileNotFoundError for a removed job, CallerError if a zip is empty."""
    record, options = job.record(), Conversion.model_validate(job.record().asked)
    errors = [(row["number"], row["error"]) for row in job.pages() if "error" in row] if job.failed_pages() else []
    count = 0 if errors and options.stops_at_error else job.page_count() - len(errors)
    converted = Converted(record.name, JobPages(job), count, errors)
    if options.target == "zip":
        write_archive([converted], options, output, check)
    else:
        write_answer(converted, options, time.time() - (job.started_at_s() or record.came_at_s), output, check)


def write_archive(documents: Sequence[Converted], options: Conversion, output: IO[bytes], check: Check) -> None:
    """Write a zip with a file per format of each document. Raises CallerError if no document has pages."""
    if all(document.status == FAILURE for document in documents):
        raise CallerError("No document can be read: " + documents[0].errors[0][1])
    names: set[str] = set()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as packed:
        for converted in documents:
            stem = _free_name(converted.filename, names)
            for name in dict.fromkeys(options.to_formats) if converted.status != FAILURE else ():
                with packed.open(stem + ENDINGS[name], "w", force_zip64=True) as member:
                    _write_content(name, converted, options, member, check)


def _free_name(filename: str, taken: set[str]) -> str:
    """A file's name without folders and suffix, numbered if it is in `taken` already; adds the name to `taken`."""
    stem = PurePath(filename.replace("\\", "/")).stem or "document"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _write_content(name: str, converted: Converted, options: Conversion, output: Output, check: Check) -> None:
    pages = checked(converted.pages, check)
    if name == "json":
        write_document_json(converted.filename, pages, output)
        return
    has_breaks = name == "md" and options.page_break
    for part in _markdown_with_breaks(pages, options.page_break) if has_breaks else _PARTS[name](pages):
        output.write(part.encode())


def _markdown_with_breaks(pages: Iterable[Page], page_break: str) -> Iterator[str]:
    """Markdown with breaks between pages, as docling writes it; blank pages are skipped."""
    between = ""
    for page in filter(lambda page: page.lines, pages):
        yield between
        between = page_break
        yield from (text for _, text in markdown_by_page([page]))


def _html(pages: Iterable[Page]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html>\n<head><meta charset="utf-8"/></head>\n<body>\n'
    for page in pages:
        yield "<div class='page'>\n"
        for block in blocks_of(page):
            yield f"<p>{to_markup(block.text)}</p>\n" if isinstance(block, Line) else f"{to_html(block)}\n"
        yield "</div>\n"
    yield "</body>\n</html>\n"


def _doctags(pages: Iterable[Page]) -> Iterator[str]:
    between = ""
    yield "<doctag>"
    for page in pages:
        yield between
        for block in blocks_of(page):
            sides = zip(frame_of(block.box), (page.width, page.height) * 2, strict=True)
            place = "".join(f"<loc_{min(max(round(at * _GRID / side), 0), _GRID)}>" for at, side in sides)
            if isinstance(block, Line):
                yield f"<text>{place}{to_markup(block.text)}</text>\n"
            else:
                yield f"<otsl>{place}{_otsl(block)}</otsl>\n"
        between = "<page_break>\n"
    yield "</doctag>"


def _otsl(table: Table) -> str:
    """The table as OTSL, a tag per grid position; further positions of a spanning cell have tags from _SPANNED."""
    grid = [["<ecel>"] * table.columns for _ in range(table.rows)]
    for cell in table.cells:
        for row in range(cell.row, cell.row + cell.row_span):
            for column in range(cell.column, cell.column + cell.column_span):
                grid[row][column] = _SPANNED.get((row > cell.row, column > cell.column), "<ecel>")
        if cell.text:
            grid[cell.row][cell.column] = f"<fcel>{to_markup(' '.join(cell.text.split()))}"
    return "".join(f"{''.join(row)}<nl>" for row in grid)


_PARTS: Final[Mapping[str, Callable[[Iterable[Page]], Iterator[str]]]] = {
    "md": lambda pages: markdown_parts(pages, 0, _NO_ENGINE),
    "text": lambda pages: text_parts(pages, 0, _NO_ENGINE),
    "html": _html,
    "doctags": _doctags,
}
"""By format, the function that yields the text of pages in pieces."""


def write_document_json(name: str, pages: Iterable[Page], output: Output) -> None:
    """Write a DoclingDocument: texts and tables in reading order, with page and box in pixels."""
    sizes: dict[str, object] = {}
    with JsonList() as texts, JsonList() as tables, JsonList() as order:
        for page in pages:
            size = {"width": page.width, "height": page.height}
            sizes[str(page.number)] = {"size": size, "page_no": page.number}
            for block in blocks_of(page):
                kind, of_kind = ("texts", texts) if isinstance(block, Line) else ("tables", tables)
                reference = f"#/{kind}/{len(of_kind)}"
                order.append({"$ref": reference})
                node = {"self_ref": reference, "parent": {"$ref": "#/body"}, "children": [], "content_layer": "body"}
                characters = len(block.text) if isinstance(block, Line) else 0
                place = {"page_no": page.number, "bbox": _bbox(block.box), "charspan": [0, characters]}
                of_kind.append({**node, **_item(block), "prov": [place]})
        furniture = {**_root("furniture"), "children": []}
        # The oldest schema version with these members; newer versions of docling also read it.
        head = {"schema_name": "DoclingDocument", "version": "1.3.0", "name": PurePath(name).stem or name}
        output.write(orjson.dumps({**head, "furniture": furniture})[:-1])
        output.write(b',"body":' + orjson.dumps(_root("body"))[:-1] + b',"children":')
        order.copy_to(output)
        output.write(b'},"groups":[],"texts":')
        texts.copy_to(output)
        output.write(b',"pictures":[],"tables":')
        tables.copy_to(output)
        output.write(b',"key_value_items":[],"form_items":[],"pages":' + orjson.dumps(sizes) + b"}")


def blocks_of(page: Page) -> Iterator[Line | Table]:
    """Lines and tables in reading order; a table replaces its lines, at the position of the first."""
    table_of = {line: table for table in page.tables for cell in table.cells for line in cell.lines}
    seen: set[int] = set()
    for number, line in enumerate(page.lines):
        table = table_of.get(number)
        if table is None:
            yield line
        elif id(table) not in seen:
            seen.add(id(table))
            yield table


def _root(layer: str) -> dict[str, object]:
    return {"self_ref": f"#/{layer}", "content_layer": layer, "name": "_root_", "label": "unspecified"}


def _item(block: Line | Table) -> dict[str, object]:
    if isinstance(block, Line):
        return {"label": "text", "orig": block.text, "text": block.text}
    cells = [
        {
            "bbox": _bbox(cell.box),
            "row_span": cell.row_span,
            "col_span": cell.column_span,
            "start_row_offset_idx": cell.row,
            "end_row_offset_idx": cell.row + cell.row_span,
            "start_col_offset_idx": cell.column,
            "end_col_offset_idx": cell.column + cell.column_span,
            "text": cell.text,
            **dict.fromkeys(("column_header", "row_header", "row_section"), False),
        }
        for cell in block.cells
    ]
    data = {"table_cells": cells, "num_rows": block.rows, "num_cols": block.columns}
    return {"label": "table", "captions": [], "references": [], "footnotes": [], "data": data}


def _bbox(box: Box) -> dict[str, object]:
    left, top, right, bottom = frame_of(box)
    return {"l": left, "t": top, "r": right, "b": bottom, "coord_origin": "TOPLEFT"}


def frame_of(box: Box) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the axis-aligned frame around a box, in pixels."""
    across, down = [round(x, _DIGITS) for x, _ in box], [round(y, _DIGITS) for _, y in box]
    return min(across), min(down), max(across), max(down)
