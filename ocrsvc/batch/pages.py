"""What a batch run reads: files, groups of their pages, and the result of each page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from ocrsvc.errors import OcrsvcError

MOST_GROUP_PAGES: Final = 16
"""Pages of one file that are read together: the file is opened once for them."""
COPIED: Final = "copied"
"""The worker of pages whose results were copied from a file with the same content."""
_PAGE_KEYS: Final = ("width", "height", "angle", "text", "lines", "regions", "tables", "barcodes", "masked")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with pages to read, from 1; `name` is that in the results, unique in a plan.

    Its bytes are at `address`, a path or a URL, and in it at a `place` where `kind` names an archive. `version` changes
    with its content, "" where unknown. `total` is its number of pages, 0 where that could not be found: page 1 is read.
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
    """A file, and its pages that have a result, in order; `record` gives a page's record, `load` the file's bytes."""

    file: SourceFile
    pages: Sequence[int]
    record: Callable[[int], bytes]
    load: Callable[[], bytes]


Load = Callable[[SourceFile], bytes]
"""Gives the bytes of a source's file; raises OcrsvcError."""


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Pages of one file that are read together: their numbers in the file, from 1, and in the plan, from 0."""

    file: SourceFile
    pages: tuple[int, ...]
    indexes: tuple[int, ...]

    def index_of(self, number: int) -> int:
        """The number in the plan of a page of the file."""
        return self.indexes[self.pages.index(number)]

    def only(self, numbers: Sequence[int]) -> PageGroup:
        """Some of its pages."""
        return PageGroup(self.file, tuple(numbers), tuple(map(self.index_of, numbers)))


@dataclass(frozen=True, slots=True)
class PageResult:
    """The result of the page with the number `index` in the plan.

    `record` is one line of JSON without its newline, `error` the error's code, "" for a page that was read; a retryable
    error is not the page's fault. `seconds` include waits for an engine, `confidence` is its lines' mean in [0, 1].
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
    """Reads groups of pages, in several threads at once; every reader gives the same records, byte by byte."""

    # Other processes than this one and its children read: no page kills this one.
    is_elsewhere: bool

    def start(self) -> Mapping[str, str]:
        """Get ready; gives engine, model, version and other facts that results depend on. Raises OcrsvcError."""

    @property
    def at_once(self) -> int:
        """How many groups are read at once; may change during a run."""

    def read(self, group: PageGroup) -> Iterator[PageResult]:
        """Yield a result for each page as soon as it is read. Raises OcrsvcError only for what stops the run."""

    def close(self) -> None:
        """End within seconds."""


def record_head(source: str, number: int) -> bytes:
    """How the record of every page begins, also of one that failed."""
    return orjson.dumps({"source": source, "page": number})[:-1] + b","


def result_of(group: PageGroup, number: int, page: Mapping[str, Any], seconds: float, worker: str) -> PageResult:
    """The result of a page that was read; `page` is as the native API answers it."""
    record = {"source": group.file.name, "page": number}
    record |= {key: page[key] for key in _PAGE_KEYS if key in page} | {"error": None}
    return _read(group, number, orjson.dumps(record), page["lines"], seconds, worker)


def copied_result(record: bytes, source: str, group: PageGroup, number: int) -> PageResult:
    """The result of a page, copied from the record of the same page of `source`, whose content is the same."""
    head = record_head(source, number)
    assert record.startswith(head), "every record begins with its source and page"
    copy = record_head(group.file.name, number) + record[len(head) :]
    return _read(group, number, copy, orjson.loads(record)["lines"], 0.0, COPIED)


def failure_of(group: PageGroup, number: int, error: OcrsvcError, seconds: float = 0.0, worker: str = "") -> PageResult:
    """The result of a page that could not be read; a caller's fault is the page's, and is not tried again."""
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
