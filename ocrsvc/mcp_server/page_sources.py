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


@dataclass(frozen=True, slots=True)
class PageResult:
    """One page: its number, how many the document has, how many of them are read, and what was read or why not."""

    number: int
    total: int
    chosen: int
    outcome: Page | OcrsvcError


class PageSource(Protocol):
    """Reads the pages of files; for any thread."""

    def pages(
        self, data: bytes, ranges: Ranges, most: int, is_gone: Callable[[], bool], *, words: bool, tables: bool
    ) -> Generator[PageResult, None, None]:
        """The pages of a file in order, each as soon as it is read.

        Args:
            data: The file.
            ranges: Which are asked for.
            most: Of these the first so many are read.
            is_gone: Whether nobody waits any more.
            words: Whether lines are to have words.
            tables: Whether tables are found.

        Raises:
            OcrsvcError: The file cannot be read at all.
        """

    def close(self) -> None:
        """Let go of everything."""


class EnginePages:
    """An engine in this process, opened when it is first needed.

    Args:
        open_reader: Gives a reader that is warm.
    """

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open_reader = open_reader
        self._opening = threading.Lock()
        self._reader: Reader | None = None

    def _opened(self) -> Reader:
        with self._opening:
            if self._reader is None:
                self._reader = self._open_reader()
            return self._reader

    def pages(
        self, data: bytes, ranges: Ranges, most: int, is_gone: Callable[[], bool], *, words: bool, tables: bool
    ) -> Generator[PageResult, None, None]:
        """See PageSource."""
        options, context = ReadOptions(words=words, tables=tables), RequestContext(is_gone=is_gone)
        limit_s = PAGE_S * most
        with closing(self._opened().read_by_page(data, options, limit_s, context, ranges, most)) as pages:
            for page in pages:
                outcome = page.outcome.page if isinstance(page.outcome, Reading) else page.outcome
                yield PageResult(page.number, page.total, page.chosen, outcome)

    def close(self) -> None:
        """Stop the engine."""
        with self._opening:
            if self._reader is not None:
                self._reader.stop(5.0)


class ServicePages:
    """A service.

    Args:
        client: Asks it; closed with this.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def pages(
        self, data: bytes, ranges: Ranges, most: int, is_gone: Callable[[], bool], *, words: bool, tables: bool
    ) -> Generator[PageResult, None, None]:
        """See PageSource."""
        numbers: Sequence[int] = [min(first for first, _ in ranges)]
        chosen = total = None
        while numbers and not is_gone():
            pages = ",".join(map(str, numbers)) if may_have_pages(data) else None
            answer = self._client.read(data, timeout_s=PAGE_S, pages=pages, words=words, tables=tables)
            if chosen is None:
                total = answer.pages_total
                chosen = choose(ranges, total)[:most]
            by_number = {page.number: page.record() for page in answer.pages}
            for number in numbers:
                outcome = by_number.get(number) or answer.failed.get(number) or _lost(number)
                yield PageResult(number, answer.pages_total, len(chosen), outcome)
            done = chosen.index(numbers[-1]) + 1
            numbers = chosen[done : done + PAGES_TOGETHER]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _lost(number: int) -> OcrsvcError:
    return BrokenImage(f"The service answered nothing for page {number}.")
