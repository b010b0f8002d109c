"""The queue of pages to read, in plan order; pages that may have killed processes wait in queues of their own."""

import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from math import isqrt
from typing import Final

from ocrsvc.batch.pages import MAX_GROUP_PAGES, PageGroup, PageResult, SourceFile, failure_of
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.work_file import Deaths
from ocrsvc.errors import ImageCrashesEngine

# How often to check whether more groups may be read in parallel, because a DNS lookup may have found more servers.
_ASK_AGAIN_S: Final = 5.0
_REMEDY: Final = "Convert it, or find out what ended the process; --retry-failed tries the page again."


class PageQueue:
    """Pages to read; at most `limit` in all are handed out. Not thread-safe. `deaths` counts process deaths by page.

    The caller updates `deaths`. A page fails after `attempts` processes have died while they read only that page.
    """

    def __init__(self, plan: Plan, deaths: dict[int, Deaths], attempts: int, limit: int | None) -> None:
        self._plan, self._deaths, self._attempts, self._left = plan, deaths, attempts, limit
        self._groups = deque[PageGroup]()
        # Groups of one page: doubtful if one process died while reading it, suspect if several did.
        self._doubtful, self._suspects = deque[PageGroup](), deque[PageGroup]()

    @property
    def is_at_limit(self) -> bool:
        """Whether `limit` pages have been begun."""
        return self._left == 0

    @property
    def has_suspects(self) -> bool:
        """Whether pages that may have killed processes are waiting, and `limit` allows another page."""
        return bool(self._suspects or self._doubtful) and not self.is_at_limit

    def add(self, part: int, known: Container[int]) -> tuple[int, list[PageResult]]:
        """Queue an output part's unread pages; returns their number, and failures for those that killed processes."""
        count, failed = 0, []
        for first, file in self._plan.files_of(part):
            for group in self._groups_of(file, first, known):
                count += len(group.pages)
                died = self._deaths.get(group.indexes[0])
                if died is None:
                    self._groups.append(group)
                elif died.alone >= self._attempts:
                    detail = f"{died.alone} processes have died while they read this page and nothing else."
                    failed.append(failure_of(group, group.pages[0], ImageCrashesEngine(detail, _REMEDY)))
                else:
                    (self._suspects if died.all > 1 else self._doubtful).append(group)
        return count, failed

    def add_again(self, group: PageGroup, index: int) -> None:
        """Queue a page of a group again, at the end."""
        self._groups.append(group.only([group.pages[group.indexes.index(index)]]))
        if self._left is not None:
            self._left += 1

    def take(self) -> PageGroup | None:
        """Remove and return the next group, shortened to the pages that `limit` still allows; None if there is none."""
        return self._taken(self._groups) if self._groups and not self.is_at_limit else None

    def take_suspects(self) -> list[PageGroup]:
        """Remove and return pages that may have killed processes, to be read while no other page is read."""
        # Of n doubtful pages, read the square root of n together: this finds a page that kills in the fewest rounds.
        waiting, count = (self._doubtful, isqrt(len(self._doubtful))) if self._doubtful else (self._suspects, 1)
        return [self._taken(waiting) for _ in range(count if self._left is None else min(count, self._left))]

    def _taken(self, waiting: deque[PageGroup]) -> PageGroup:
        group = waiting.popleft()
        if self._left is not None:
            group = group.only(group.pages[: self._left])
            self._left -= len(group.pages)
        return group

    def _groups_of(self, file: SourceFile, first: int, known: Container[int]) -> Iterator[PageGroup]:
        """Group a file's pages that have no result yet; a page during which processes died gets a group of its own."""
        unread = [(number, first + at) for at, number in enumerate(file.pages) if first + at not in known]
        apart = [[page] for page in unread if page[1] in self._deaths]
        rest = [page for page in unread if page[1] not in self._deaths]
        together = [rest[at : at + MAX_GROUP_PAGES] for at in range(0, len(rest), MAX_GROUP_PAGES)]
        for pages in apart + together:
            yield PageGroup(file, *map(tuple, zip(*pages, strict=True)))


class GroupAdmission:
    """Limits the groups read at once, and the bytes of their files; a file above that is read alone. Thread-safe."""

    def __init__(self, max_bytes: int, max_at_once: Callable[[], int]) -> None:
        self._max_bytes, self._max_at_once = max_bytes, max_at_once
        self._sizes: list[int] = []
        self._changed = threading.Condition()

    @contextmanager
    def entered(self, size_bytes: int) -> Iterator[None]:
        """Wait until the limits allow a group whose file has this size, and count it during the block."""
        with self._changed:
            while self._sizes and (
                len(self._sizes) >= self._max_at_once() or sum(self._sizes) + size_bytes > self._max_bytes
            ):
                self._changed.wait(_ASK_AGAIN_S)
            self._sizes.append(size_bytes)
        try:
            yield
        finally:
            with self._changed:
                self._sizes.remove(size_bytes)
                self._changed.notify_all()
