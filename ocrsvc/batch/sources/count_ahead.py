"""Counts the pages of documents in a few threads ahead of the planning, as each needs a process of its own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ocrsvc.batch.sources.file_access import FoundFile
from ocrsvc.batch.sources.found_files import Found
from ocrsvc.batch.sources.page_count import DOCUMENTS, extension_of
from ocrsvc.imaging.page_ranges import Ranges

_MOST_THREADS: Final = 8
_AHEAD: Final = 4
# Of documents that are counted at once; the child has each a second time.
_MOST_BYTES: Final = 64 * 1024 * 1024


Counted = tuple[FoundFile, Ranges | None, int | None]
"""A file, the ranges that it came with, and its pages, if they were counted."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    found: FoundFile
    ranges: Ranges | None
    pages: Future[int] | None


def count_ahead(files: Iterable[Found], count: Callable[[FoundFile], int]) -> Generator[Counted, None, None]:
    """The files in their order, with the pages of those that are documents by their names.

    Args:
        files: As they are found.
        count: Counts the pages of a file; in any thread.
    """
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="batch-plan")
    waiting: deque[_Waiting] = deque()
    try:
        for found, ranges in files:
            waiting.append(_Waiting(found, ranges, _begin(pool, waiting, found, count)))
            if len(waiting) > _AHEAD * threads:
                yield _ended(waiting.popleft())
        while waiting:
            yield _ended(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    pool: ThreadPoolExecutor, waiting: Iterable[_Waiting], found: FoundFile, count: Callable[[FoundFile], int]
) -> Future[int] | None:
    if found.problem or extension_of(found.name) not in DOCUMENTS:
        return None
    under_way = sum(other.found.size for other in waiting if other.pages is not None)
    return pool.submit(count, found) if under_way + found.size <= _MOST_BYTES else None


def _ended(one: _Waiting) -> Counted:
    return one.found, one.ranges, None if one.pages is None else one.pages.result()
