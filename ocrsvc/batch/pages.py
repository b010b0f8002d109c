"""Data types of batch runs: files, groups of their pages, results of pages, and the interface of page readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from ocrsvc.errors import OcrsvcError

MAX_GROUP_PAGES: Final = 16
"""Largest number of pages of one file that are read together, for which the file is opened once."""
COPIED: Final = "copied"
"""Worker name of pages whose results were copied from a file with the same content."""
_PAGE_KEYS: Final = ("width", "height", "angle", "text", "lines", "regions", "tables", "barcodes", "masked")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file and the numbers of its pages to read, from 1; `name` is its name in results, unique in a plan.

    `address` is a path or URL. For a member of an archive, `kind` is the type of archive, and `place` locates it
    there. `version` changes with the content, "" if unknown. `total` is the page count; if 0 (unknown), page 1 is read.
    """

    name: str
    address: str
    version: str
    size: int
    total: int
    pages: range | tuple[int, ...]
    kind: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class FileResults:
    """A file and the pages that have a result, in order; `record` returns a page's JSON, `load` the file's bytes."""

    file: SourceFile
    pages: Sequence[int]
    record: Callable[[int], bytes]
    load: Callable[[], bytes]


Load = Callable[[SourceFile], bytes]
"""Returns the bytes of a file; raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Pages of one file that are read together; `pages` count from 1 in the file, `indexes` from 0 in the plan."""

    file: SourceFile
    pages: tuple[int, ...]
    indexes: tuple[int, ...]

    def index_of(self, number: int) -> int:
        """Convert a page's number in the file to its number in the plan."""
        return self.indexes[self.pages.index(number)]

    def only(self, numbers: Sequence[int]) -> PageGroup:
        """A copy of this group with only the pages that have these numbers in the file."""
        return PageGroup(self.file, tuple(numbers), tuple(map(self.index_of, numbers)))


@dataclass(frozen=True, slots=True)
class PageResult:
    """The result of one page; `index` is its number in the plan.

    `record` is one line of JSON without its newline, `error` an error code, "" for a page that was read. A retryable
    error is not the page's fault. `seconds` includes waits for an engine; `confidence` is the lines' mean, from 0 to 1.
    """

    index: int
    record: bytes
    error: str
    is_retryable: bool
    seconds: float
    confidence: float
    lines: int
    worker: str


class PageReader(Protocol):
    """Reads groups of pages in several threads at once; all readers return records with exactly the same bytes."""

    # Whether pages are read outside this process and its children, so that no page can crash this process.
    is_elsewhere: bool

    def start(self) -> Mapping[str, str]:
        """Start the reader; returns engine, model, version and whatever else affects results. Raises OcrsvcError."""

    @property
    def at_once(self) -> int:
        """Number of page groups that can be read at once; may change during a run."""

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """Yield a result for each page as soon as it is read. Raises OcrsvcError only if the run must stop."""

    def close(self) -> None:
        """Stop reading and free the engine or connections, within seconds."""


def record_head(source: str, number: int) -> bytes:
    """The bytes with which a page's JSON record begins: source and page number."""
    return orjson.dumps({"source": source, "page": number})[:-1] + b","


def result_of(group: PageGroup, number: int, page: Mapping[str, Any], seconds: float, worker: str) -> PageResult:
    """The result of a page that was read; `page` is its JSON from the native API."""
    record = {"source": group.file.name, "page": number}
    record |= {key: page[key] for key in _PAGE_KEYS if key in page} | {"error": None}
    return _read(group, number, orjson.dumps(record), page["lines"], seconds, worker)


def copied_result(record: bytes, source: str, group: PageGroup, number: int) -> PageResult:
    """Copy a result from the record of the same page of `source`, a file with the same content."""
    head = record_head(source, number)
    assert record.startswith(head), "every record begins with its source and page"
    copy = record_head(group.file.name, number) + record[len(head) :]
    return _read(group, number, copy, orjson.loads(record)["lines"], 0.0, COPIED)


def failure_of(group: PageGroup, number: int, error: OcrsvcError, seconds: float = 0.0, worker: str = "") -> PageResult:
    """The result of a page that failed; only retryable errors and errors with status 500 or more are tried again."""
    what = {"code": error.code, "detail": error.detail, "remedy": error.remedy}
    record = {"source": group.file.name, "page": number, "text": "", "lines": [], "error": what}
    is_retryable = error.retryable or error.status >= 500
    index = group.index_of(number)
    return PageResult(index, orjson.dumps(record), error.code, is_retryable, seconds, 0.0, 0, worker)


def _read(
    group: PageGroup, number: int, record: bytes, lines: Sequence[Any], seconds: float, worker: str
) -> PageResult:
    confidence = sum(line["confidence"] for line in lines) / max(1, len(lines))
    return PageResult(group.index_of(number), record, "", False, seconds, confidence, len(lines), worker)
