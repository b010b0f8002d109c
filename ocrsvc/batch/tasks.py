"""What a run reads, and what comes back: files, groups of their pages, and one result for each page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_GROUP_PAGES: Final = 16
"""Pages of one file that are read together: the file is opened once for them."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with pages to be read.

    Attributes:
        name: As results call it; no two files of a plan have the same.
        locator: Where its bytes are: a path or URL, or the place of a member in an archive (`batch.sources.locator`).
        version: Text that changes with its content: size and time of the last change, or an object store's ETag.
        size: Bytes.
        total: Pages that it has; 0 where they could not be counted, and the first is to be read.
        pages: The numbers of those that are to be read, from 1.
    """

    name: str
    locator: str
    version: str
    size: int
    total: int
    pages: range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Pages of one file that are read together.

    Attributes:
        file: What has them.
        pages: Their numbers in the file, from 1.
        indexes: Their numbers in the plan, from 0.
    """

    file: SourceFile
    pages: tuple[int, ...]
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageResult:
    """What became of one page.

    Attributes:
        index: Its number in the plan, from 0.
        record: One line of JSON without its newline: the page's result (`batch.page_record`).
        error: The code of what went wrong; "" if it was read.
        is_retryable: Whether what went wrong is not the page's fault, so that another try may read it.
        seconds: That reading it took, its waits for an engine included.
        confidence: Mean of its lines' in [0, 1]; 0 where there are none.
        lines: How many lines it has.
        worker: Who read it, for people: an engine thread, a service's address, an actor.
    """

    index: int
    record: bytes
    error: str
    is_retryable: bool
    seconds: float
    confidence: float
    lines: int
    worker: str
