"""The result of a job as Azure has it: made once, when its last page was read, and a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final, Self

import orjson

from ocrsvc.adapters.azure_read.analyze_request import MARKDOWN, Asked
from ocrsvc.adapters.azure_read.pages import Scale, page_members, paragraph_members, table_members
from ocrsvc.adapters.azure_read.spans import PageText
from ocrsvc.formats.blocks import blocks_of
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList, JsonText
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.formats.page_serialization import unpack_page
from ocrsvc.jobs.job import Job
from ocrsvc.records import Check, Page

SUCCEEDED: Final = "succeeded"
_BETWEEN_PAGES: Final = {MARKDOWN: "\n<!-- PageBreak -->\n\n"}
_LISTS: Final = ("pages", "paragraphs", "tables", "warnings")


def write_result(job: Job, output: Output, check: Check) -> None:
    """Write the answer about a document of which pages were read.

    Args:
        job: Whose pages are all read.
        output: Where to.
        check: Asked for each page; what it raises ends it.

    Raises:
        FileNotFoundError: It was deleted.
    """
    end = job.end()
    # Where it is the last thing that is made, the job has not ended yet.
    ended_s = end.at_s if end is not None else datetime.now(UTC).timestamp()
    members = {
        "status": SUCCEEDED,
        "createdDateTime": moment(job.came_at_s()),
        "lastUpdatedDateTime": moment(ended_s),
    }
    output.write(orjson.dumps(members)[:-1] + b',"analyzeResult":')
    with ResultWriter(Asked(**job.about()["asked"]), output) as writer:
        writer.write(job, check)
    output.write(b"}")


def moment(at_s: float) -> str:
    """A time of the clock on the wall as Azure writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ResultWriter:
    """Writes one result; the lists that grow side by side are in files without names meanwhile.

    Args:
        asked: What it is to hold.
        output: Where to.
    """

    def __init__(self, asked: Asked, output: Output) -> None:
        self._asked, self._output = asked, output
        self._scale = Scale(asked.dpi if asked.is_pdf else None)
        self._between = _BETWEEN_PAGES.get(asked.content, "\n")
        self._length = 0
        self._opened = ExitStack()
        self._lists = {name: self._opened.enter_context(JsonList()) for name in _LISTS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def write(self, job: Job, check: Check) -> None:
        """Write the result of a job. Raises FileNotFoundError once it was deleted, and what `check` raises."""
        asked = self._asked
        head: dict[str, Any] = {
            "apiVersion": asked.version,
            "modelId": asked.model,
            "stringIndexType": asked.index_type,
            "contentFormat": asked.content,
            "styles": [],
        }
        self._output.write(orjson.dumps(head)[:-1] + b',"content":')
        with JsonText(self._output) as content:
            for page, text in self._texts(job):
                check()
                content.write(self._add_page(page, text).encode())
        for name, values in self._lists.items():
            if len(values) or name == "pages":
                self._output.write(b',"%b":' % name.encode())
                values.copy_to(self._output)
        self._output.write(b"}")

    def _texts(self, job: Job) -> Iterator[tuple[Page, str]]:
        pages = self._pages(job)
        if self._asked.content == MARKDOWN:
            return markdown_by_page(pages)
        return ((page, page.text) for page in pages)

    def _pages(self, job: Job) -> Iterator[Page]:
        """Those that were read; of each other one a warning says why not."""
        for row in job.pages():
            if "page" in row:
                yield unpack_page(row["page"])
            else:
                warning = {"code": row["code"], "message": row["error"], "target": f"page {row['number']}"}
                self._lists["warnings"].append(warning)

    def _add_page(self, page: Page, written: str) -> str:
        """Add a page to the lists; what it adds to the content."""
        between = self._between if len(self._lists["pages"]) else ""
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
