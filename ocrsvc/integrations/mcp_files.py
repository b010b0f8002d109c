"""The files that a tool is given, and where their pages are read: by an engine in this process, or by a service."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ocrsvc.client.client import Client
from ocrsvc.connections.fetching import fetch_file
from ocrsvc.connections.policy import OutgoingPolicy
from ocrsvc.errors import BadOption, BodyTooLarge, BrokenImage, NothingSent, OcrsvcError
from ocrsvc.http.base64text import decode_base64
from ocrsvc.imaging.document import may_have_pages
from ocrsvc.imaging.page_ranges import Ranges, choose
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Page, Reading, ReadOptions
from ocrsvc.serving.work_queue import RequestContext

# A service gets the whole file for each; so much is lost when nobody waits any more.
PAGES_TOGETHER: Final = 4
PAGE_S: Final = 300.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sources:
    """What may be read: files in these folders, links out of them excepted, and addresses that `policy` allows.

    `limit_s` is how long fetching from an address may take.
    """

    folders: Sequence[Path]
    most_bytes: int
    policy: OutgoingPolicy
    limit_s: float

    def load(self, path: str, base64: str, url: str) -> bytes:
        """The bytes of the one that is not empty.

        Raises BadOption (not exactly one, or a path out of the folders), NothingSent, BodyTooLarge, and as
        `decode_base64` and `fetch_file`.
        """
        if sum(map(bool, (path, base64, url))) != 1:
            raise BadOption("Exactly one of path, base64 and url is to be given.")
        if path:
            return self._file(path)
        if base64:
            # Four letters stand for three bytes; a data URI has a few more.
            self._check_size(len(base64) // 4 * 3 - 1024)
            return decode_base64(base64)
        if not self.policy.is_on:
            raise BadOption("Addresses are not fetched here.", "Save the file, and give its path.")
        return fetch_file(url, self.policy, self.limit_s).data

    def _file(self, path: str) -> bytes:
        """A file of a folder. What was opened is checked, not the name, which others may change meanwhile."""
        try:
            # A pipe would wait for a writer.
            full = Path(os.path.realpath(self.folders[0] / path if self.folders else Path(path)))
            self._check_within(full, path)
            opened = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name holds a null"
            raise NothingSent(f"{path[:200]} cannot be read: {reason}.", "Check its name.") from error
        try:
            self._check_within(Path(os.path.realpath(f"/proc/self/fd/{opened}")), path)
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise NothingSent(f"{path[:200]} is no file.")
            with os.fdopen(opened, "rb", closefd=False) as file:
                data = file.read(self.most_bytes + 1)
        finally:
            os.close(opened)
        self._check_size(len(data))
        return data

    def _check_within(self, full: Path, path: str) -> None:
        if not any(full.is_relative_to(folder.resolve()) for folder in self.folders):
            where = " or ".join(map(str, self.folders)) or "no folder: none is named with --folder"
            raise BadOption(f"{path[:200]} is not where files may be read, which is {where}.")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.most_bytes:
            raise BodyTooLarge(f"The file is larger than {self.most_bytes} bytes (--most-bytes).")


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
        """The pages in order, each once it is read, until `is_gone`. Raises OcrsvcError for a file as a whole."""

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
        asked = options, PAGE_S * wanted.most, context, wanted.ranges, wanted.most
        with closing(reader.read_files_by_page([wanted.data], *asked)) as pages:
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
