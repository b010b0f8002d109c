"""The result of a job as Azure has it: made once, when its last page was read, and a page at a time."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from ocrsvc.adapters.azure_read.analyze_request import MARKDOWN, Asked
from ocrsvc.adapters.azure_read.pages import PageText, Scale, page_members, paragraph_members, table_members
from ocrsvc.formats.blocks import blocks_of
from ocrsvc.formats.document import Output
from ocrsvc.formats.json_stream import JsonList, JsonText
from ocrsvc.formats.markdown import markdown_by_page
from ocrsvc.jobs.job import Job
from ocrsvc.jobs.job_result import JobPages
from ocrsvc.records import Check, Page

SUCCEEDED: Final = "succeeded"
_LISTS: Final = ("pages", "paragraphs", "tables", "warnings")


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
