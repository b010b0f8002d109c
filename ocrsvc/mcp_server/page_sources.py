"""Where pages are read: by an engine in this process, or by a service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Protocol

from ocrsvc.client.client import Client
from ocrsvc.errors import BrokenImage, OcrsvcError
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.imaging.page_ranges import Ranges, choose
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.records import Page, ReadOptions
from ocrsvc.serving.work_queue import RequestContext

# A service gets the whole file for each; so much is lost when nobody waits any more.
PAGES_TOGETHER: Final = 4
PAGE_S: Final = 300.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PagesWanted:
    """The pages of a file that are asked for, of which the first so many are read; words and tables, if wanted."""

    data: bytes
    ranges: Ranges
    most: int
    words: bool = False
    tables: bool = False


@dataclass(frozen=True, slots=True)
class PageResult:
    """One page: its number, how many the document has, how many of them are read, and what was read or why not."""

    number: int
    total: int
    chosen: int
    outcome: Page | OcrsvcError


Pages = Generator[PageResult, None, None]


class PageSource(Protocol):
    """Reads the pages of files; for any thread."""

    def pages(self, wanted: PagesWanted, is_gone: Callable[[], bool]) -> Pages:
        """The pages in order, each as soon as it is read, until `is_gone` says that nobody waits.

        Raises OcrsvcError: the file cannot be read at all.
        """

    def close(self) -> None:
        """Stop the engine, or close the connections."""


class EnginePages:
    """An engine in this process, opened when it is first needed: `open_reader` gives a reader that is warm."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open_reader = open_reader
        self._opening = threading.Lock()
        self._reader: Reader | None = None

    def pages(self, wanted: PagesWanted, is_gone: Callable[[], bool]) -> Pages:
        """See PageSource."""
        with self._opening:
            reader = self._reader = self._reader or self._open_reader()
        options, context = ReadOptions(words=wanted.words, tables=wanted.tables), RequestContext(is_gone=is_gone)
        limit_s = PAGE_S * wanted.most
        with closing(reader.read_by_page(wanted.data, options, limit_s, context, wanted.ranges, wanted.most)) as pages:
            for page in pages:
                outcome = page.outcome.page if isinstance(page.outcome, Reading) else page.outcome
                yield PageResult(page.number, page.total, page.chosen, outcome)

    def close(self) -> None:
        """Stop the engine."""
        with self._opening:
            if self._reader is not None:
                self._reader.stop(_STOP_S)


class ServicePages:
    """A service, which the client asks; it is closed with this."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.close = client.close

    def pages(self, wanted: PagesWanted, is_gone: Callable[[], bool]) -> Pages:
        """See PageSource."""
        numbers: Sequence[int] = [min(first for first, _ in wanted.ranges)]
        chosen: Sequence[int] | None = None
        while numbers and not is_gone():
            pages = ",".join(map(str, numbers)) if may_have_pages(wanted.data) else None
            answer = self._client.read(
                wanted.data, timeout_s=PAGE_S, pages=pages, words=wanted.words, tables=wanted.tables
            )
            chosen = chosen or choose(wanted.ranges, answer.pages_total)[: wanted.most]
            by_number = {page.number: page.record() for page in answer.pages}
            for number in numbers:
                outcome = by_number.get(number) or answer.failed.get(number)
                lost = BrokenImage(f"The service answered nothing for page {number}.")
                yield PageResult(number, answer.pages_total, len(chosen), outcome or lost)
            done = chosen.index(numbers[-1]) + 1
            numbers = chosen[done : done + PAGES_TOGETHER]
