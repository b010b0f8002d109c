"""The pages of leased parts that are still to be read, in groups of one file each, and how many may still be begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Final

from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import Deaths, Ledger
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.page_record import failure_of
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.tasks import MOST_GROUP_PAGES, PageGroup, PageResult, SourceFile
from ocrsvc.errors import ImageCrashesEngine

_REMEDY: Final = "Convert it anew, or look for what the whole process died of; --retry-failed tries it again."


class PageQueue:
    """For one thread.

    Args:
        plan, ledger: Of the run.
        owner: Whose queue it is.
        attempts: Processes that may die over a page that they read alone, before it has failed.
        limit: Pages that may be begun; None is no limit.
    """

    def __init__(self, plan: Plan, ledger: Ledger, owner: Owner, attempts: int, limit: int | None) -> None:
        self._plan, self._ledger, self._owner, self._attempts = plan, ledger, owner, attempts
        self._left = limit
        self._groups: deque[PageGroup] = deque()
        # Each a page that one process died over, or several.
        self._doubtful: deque[PageGroup] = deque()
        self._suspects: deque[PageGroup] = deque()

    @property
    def is_at_limit(self) -> bool:
        """Whether no page may be begun any more."""
        return self._left == 0

    @property
    def has_suspects(self) -> bool:
        """Whether there are pages that may have killed a process: they are read with few or none beside them."""
        return bool(self._suspects or self._doubtful) and not self.is_at_limit

    def add(self, part: int) -> tuple[int, list[PageResult]]:
        """Queue the pages of a part that were neither read nor have failed.

        Gives how many there are, and results of those that have killed too many processes to be read.
        """
        deaths = self._ledger.suspects_of(part, self._owner)
        count, failed = 0, []
        for group in self._unread(part, deaths):
            count += len(group.pages)
            died = deaths.get(group.indexes[0])
            if died is None:
                self._groups.append(group)
            elif died.alone >= self._attempts:
                failed.append(_failure(group, died.alone))
            else:
                (self._suspects if died.all > 1 else self._doubtful).append(group)
        return count, failed

    def add_again(self, group: PageGroup, index: int) -> None:
        """Queue a page of a group behind all others, once more."""
        number = group.pages[group.indexes.index(index)]
        self._groups.append(PageGroup(group.file, (number,), (index,)))
        if self._left is not None:
            self._left += 1

    def take(self) -> PageGroup | None:
        """The next group, cut off at the limit."""
        return self._taken(self._groups.popleft()) if self._groups and not self.is_at_limit else None

    def take_suspects(self) -> list[PageGroup]:
        """The next pages that are to be read together and with nothing else: one, where several processes died over it.

        Of n pages that one process died over, as many as the square root of n: that finds the one that kills in the
        fewest rounds, if each of those that are read with it is then read alone.
        """
        if self._doubtful:
            taken = [self._doubtful.popleft() for _ in range(isqrt(len(self._doubtful)))]
        else:
            taken = [self._suspects.popleft()] if self._suspects else []
        return [self._taken(group) for group in taken if not self.is_at_limit]

    def drop(self, part: int) -> None:
        """Forget the pages of a part, which is another owner's now."""
        pages = self._plan.pages_of(part)
        self._groups = deque(group for group in self._groups if group.indexes[0] not in pages)
        self._doubtful = deque(group for group in self._doubtful if group.indexes[0] not in pages)
        self._suspects = deque(group for group in self._suspects if group.indexes[0] not in pages)

    def _taken(self, group: PageGroup) -> PageGroup:
        if self._left is None:
            return group
        group = PageGroup(group.file, group.pages[: self._left], group.indexes[: self._left])
        self._left -= len(group.pages)
        return group

    def _unread(self, part: int, deaths: Mapping[int, Deaths]) -> Iterator[PageGroup]:
        """The pages of a part that are neither done nor failed, in groups; those that are suspected each by itself."""
        for first, file in self._plan.files_of(part):
            together: list[tuple[int, int]] = []
            for at, number in enumerate(file.pages):
                index = first + at
                if self._ledger.states[index] != PageState.PLANNED:
                    continue
                if index in deaths:
                    yield PageGroup(file, (number,), (index,))
                    continue
                together.append((number, index))
                if len(together) == MOST_GROUP_PAGES:
                    yield _group(file, together)
                    together = []
            if together:
                yield _group(file, together)


def _group(file: SourceFile, pages: list[tuple[int, int]]) -> PageGroup:
    numbers, indexes = zip(*pages, strict=True)
    return PageGroup(file, numbers, indexes)


def _failure(group: PageGroup, deaths: int) -> PageResult:
    error = ImageCrashesEngine(f"{deaths} processes have died while they read this page and nothing else.", _REMEDY)
    return failure_of(group, group.pages[0], error)
