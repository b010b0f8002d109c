"""Files made of what was read of a document or an image: searchable PDF, and Markdown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ocrsvc.adapters.turboocr.documents import DocumentCall
from ocrsvc.formats.document import DocumentResult, write_document
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.masked_pictures import picture_maker
from ocrsvc.readings import EngineInfo
from ocrsvc.records import Check, Page, ReadOptions
from ocrsvc.serving.memory_budget import Share
from ocrsvc.serving.work_queue import make_check

MARKDOWN_OPTIONS: Final = ReadOptions(layout=True, tables=True)
"""What Markdown needs of a page beside its text: tables, and which regions are headers and footers."""


def to_pdf(call: DocumentCall, read: FileRead, min_confidence: float | None) -> bytes:
    """The PDF with the text of the pages that were read. Raises as `write_document`."""
    pages = [_surer(reading.page, min_confidence) for reading in read.readings]
    failed = [number for number, _ in read.errors]
    is_masked = any(page.masked is not None for page in pages)
    picture_of = picture_maker(call.reader, call.file, call.deadline, call.context) if is_masked else None
    dpi = call.reader.settings.pdf_dpi
    result = DocumentResult(call.file, pages, len(pages), read.readings[0].engine, failed, picture_of, dpi)
    with call.reader.pdf_making.take(_check_of(call)):
        return _written("pdf", result, call)


def to_markdown(call: DocumentCall, pages: Sequence[Page], engine: EngineInfo) -> str:
    """The Markdown of some pages, each of several with a comment before it. Raises as `write_document`."""
    return _written("md", DocumentResult(call.file, pages, len(pages), engine), call).decode()


def whole_markdown(call: DocumentCall, read: FileRead) -> str:
    """That of all pages, each with its number in a comment before it; the format leaves out the first."""
    pages = [reading.page for reading in read.readings]
    return f"<!-- page {pages[0].number} -->\n\n{to_markdown(call, pages, read.readings[0].engine)}"


def markdown_pages(call: DocumentCall, read: FileRead) -> list[dict[str, object]]:
    """That of each page by itself."""
    found = {reading.page.number: reading for reading in read.readings}
    return [
        {"page_index": number - 1, "markdown": to_markdown(call, [reading.page], reading.engine)}
        if (reading := found.get(number))
        else {"page_index": number - 1, "markdown": "", "text_degraded": True}
        for number, _ in read.pages
    ]


def degraded_by(read: FileRead) -> str:
    """Which pages are missing from a file that is made of the others, as the header X-OCR-Degraded says it."""
    return f"text({','.join(f'p{number}' for number, _ in read.errors)})" if read.errors else ""


def _written(name: str, result: DocumentResult, call: DocumentCall) -> bytes:
    held = _HeldParts(call.context.share)
    write_document(name, result, held, call.left_s, _check_of(call))
    return held.taken()


def _check_of(call: DocumentCall) -> Check:
    return make_check(call.context, call.deadline, time.monotonic)


def _surer(page: Page, lowest: float | None) -> Page:
    if lowest is None:
        return page
    return replace(page, lines=tuple(line for line in page.lines if line.confidence >= lowest))


class _HeldParts:
    """Where a file is written to: memory, which the request's account pays for before it is taken."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._parts: list[bytes] = []

    def write(self, data: bytes | memoryview, /) -> None:
        """Take all of the bytes. Raises QueueFull, BodyTooLarge."""
        self._share.take(len(data))
        self._parts.append(bytes(data))

    def taken(self) -> bytes:
        """The whole file; the account is free of it, for whoever sends it takes it again."""
        whole = b"".join(self._parts)
        self._share.give_back(len(whole))
        self._parts.clear()
        return whole
