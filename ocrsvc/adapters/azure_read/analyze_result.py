"""Writes a finished job's result as Azure's analyzeResult, a page at a time."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

import orjson

from ocrsvc.formats.blocks import Block, blocks_of
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList, JsonText
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import JobPages
from ocrsvc.results import Box, Check, Line, Page, Table

SUCCEEDED: Final = "succeeded"
MARKDOWN: Final = "markdown"
_LISTS: Final = ("pages", "paragraphs", "tables", "warnings")

_INCH_DIGITS, _PIXEL_DIGITS, _CONFIDENCE_DIGITS = 4, 1, 3
_LAST_OF_BMP: Final = 0xFFFF
# How many characters ahead a text is searched in the Markdown; unlimited, each escaped text would cost a full scan.
_SEARCH_CHARACTERS: Final = 4096
Node = dict[str, Any]
Span = dict[str, int]


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """A client's options, stored with the job; `dpi` is the rendering resolution of PDF pages, None for an image."""

    model: str
    version: str
    content: str
    index_type: str
    dpi: int | None


def write_result(job: Job, output: Output, check: Check) -> None:
    """Write the result, calling `check` before each page. Raises as `check`; FileNotFoundError for a deleted job."""
    record, ended_s = job.record(), job.progress().ended_at_s
    members = {
        "status": SUCCEEDED,
        "createdDateTime": moment(record.came_at_s),
        # The job's end time is recorded only after its result file is written: until then, use the present time.
        "lastUpdatedDateTime": moment(ended_s or datetime.now(UTC).timestamp()),
    }
    output.write(orjson.dumps(members)[:-1] + b',"analyzeResult":')
    with ExitStack() as stack:
        lists = {name: stack.enter_context(JsonList()) for name in _LISTS}
        _ResultWriter(AnalyzeOptions(**record.asked), lists).write(job, output, check)
    output.write(b"}")


def moment(at_s: float) -> str:
    """Format a time in seconds since 1970 as Azure does."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _ResultWriter:
    """Writes the text of one result, and collects its pages, paragraphs, tables and warnings in `lists`."""

    def __init__(self, options: AnalyzeOptions, lists: dict[str, JsonList]) -> None:
        self._options, self._lists, self._length = options, lists, 0
        self._scale = Scale(options.dpi)

    def write(self, job: Job, output: Output, check: Check) -> None:
        options, pages = self._options, JobPages(job)
        head: Node = {"apiVersion": options.version, "modelId": options.model, "stringIndexType": options.index_type}
        head |= {"contentFormat": options.content, "styles": []}
        output.write(orjson.dumps(head)[:-1] + b',"content":')
        texts = markdown_by_page(pages) if options.content == MARKDOWN else ((page, page.text) for page in pages)
        with JsonText(output) as content:
            for page, text in texts:
                check()
                content.write(self._add_page(page, text).encode())
        for row in job.pages():
            if "error" in row:
                warning = {"code": row["code"], "message": row["error"], "target": f"page {row['number']}"}
                self._lists["warnings"].append(warning)
        for name, values in self._lists.items():
            if len(values) or name == "pages":
                output.write(b',"%b":' % name.encode())
                values.copy_to(output)
        output.write(b"}")

    def _add_page(self, page: Page, written: str) -> str:
        """Collect the JSON of a page whose text is `written`; return the text, with a separator before it if needed."""
        mark = "\n<!-- PageBreak -->\n\n" if self._options.content == MARKDOWN else "\n"
        between = mark if len(self._lists["pages"]) else ""
        text = PageText(written, self._length + len(between), self._options.index_type)
        self._length = text.begin + text.length
        members = page_members(page, text, self._scale)
        self._lists["pages"].append(members)
        spans = [line["spans"][0] for line in members["lines"]]
        for block in blocks_of(page):
            self._lists["paragraphs"].append(paragraph_members(block, page, spans, self._scale))
        for table in page.tables:
            self._lists["tables"].append(table_members(table, page.number, self._scale))
        return between + text.text


class PageText:
    """One page's text, starting at offset `begin` of the content; units are code points or UTF-16 code units."""

    def __init__(self, text: str, begin: int, index_type: str) -> None:
        self.text, self.begin = text, begin
        # Number of UTF-16 units before each code point; None if each code point counts as one unit.
        self._units: list[int] | None = None
        if index_type == "utf16CodeUnit" and not text.isascii() and max(map(ord, text)) > _LAST_OF_BMP:
            self._units = list(accumulate((1 + (ord(character) > _LAST_OF_BMP) for character in text), initial=0))

    @property
    def length(self) -> int:
        """The length of the page's text in the units of Azure's offsets."""
        return self._at(len(self.text))

    def span(self, begin: int, end: int) -> Span:
        """Azure's span from code point `begin` to `end` of the page."""
        first = self._at(begin)
        return {"offset": self.begin + first, "length": self._at(end) - first}

    def find(self, piece: str, after: int) -> tuple[int, int]:
        """Begin and end of a text's next occurrence; both are `after` if it is not found, as Markdown may escape it."""
        begin = self.text.find(piece, after, after + len(piece) + _SEARCH_CHARACTERS)
        return (after, after) if begin < 0 else (begin, begin + len(piece))

    def _at(self, place: int) -> int:
        return place if self._units is None else self._units[place]


