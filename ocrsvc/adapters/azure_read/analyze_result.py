"""The result of a job as Azure has it: made once, when its last page was read, and a page at a time.

Lines, words and bar codes have polygons, and their places in the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

import orjson

from ocrsvc.adapters.azure_read.analyze_request import MARKDOWN, Asked
from ocrsvc.formats.blocks import Block, blocks_of
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList, JsonText
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import JobPages
from ocrsvc.records import Barcode, Box, Check, Line, Page, Table, Word

SUCCEEDED: Final = "succeeded"
_LISTS: Final = ("pages", "paragraphs", "tables", "warnings")

_INCH_DIGITS: Final = 4
_PIXEL_DIGITS: Final = 1
_CONFIDENCE_DIGITS: Final = 3
_HALF_TURN, _TURN = 180, 360
_LAST_OF_ONE_UNIT: Final = 0xFFFF
# How far ahead a text is looked for that Markdown may have changed.
_AHEAD: Final = 4096
Span = dict[str, int]


def write_result(job: Job, output: Output, check: Check) -> None:
    """Write the answer about a document of which pages were read; `check` is asked for each page, and ends it early.

    Raises:
        FileNotFoundError: It was deleted.
    """
    record, ended_s = job.record(), job.progress().ended_at_s
    members = {
        "status": SUCCEEDED,
        "createdDateTime": moment(record.came_at_s),
        # Where it is the last thing that is made, the job has not ended yet.
        "lastUpdatedDateTime": moment(ended_s or datetime.now(UTC).timestamp()),
    }
    output.write(orjson.dumps(members)[:-1] + b',"analyzeResult":')
    # The lists that grow side by side are in files without names meanwhile.
    with ExitStack() as stack:
        lists = {name: stack.enter_context(JsonList()) for name in _LISTS}
        _ResultWriter(Asked(**record.asked), lists).write(job, output, check)
    output.write(b"}")


def moment(at_s: float) -> str:
    """A time of the clock on the wall as Azure writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _ResultWriter:
    """Writes one result."""

    def __init__(self, asked: Asked, lists: dict[str, JsonList]) -> None:
        self._asked, self._lists, self._length = asked, lists, 0
        self._scale = Scale(asked.dpi if asked.is_pdf else None)

    def write(self, job: Job, output: Output, check: Check) -> None:
        """Write the result of a job. Raises FileNotFoundError once it was deleted, and what `check` raises."""
        asked, pages = self._asked, JobPages(job)
        head: dict[str, Any] = {
            "apiVersion": asked.version,
            "modelId": asked.model,
            "stringIndexType": asked.index_type,
            "contentFormat": asked.content,
            "styles": [],
        }
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
        """Add a page to the lists; what it adds to the content."""
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
    """The text of one page within the content, of which `begin` units are before it, counted as the client counts."""

    def __init__(self, text: str, begin: int, index_type: str) -> None:
        self.text, self.begin = text, begin
        # How many units there are before each code point, where that is not its number.
        self._units: list[int] | None = None
        if index_type == "utf16CodeUnit" and not text.isascii() and max(map(ord, text)) > _LAST_OF_ONE_UNIT:
            self._units = list(accumulate((1 + (ord(sign) > _LAST_OF_ONE_UNIT) for sign in text), initial=0))

    @property
    def length(self) -> int:
        """Of the whole page, in units: code points, or those of UTF-16."""
        return self._at(len(self.text))

    def span(self, begin: int, end: int) -> Span:
        """From a code point of the page to another."""
        first = self._at(begin)
        return {"offset": self.begin + first, "length": self._at(end) - first}

    def find(self, piece: str, after: int) -> tuple[int, int]:
        """Where a piece of the page stands next; nothing at that place where it was changed."""
        begin = self.text.find(piece, after, after + len(piece) + _AHEAD)
        return (after, after) if begin < 0 else (begin, begin + len(piece))

    def _at(self, place: int) -> int:
        return place if self._units is None else self._units[place]


@dataclass(frozen=True, slots=True)
class Scale:
    """In what lengths are told: inches of a PDF's page, pixels of an image."""

    dpi: int | None

    @property
    def unit(self) -> str:
        """As the result names it."""
        return "pixel" if self.dpi is None else "inch"

    def length(self, px: float) -> float:
        """A length in pixels, in this unit."""
        return round(px, _PIXEL_DIGITS) if self.dpi is None else round(px / self.dpi, _INCH_DIGITS)

    def polygon(self, box: Box) -> list[float]:
        """x and y of four corners, clockwise."""
        return [self.length(number) for corner in box for number in corner]


def page_members(page: Page, text: PageText, scale: Scale) -> dict[str, Any]:
    """One page; `text` is its part of the content, in which the lines stand in their order."""
    lines, words = _lines_and_words(page.lines, text, scale)
    members: dict[str, Any] = {
        "pageNumber": page.number,
        "angle": _angle(page),
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


def paragraph_members(block: Block, page: Page, spans: Sequence[Span], scale: Scale) -> dict[str, Any]:
    """One block of a page, given where its lines stand in the content."""
    own = [spans[number] for number in block.numbers]
    begin = min((span["offset"] for span in own), default=0)
    end = max((span["offset"] + span["length"] for span in own), default=0)
    members: dict[str, Any] = {
        "content": block.text,
        "boundingRegions": [{"pageNumber": page.number, "polygon": scale.polygon(block.frame(page))}],
        "spans": [{"offset": begin, "length": end - begin}],
    }
    if block.level:
        members["role"] = "title" if block.level == 1 else "sectionHeading"
    return members


def table_members(table: Table, number: int, scale: Scale) -> dict[str, Any]:
    """One table of the page of this number."""

    def placed(box: Box) -> dict[str, Any]:
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


def _lines_and_words(
    found: Iterable[Line], text: PageText, scale: Scale
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All lines, and all words; a line whose engine knows none is one word."""
    lines: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    end = 0
    for line in found:
        at, end = text.find(line.text, end)
        lines.append({"content": line.text, "polygon": scale.polygon(line.box), "spans": [text.span(at, end)]})
        for word in line.words or (line,):
            begin, at = text.find(word.text, at)
            words.append(_word(word, text.span(begin, at), scale))
    return lines, words


def _word(word: Word | Line, span: dict[str, int], scale: Scale) -> dict[str, Any]:
    confidence = round(word.confidence, _CONFIDENCE_DIGITS)
    return {"content": word.text, "polygon": scale.polygon(word.box), "confidence": confidence, "span": span}


def _barcode(barcode: Barcode, text: PageText, scale: Scale) -> dict[str, Any]:
    return {
        "kind": barcode.type,
        "value": barcode.text,
        "polygon": scale.polygon(barcode.box),
        # What it says is no part of the content.
        "span": text.span(len(text.text), len(text.text)),
        "confidence": 1.0,
    }


def _angle(page: Page) -> int:
    """By how much the content is turned clockwise, from -179 to 180."""
    turned = -page.angle % _TURN
    return turned - _TURN if turned > _HALF_TURN else turned
