"""What a run is worked on with, how, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ocrsvc.batch.begun_pages import BegunPages
from ocrsvc.batch.pages import PageReader
from ocrsvc.batch.parts import Load, PartWriter
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.work_file import WorkFile


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is worked on.

    Attributes:
        attempts: Tries of a page before it has failed.
        shard, shards: Parts whose number leaves `shard` when divided by `shards` are worked on.
        limit: Pages after which this command stops; None is no limit.
        dedupe: Read files with the same content once.
        keeps_going: Fail pages also where whatever reads seems to be broken, instead of ending the run.
    """

    attempts: int = 3
    shard: int = 0
    shards: int = 1
    limit: int | None = None
    dedupe: bool = False
    keeps_going: bool = False


@dataclass(slots=True)
class RunOutcome:
    """How it went.

    Attributes:
        done: Pages that this command read, or copied.
        copied: Those of them that were copied from a file with the same content.
        failed: Pages that failed, by error code.
        planned, all_done, all_failed: Pages of its shard, whichever command tried them.
        is_complete: Whether all parts of its shard are in the output.
    """

    done: int = 0
    copied: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    planned: int = 0
    all_done: int = 0
    all_failed: int = 0
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run is worked on with.

    Attributes:
        parts: Parts of the shard that are to be worked on, in order.
        reopened: Those of them that are in the output with failures that are tried again.
        writer, unfinished: Write parts, and what --limit leaves of them.
        counted: Pages of the shard, and those read and failed before.
    """

    plan: Plan
    work: WorkFile
    begun: BegunPages
    reader: PageReader
    load: Load
    writer: PartWriter
    unfinished: PartWriter
    parts: Sequence[int]
    reopened: frozenset[int] = frozenset()
    counted: tuple[int, int, int] = (0, 0, 0)
