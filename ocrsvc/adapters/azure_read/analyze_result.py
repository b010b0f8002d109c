"""The result of a job as Azure has it, written page by page, so that memory holds it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import orjson

from ocrsvc.adapters.azure_read.analyze_request import MARKDOWN, Asked
from ocrsvc.adapters.azure_read.pages import Scale, page_members, paragraph_members, table_members
from ocrsvc.adapters.azure_read.spans import PageText
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.formats.placed_blocks import markdown_by_page, placed_blocks
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import engine_of
from ocrsvc.records import Page

Take = Callable[[int], object]

_BETWEEN_PAGES: Final = {MARKDOWN: "\n<!-- PageBreak -->\n\n"}


class ResultWriter:
    """Writes one result.

    Args:
        asked: What it is to hold.
        dpi: At which pages of PDFs were drawn.
        take: Called with the bytes of each piece before it is kept; raises where there is no memory for it, or nobody
            waits for it any more.
    """

    def __init__(self, asked: Asked, dpi: int, take: Take) -> None:
        self._asked, self._take = asked, take
        self._scale = Scale(dpi if asked.is_pdf else None)
        self._between = _BETWEEN_PAGES.get(asked.content, "\n")
        self._length = 0
        self._content: list[bytes] = []
        self._members: dict[str, list[bytes]] = {"pages": [], "paragraphs": [], "tables": [], "warnings": []}

    def write(self, job: Job) -> list[bytes]:
        """The result of a job that is done, as JSON in pieces. Raises FileNotFoundError once it was deleted."""
        pages = self._pages(job)
        is_text = self._asked.content != MARKDOWN
        texts = ((page, page.text) for page in pages) if is_text else markdown_by_page(pages, engine_of(job))
        for page, text in texts:
            self._add_page(page, text)
        return list(self._pieces())

    def _pages(self, job: Job) -> Iterator[Page]:
        """Those that were read; of each other one a warning says why not."""
        for row in job.pages():
            if "page" in row:
                yield unpack_page(row["page"])
            else:
                self._add("warnings", {"code": row["code"], "message": row["error"], "target": f"page {row['number']}"})

    def _add_page(self, page: Page, written: str) -> None:
        between = self._between if self._members["pages"] else ""
        text = PageText(written, self._length + len(between), self._asked.index_type)
        self._length = text.begin + text.length
        self._content.append(self._kept(between + text.text)[1:-1])
        members = page_members(page, text, self._scale)
        self._add("pages", members)
        spans = [line["spans"][0] for line in members["lines"]]
        for block in placed_blocks(page):
            self._add("paragraphs", paragraph_members(block, page, spans, self._scale))
        for table in page.tables:
            self._add("tables", table_members(table, page.number, self._scale))

    def _add(self, member: str, value: object) -> None:
        self._members[member].append(self._kept(value))

    def _kept(self, value: object) -> bytes:
        piece = orjson.dumps(value)
        self._take(len(piece))
        return piece

    def _pieces(self) -> Iterator[bytes]:
        asked = self._asked
        head: dict[str, Any] = {
            "apiVersion": asked.version,
            "modelId": asked.model,
            "stringIndexType": asked.index_type,
            "contentFormat": asked.content,
            "styles": [],
        }
        yield orjson.dumps(head)[:-1]
        yield from (b',"content":"', *self._content, b'"')
        for member, pieces in self._members.items():
            if pieces or member == "pages":
                yield b',"%b":[' % member.encode()
                yield from pieces[:1]
                yield from chain.from_iterable((b",", piece) for piece in pieces[1:])
                yield b"]"
        yield b"}"
