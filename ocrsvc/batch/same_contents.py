"""Groups whose files have the content of others: what they wait for, and the results that are copied to them."""

from __future__ import annotations

from collections.abc import Container

from ocrsvc.batch.deduplication import CopySource, copied_result
from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.tasks import PageGroup, PageResult
from ocrsvc.errors import DamagedLedger


class SameContents:
    """For one thread.

    Args:
        plan, ledger: Of the run.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self._plan, self._ledger = plan, ledger
        self._sources = CopySource(plan)
        self._waiting: list[tuple[PageGroup, int]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, group: PageGroup, first: int) -> None:
        """The file of a group has the content of the file whose first page this is."""
        self._waiting.append((group, first))

    def give_up(self) -> None:
        """Leave what waits to another run."""
        self._waiting = []

    def take(self, leased: Container[int]) -> tuple[list[PageResult], list[PageGroup]]:
        """What can be said now: results that are copied, and pages that are to be read, as there is nothing to copy.

        Args:
            leased: The parts whose pages this owner is about to read: what comes from them is waited for.

        Raises:
            OSError: A result cannot be read.
            DamagedLedger: The plan is damaged.
        """
        waiting, self._waiting = self._waiting, []
        results: list[PageResult] = []
        unread: list[PageGroup] = []
        for group, first in waiting:
            if any(self._is_coming(first, number, leased) for number in group.pages):
                self._waiting.append((group, first))
                continue
            copies = [self._copy(group, first, at) for at in range(len(group.pages))]
            results += [copy for copy in copies if copy is not None]
            if left := [at for at, copy in enumerate(copies) if copy is None]:
                pages, indexes = ([values[at] for at in left] for values in (group.pages, group.indexes))
                unread.append(PageGroup(group.file, tuple(pages), tuple(indexes)))
        return results, unread

    def _is_coming(self, first: int, number: int, leased: Container[int]) -> bool:
        """Whether this owner is about to read the page of the first file."""
        found = self._sources.find(first, number)
        return (
            found is not None
            and self._ledger.states[found[0]] == PageState.PLANNED
            and self._plan.part_of(found[0]) in leased
        )

    def _copy(self, group: PageGroup, first: int, at: int) -> PageResult | None:
        """The result of a group's page, if the first file's was read and is still there."""
        number = group.pages[at]
        found = self._sources.find(first, number)
        if found is None or self._ledger.states[found[0]] != PageState.DONE:
            return None
        index, source = found
        try:
            record = self._ledger.read_record(index)
        except DamagedLedger:
            return None
        return copied_result(record, source, group.file, number, group.indexes[at])
