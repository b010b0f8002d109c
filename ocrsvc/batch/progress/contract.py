"""What a run tells of itself while it works."""

from __future__ import annotations

from typing import Protocol

from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.tasks import PageGroup, PageResult


class Progress(Protocol):
    """Told what happens in a run, in the thread that runs it; must not block."""

    def planned(self, total: int, left: int) -> None:
        """The run begins: pages of its shard, and how many of them are neither done nor failed."""

    def begun(self, group: PageGroup) -> None:
        """The pages of a group are about to be read; a page that is tried again is in a group of its own."""

    def ended(self, group: PageGroup) -> None:
        """Nothing more comes of a group that was begun."""

    def page(self, result: PageResult, attempts: int) -> None:
        """A page was read or has failed, and counts."""

    def retried(self, result: PageResult) -> None:
        """A page was not read, and will be tried again."""

    def part(self, part: FinishedPart) -> None:
        """A part is in the output."""

    def committed(self, when: float, left: int) -> None:
        """What was read is durable (Unix time); so many pages of the shard are left, with what others have read."""
