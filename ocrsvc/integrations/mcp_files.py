"""Loads the files of MCP tool calls, and recognizes their pages with an engine in this process or with a service."""

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

# Pages per request to a service; each request sends the whole file again.
PAGES_PER_REQUEST: Final = 4
PAGE_S: Final = 300.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sources:
    """What tools may read: files in these folders, without links out of them, and URLs that `policy` allows.

    `limit_s` is the time limit for fetching a URL.
    """

    folders: Sequence[Path]
    max_bytes: int
    policy: OutgoingPolicy
    limit_s: float

    def load(self, path: str, base64: str, url: str) -> bytes:
        """Load the file given by the one argument that is not empty.

        Raises BadOption (not exactly one argument, or a path outside the folders), NothingSent, BodyTooLarge, and what
        `decode_base64` and `fetch_file` raise.
        """
        if sum(map(bool, (path, base64, url))) != 1:
            raise BadOption("Give exactly one of path, base64 and url.")
        if path:
            return self._file(path)
        if base64:
            # Four characters encode three bytes; 1024 bytes are left for the header of a data URI.
            self._check_size(len(base64) // 4 * 3 - 1024)
            return decode_base64(base64)
        if not self.policy.is_on:
            raise BadOption("URLs are not fetched here.", "Save the file and give its path.")
        return fetch_file(url, self.policy, self.limit_s).data

    def _file(self, path: str) -> bytes:
        """Read a file in the folders; checks the opened file again, because its path may be replaced meanwhile."""
        try:
            full = Path(os.path.realpath(self.folders[0] / path if self.folders else Path(path)))
            self._check_within(full, path)
            # With O_NONBLOCK, because opening a pipe would otherwise wait for a writer.
            descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name has a null character"
            raise NothingSent(f"{path[:200]} cannot be read: {reason}.", "Check its name.") from error
        try:
            self._check_within(Path(os.path.realpath(f"/proc/self/fd/{descriptor}")), path)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NothingSent(f"{path[:200]} is not a file.")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(self.max_bytes + 1)
        finally:
            os.close(descriptor)
        self._check_size(len(data))
        return data

    def _check_within(self, full: Path, path: str) -> None:
        if not any(full.is_relative_to(folder.resolve()) for folder in self.folders):
            where = " or ".join(map(str, self.folders)) or "no folder (see --folder)"
            raise BadOption(f"{path[:200]} may not be read: allowed is {where}.")

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_bytes:
            raise BodyTooLarge(f"The file is larger than {self.max_bytes} bytes (--most-bytes).")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for pages of a file: at most `max_pages` of those in `ranges`, with words and tables if requested."""

    data: bytes
    ranges: Ranges
    max_pages: int
    words: bool = False
    tables: bool = False


@dataclass(frozen=True, slots=True)
class PageResult:
    """Page `number` of a document of `total` pages, of which `chosen` are read; `outcome` is the page or its error."""

    number: int
    total: int
    chosen: int
    outcome: Page | OcrsvcError


Pages = Generator[PageResult, None, None]


class PageSource(Protocol):
    """Recognizes the pages of files; any thread may call it."""

    def pages(self, request: PageRequest, is_gone: Callable[[], bool]) -> Pages:
        """Yield pages in order as they are read, until `is_gone()`. Raises OcrsvcError for an unreadable file."""

    def close(self) -> None:
        """Stop the engine or close the connections."""


class EnginePages:
    """Recognizes pages with an engine in this process; `open_reader` opens a warm reader at first use."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open_reader = open_reader
        self._opening = threading.Lock()
        self._reader: Reader | None = None

    def pages(self, request: PageRequest, is_gone: Callable[[], bool]) -> Pages:
        """Yield the pages of a file; see PageSource."""
        with self._opening:
            reader = self._reader = self._reader or self._open_reader()
        options, context = ReadOptions(words=request.words, tables=request.tables), RequestContext(is_gone=is_gone)
        arguments = options, PAGE_S * request.max_pages, context, request.ranges, request.max_pages
        with closing(reader.read_files_by_page([request.data], *arguments)) as pages:
            for page in pages:
                outcome = page.outcome.page if isinstance(page.outcome, Reading) else page.outcome
                yield PageResult(page.number, page.total, page.chosen, outcome)

    def close(self) -> None:
        """Stop the engine."""
        with self._opening:
            if self._reader is not None:
                self._reader.stop(_STOP_S)


class ServicePages:
    """Recognizes pages with a service through `client`, which `close` closes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.close = client.close

    def pages(self, request: PageRequest, is_gone: Callable[[], bool]) -> Pages:
        """Yield the pages of a file; see PageSource."""
        numbers: Sequence[int] = [min(first for first, _ in request.ranges)]
        chosen: Sequence[int] | None = None
        while numbers and not is_gone():
            pages = ",".join(map(str, numbers)) if may_have_pages(request.data) else None
            answer = self._client.read(
                request.data, timeout_s=PAGE_S, pages=pages, words=request.words, tables=request.tables
            )
            chosen = chosen or choose(request.ranges, answer.pages_total)[: request.max_pages]
            by_number = {page.number: page.record() for page in answer.pages}
            for number in numbers:
                outcome = by_number.get(number) or answer.failed.get(number)
                lost = BrokenImage(f"The service's response lacks page {number}.")
                yield PageResult(number, answer.pages_total, len(chosen), outcome or lost)
            done = chosen.index(numbers[-1]) + 1
            numbers = chosen[done : done + PAGES_PER_REQUEST]
