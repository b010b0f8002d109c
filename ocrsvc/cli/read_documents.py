"""Documents that `ocrsvc read` makes of what was read: one file, or a zip of several."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

from ocrsvc.cli.files import load
from ocrsvc.cli.output_format import PDF
from ocrsvc.cli.read_files import DEADLINE_S
from ocrsvc.client.response import Answer
from ocrsvc.document_output.document_formats import needs_of
from ocrsvc.errors import BadOption

if TYPE_CHECKING:
    from ocrsvc.document_output.requested_files import NamedResult


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
    """All files of these formats as one file, and as a zip where they are several or `as_zip` says so.

    Text formats and JSON have words, and JSON tables, where they were asked for. Raises OcrsvcError where a file cannot
    be made, and OSError from the output.
    """
    from ocrsvc.document_output.requested_files import files_of, write_zip
    from ocrsvc.records import no_check

    documents = [_result_of(file, answer, with_file=PDF in formats) for file, answer in read]
    unwanted = {name for name, is_wanted in (("words", words), ("tables", tables)) if not is_wanted}
    made = files_of(formats, documents, partial(_json_lines, read, unwanted), words=words)
    if len(made) == 1 and not as_zip:
        made[0].write(output, DEADLINE_S, no_check)
    else:
        write_zip(made, output, DEADLINE_S, no_check)


def _json_lines(read: Sequence[tuple[Path, Answer]], unwanted: Collection[str]) -> bytes:
    """A line for each file, without what only other formats needed."""
    return b"".join(json_line(file, answer, unwanted) for file, answer in read)


def json_line(file: Path, answer: Answer, unwanted: Collection[str] = ()) -> bytes:
    """One file's answer as a line of JSON, without some members of its pages and lines."""
    pages = [_without(unwanted, page) for page in answer.data["pages"]] if unwanted else answer.data["pages"]
    return orjson.dumps({"file": str(file), **answer.data, "pages": pages}, option=orjson.OPT_APPEND_NEWLINE)


def _without(names: Collection[str], page: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in page.items() if name not in names}
    if "lines" in page:
        kept["lines"] = [{name: value for name, value in line.items() if name not in names} for line in page["lines"]]
    return kept


def _result_of(file: Path, answer: Answer, *, with_file: bool) -> NamedResult:
    from ocrsvc.document_output.requested_files import NamedResult
    from ocrsvc.document_output.result import DocumentResult
    from ocrsvc.readings import EngineInfo

    data = load(file) if with_file else b""
    if not isinstance(data, bytes):
        raise data
    pages = [_to_record(page) for page in answer.pages]
    result = DocumentResult(data, pages, len(pages), EngineInfo(**answer.engine), list(answer.failed))
    return NamedResult("" if str(file) == "-" else file.name, result)


def _to_record(value: Any) -> Any:
    """What the client has of a page, as the record of the same name and members that output formats take."""
    from ocrsvc import records

    if isinstance(value, tuple):
        return tuple(map(_to_record, value))
    if not is_dataclass(value):
        return value
    record = getattr(records, type(value).__name__)
    names = [member.name for member in fields(record) if hasattr(value, member.name)]
    return record(**{name: _to_record(getattr(value, name)) for name in names})