@dataclass(frozen=True, slots=True)
class Scale:
    """Unit of lengths in the response: inches on PDF pages, pixels on images."""

    dpi: int | None

    @property
    def unit(self) -> str:
        """The unit of coordinates, as Azure names it: pixel or inch."""
        return "pixel" if self.dpi is None else "inch"

    def length(self, px: float) -> float:
        """Convert a length in pixels to this unit."""
        return round(px, _PIXEL_DIGITS) if self.dpi is None else round(px / self.dpi, _INCH_DIGITS)

    def polygon(self, box: Box) -> list[float]:
        """The coordinates of a box in this unit: x and y of its four corners, clockwise."""
        return [self.length(number) for corner in box for number in corner]


def page_members(page: Page, text: PageText, scale: Scale) -> Node:
    """Azure's JSON of a page; `text` is the page's text in the member `content`, in the order of `page.lines`."""
    lines, words = _lines_and_words(page.lines, text, scale)
    members: Node = {
        "pageNumber": page.number,
        # Azure's range of clockwise degrees: -179 to 180.
        "angle": 180 - (180 + page.angle) % 360,
        "width": scale.length(page.width),
        "height": scale.length(page.height),
        "unit": scale.unit,
        "spans": [text.span(0, len(text.text))],
        "words": words,
        "lines": lines,
    }
    if page.barcodes:
        # A barcode's value is not part of the content, so its span is empty, at the page's end.
        place = {"span": text.span(len(text.text), len(text.text)), "confidence": 1.0}
        members["barcodes"] = [
            {"kind": code.type, "value": code.text, "polygon": scale.polygon(code.box), **place}
            for code in page.barcodes
        ]
    return members


def paragraph_members(block: Block, page: Page, spans: Sequence[Span], scale: Scale) -> Node:
    """Azure's JSON of a paragraph; `spans` are the spans of the page's lines."""
    block_spans = [spans[number] for number in block.numbers]
    begin = min((span["offset"] for span in block_spans), default=0)
    end = max((span["offset"] + span["length"] for span in block_spans), default=0)
    members: Node = {
        "content": block.text,
        "boundingRegions": [{"pageNumber": page.number, "polygon": scale.polygon(block.frame(page))}],
        "spans": [{"offset": begin, "length": end - begin}],
    }
    if block.level:
        members["role"] = "title" if block.level == 1 else "sectionHeading"
    return members


def table_members(table: Table, number: int, scale: Scale) -> Node:
    """Azure's JSON of a table on page `number`."""

    def placed(box: Box) -> Node:
        return {"boundingRegions": [{"pageNumber": number, "polygon": scale.polygon(box)}], "spans": []}

    cells = [
        {
            "rowIndex": cell.row,
            "columnIndex": cell.column,
            "rowSpan": cell.row_span,
            "columnSpan": cell.column_span,
            "content": cell.text,
            **placed(cell.box),
        }
        for cell in table.cells
    ]
    return {"rowCount": table.rows, "columnCount": table.columns, "cells": cells, **placed(table.box)}


def _lines_and_words(page_lines: Iterable[Line], text: PageText, scale: Scale) -> tuple[list[Node], list[Node]]:
    """Azure's JSON of the lines and words; a line without words counts as one word."""
    lines: list[Node] = []
    words: list[Node] = []
    end = 0
    for line in page_lines:
        at, end = text.find(line.text, end)
        lines.append({"content": line.text, "polygon": scale.polygon(line.box), "spans": [text.span(at, end)]})
        for word in line.words or (line,):
            begin, at = text.find(word.text, at)
            polygon, confidence = scale.polygon(word.box), round(word.confidence, _CONFIDENCE_DIGITS)
            span = text.span(begin, at)
            words.append({"content": word.text, "polygon": polygon, "confidence": confidence, "span": span})
    return lines, words
