"""Documents that `ocrsvc read` makes of what was read: one file, or a zip of several."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import orjson

from ocrsvc.cli.output_format import PDF
from ocrsvc.cli.read_files import DEADLINE_S, load
from ocrsvc.client import response
from ocrsvc.client.response import Answer
from ocrsvc.errors import BadOption
from ocrsvc.registry import needs_of

if TYPE_CHECKING:
    from ocrsvc.formats.document import NamedResult
    from ocrsvc.records import Box, Cell, Line, LineSource, Page, Region, Table


def more_options(formats: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be read for these formats besides what is asked for. Raises BadOption for what they cannot have."""
    if PDF in formats and options.get("mask"):
        raise BadOption(
            "--format pdf shows the pages as they are, and --mask is to hide what is on them.",
            "Ask a service: POST /v1/ocr?format=pdf&mask=… shows pictures of the pages with what is masked in black.",
        )
    return {name: True for name in needs_of(formats) if not options.get(name)}


def write_documents(
    read: Sequence[tuple[Path, Answer]],
    formats: Sequence[str],
    output: IO[bytes],
    *,
    words: bool,
    tables: bool,
    as_zip: bool,
) -> None:
    """All files of these formats, as one file: several as a zip.

    Args:
        read: Files with what was read of them, at least one.
        formats: Names of output formats, or "json".
        output: Where to.
        words, tables: Whether text formats and JSON have words, and JSON tables.
        as_zip: Whether one file is put into a zip, too.

    Raises:
        OcrsvcError: A file cannot be made.
        OSError: From the output.
    """
    from ocrsvc.formats.document import files_of, write_zip
    from ocrsvc.records import no_check

    documents = [_result_of(file, answer, with_file=PDF in formats) for file, answer in read]
    made = files_of(formats, documents, partial(_as_json, read, words=words, tables=tables), words=words)
    if len(made) == 1 and not as_zip:
        made[0].write(output, DEADLINE_S, no_check)
    else:
        write_zip(made, output, DEADLINE_S, no_check)


def json_line(file: Path, answer: Answer) -> bytes:
    """One file's answer as a line of JSON."""
    return orjson.dumps({"file": str(file), **answer.data}) + b"\n"


def _as_json(read: Sequence[tuple[Path, Answer]], *, words: bool, tables: bool) -> bytes:
    """A line for each file, without what only other formats needed."""
    unwanted = {name for name, is_wanted in (("words", words), ("tables", tables)) if not is_wanted}
    return b"".join(
        orjson.dumps(_without(unwanted, {"file": str(file), **answer.data})) + b"\n" for file, answer in read
    )


def _without(names: Collection[str], data: Mapping[str, Any]) -> dict[str, Any]:
    pages = [
        {name: value for name, value in page.items() if name not in names}
        | {"lines": [{name: value for name, value in line.items() if name not in names} for line in page["lines"]]}
        if "lines" in page
        else page
        for page in data["pages"]
    ]
    return {**data, "pages": pages}


def _result_of(file: Path, answer: Answer, *, with_file: bool) -> NamedResult:
    from ocrsvc.formats.document import DocumentResult, NamedResult
    from ocrsvc.readings import EngineInfo

    data = load(file) if with_file else b""
    if not isinstance(data, bytes):
        raise data
    pages = [_to_page(page) for page in answer.pages]
    result = DocumentResult(data, pages, len(pages), EngineInfo(**answer.engine), list(answer.failed))
    return NamedResult("" if str(file) == "-" else file.name, result)


def _to_page(page: response.Page) -> Page:
    from ocrsvc.records import Page

    size = page.width, page.height, page.angle
    tables, regions = tuple(map(_to_table, page.tables)), tuple(map(_to_region, page.regions))
    return Page(*size, tuple(map(_to_line, page.lines)), page.number, tables, regions)


def _to_line(line: response.Line) -> Line:
    from ocrsvc.records import Line, Word

    words = [Word(word.text, word.confidence, cast("Box", word.box)) for word in line.words or ()]
    known, source = None if line.words is None else tuple(words), cast("LineSource | None", line.source or None)
    return Line(line.text, line.confidence, cast("Box", line.box), known, source)


def _to_table(table: response.Table) -> Table:
    from ocrsvc.records import Table

    return Table(cast("Box", table.box), table.rows, table.columns, tuple(map(_to_cell, table.cells)))


def _to_cell(cell: response.Cell) -> Cell:
    from ocrsvc.records import Cell

    span = cell.row, cell.column, cell.row_span, cell.column_span
    return Cell(*span, cast("Box", cell.box), cell.text, cell.lines)


def _to_region(region: response.Region) -> Region:
    from ocrsvc.records import Region

    return Region(cast("Any", region.type), region.confidence, cast("Box", region.box), region.lines)
