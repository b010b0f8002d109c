"""Output as one text of each source: plain text, TSV, hOCR or ALTO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import orjson

from ocrsvc.batch.outputs.contract import FileResults
from ocrsvc.batch.outputs.hashed_writing import HashedFile
from ocrsvc.batch.outputs.source_files import SourceFiles
from ocrsvc.formats.output_formats import OUTPUT_FORMATS, OutputFormat
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Box, Line, Page, Word


def text_files(name: str, folder: str, identity: Mapping[str, str]) -> SourceFiles:
    """What writes the format of this name in `formats.output_formats`.

    Args:
        name: Of the format.
        folder: As of SourceFiles.
        identity: Engine, model and version that read.
    """
    form = OUTPUT_FORMATS[name]
    engine = EngineInfo(identity["engine"], identity["model"], identity["version"], "", "", "")
    return SourceFiles(name, folder, form.suffix, partial(_write, form, engine))


def _write(form: OutputFormat, engine: EngineInfo, results: FileResults, output: HashedFile) -> None:
    for part in form.parts(_pages_of(results), len(results.pages), engine):
        output.write(part.encode(errors="replace"))


def _pages_of(results: FileResults) -> Iterator[Page]:
    """The pages, one at a time; one that has failed is empty."""
    for number in results.pages:
        record = orjson.loads(results.record(number))
        lines = tuple(map(_line_of, record["lines"]))
        yield Page(record.get("width", 0), record.get("height", 0), record.get("angle", 0), lines, number)


def _line_of(line: Mapping[str, Any]) -> Line:
    """A line of a record, and its words where it has some; formats have no place for characters."""
    words = None
    if "words" in line:
        words = tuple(Word(word["text"], word["confidence"], _box_of(word)) for word in line["words"])
    return Line(line["text"], line["confidence"], _box_of(line), words)


def _box_of(text: Mapping[str, Any]) -> Box:
    one, two, three, four = ((float(x), float(y)) for x, y in text["box"])
    return one, two, three, four
