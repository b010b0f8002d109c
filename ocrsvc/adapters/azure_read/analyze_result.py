"""Writes the result of a job as Azure has it: once, after its last page was read, and a page at a time."""

from __future__ import annotations

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
from ocrsvc.results import Barcode, Box, Check, Line, Page, Table, Word

SUCCEEDED: Final = "succeeded"
MARKDOWN: Final = "markdown"
_LISTS: Final = ("pages", "paragraphs", "tables", "warnings")

_INCH_DIGITS: Final = 4
_PIXEL_DIGITS: Final = 1
_CONFIDENCE_DIGITS: Final = 3
_LAST_OF_ONE_UNIT: Final = 0xFFFF
# How far ahead a text is looked for, which Markdown may have changed.
_AHEAD: Final = 4096
Node = dict[str, Any]
Span = dict[str, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked for; kept with the job. Pages of a PDF are drawn at `dpi`, which images lack."""

    model: str
    version: str
    content: str
    index_type: str
    dpi: int | None


def write_result(job: Job, output: Output, check: Check) -> None:
    """Write the result; `check` is called for each page. Raises what it raises; FileNotFoundError for a deleted job."""
    record, ended_s = job.record(), job.progress().ended_at_s
    members = {
        "status": SUCCEEDED,
        "createdDateTime": moment(record.came_at_s),
        # Where it is the last thing that is made, the job has not ended yet.
        "lastUpdatedDateTime": moment(ended_s or datetime.now(UTC).timestamp()),
    }
    output.write(orjson.dumps(members)[:-1] + b',"analyzeResult":')
    with ExitStack() as stack:
        lists = {name: stack.enter_context(JsonList()) for name in _LISTS}
        _ResultWriter(Asked(**record.asked), lists).write(job, output, check)
    output.write(b"}")


def moment(at_s: float) -> str:
    """A time in seconds since 1970 as Azure writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _ResultWriter:
    """Writes one result; `lists` grow side by side meanwhile."""

    def __init__(self, asked: Asked, lists: dict[str, JsonList]) -> None:
        self._asked, self._lists, self._length = asked, lists, 0
        self._scale = Scale(asked.dpi)

    def write(self, job: Job, output: Output, check: Check) -> None:
        asked, pages = self._asked, JobPages(job)
        head: Node = {"apiVersion": asked.version, "modelId": asked.model, "stringIndexType": asked.index_type}
        head |= {"contentFormat": asked.content, "styles": []}
        output.write(orjson.dumps(head)[:-1] + b',"content":')
        texts = markdown_by_page(pages) if asked.content == MARKDOWN else ((page, page.text) for page in pages)
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
        """Add a page to the lists; returns what it adds to the content."""
        mark = "\n<!-- PageBreak -->\n\n" if self._asked.content == MARKDOWN else "\n"
        between = mark if len(self._lists["pages"]) else ""
        text = PageText(written, self._length + len(between), self._asked.index_type)
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
    """The text of one page, which begins after `begin` units of the content: code points, or those of UTF-16."""

    def __init__(self, text: str, begin: int, index_type: str) -> None:
        self.text, self.begin = text, begin
        # The units before each code point, where they are not its number.
        self._units: list[int] | None = None
        if index_type == "utf16CodeUnit" and not text.isascii() and max(map(ord, text)) > _LAST_OF_ONE_UNIT:
            self._units = list(accumulate((1 + (ord(character) > _LAST_OF_ONE_UNIT) for character in text), initial=0))

    @property
    def length(self) -> int:
        """The page's length in units."""
        return self._at(len(self.text))

    def span(self, begin: int, end: int) -> Span:
        """From one code point of the page to another."""
        first = self._at(begin)
        return {"offset": self.begin + first, "length": self._at(end) - first}

    def find(self, piece: str, after: int) -> tuple[int, int]:
        """Where a piece of the page stands next; an empty place where Markdown has changed it."""
        begin = self.text.find(piece, after, after + len(piece) + _AHEAD)
        return (after, after) if begin < 0 else (begin, begin + len(piece))

    def _at(self, place: int) -> int:
        return place if self._units is None else self._units[place]


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of lengths: inches on a page of a PDF, pixels on an image."""

    dpi: int | None

    @property
    def unit(self) -> str:
        """The unit's name."""
        return "pixel" if self.dpi is None else "inch"

    def length(self, px: float) -> float:
        """A length in pixels as one in this unit."""
        return round(px, _PIXEL_DIGITS) if self.dpi is None else round(px / self.dpi, _INCH_DIGITS)

    def polygon(self, box: Box) -> list[float]:
        """x and y of four corners, clockwise."""
        return [self.length(number) for corner in box for number in corner]


def page_members(page: Page, text: PageText, scale: Scale) -> Node:
    """One page; `text` is its part of the content, in which the lines stand in their order."""
    lines, words = _lines_and_words(page.lines, text, scale)
    members: Node = {
        "pageNumber": page.number,
        # Clockwise, from -179 to 180.
        "angle": 180 - (180 + page.angle) % 360,
        "width": scale.length(page.width),
        "height": scale.length(page.height),
        "unit": scale.unit,
        "spans": [text.span(0, len(text.text))],
        "words": words,
        "lines": lines,
    }
    if page.barcodes:
        members["barcodes"] = [_barcode(barcode, text, scale) for barcode in page.barcodes]
    return members


def paragraph_members(block: Block, page: Page, spans: Sequence[Span], scale: Scale) -> Node:
    """One block of a page; `spans` are those of the page's lines."""
    own = [spans[number] for number in block.numbers]
    begin = min((span["offset"] for span in own), default=0)
    end = max((span["offset"] + span["length"] for span in own), default=0)
    members: Node = {
        "content": block.text,
        "boundingRegions": [{"pageNumber": page.number, "polygon": scale.polygon(block.frame(page))}],
        "spans": [{"offset": begin, "length": end - begin}],
    }
    if block.level:
        members["role"] = "title" if block.level == 1 else "sectionHeading"
    return members


def table_members(table: Table, number: int, scale: Scale) -> Node:
    """One table on the page with this number."""

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


def _lines_and_words(found: Iterable[Line], text: PageText, scale: Scale) -> tuple[list[Node], list[Node]]:
    """All lines and all words; a line without words is one word."""
    lines: list[Node] = []
    words: list[Node] = []
    end = 0
    for line in found:
        at, end = text.find(line.text, end)
        lines.append({"content": line.text, "polygon": scale.polygon(line.box), "spans": [text.span(at, end)]})
        for word in line.words or (line,):
            begin, at = text.find(word.text, at)
            words.append(_word(word, text.span(begin, at), scale))
    return lines, words


def _word(word: Word | Line, span: dict[str, int], scale: Scale) -> Node:
    confidence = round(word.confidence, _CONFIDENCE_DIGITS)
    return {"content": word.text, "polygon": scale.polygon(word.box), "confidence": confidence, "span": span}


def _barcode(barcode: Barcode, text: PageText, scale: Scale) -> Node:
    return {
        "kind": barcode.type,
        "value": barcode.text,
        "polygon": scale.polygon(barcode.box),
        # What it says is no part of the content.
        "span": text.span(len(text.text), len(text.text)),
        "confidence": 1.0,
    }
