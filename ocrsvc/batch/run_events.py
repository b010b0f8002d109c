"""What the threads of a run tell the one that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from ocrsvc.batch.ledger.ledger import KnownPart
from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.tasks import PageGroup, PageResult
from ocrsvc.errors import DamagedLedger


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page was read, or could not be."""

    group: PageGroup
    result: PageResult


@dataclass(frozen=True, slots=True)
class FileHashed:
    """The file of a group has this content, which no file before it has that this owner knows of."""

    group: PageGroup
    digest: bytes


@dataclass(frozen=True, slots=True)
class SameContent:
    """The file of a group has the content of another, whose first page this is; the group was not read."""

    group: PageGroup
    first: int


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """A thread has done with a group."""

    group: PageGroup


@dataclass(frozen=True, slots=True)
class PartWritten:
    """A part is in the output, durably, with what was known of it."""

    part: FinishedPart
    known: KnownPart


@dataclass(frozen=True, slots=True)
class PartNotWritten:
    """A part waited to be written when the run was told to end."""

    part: int


@dataclass(frozen=True, slots=True)
class ResultsLost:
    """A part could not be written, as results of its pages are not there any more."""

    part: int
    error: DamagedLedger


@dataclass(frozen=True, slots=True)
class Failure:
    """What ends the run."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Woken:
    """The run is to look whether it goes on."""


RunEvent = (
    Woken | PageRead | FileHashed | SameContent | GroupEnded | PartWritten | PartNotWritten | ResultsLost | Failure
)
RunEvents = SimpleQueue[RunEvent]
"""Its size is bounded by the pages of the groups that were begun."""
