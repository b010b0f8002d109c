"""What a run is worked on with, how, and how it went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.contract import OutputWriter
from ocrsvc.batch.page_reader import PageReader
from ocrsvc.batch.part_writing import Load
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.store.contract import Store


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is worked on.

    Attributes:
        attempts: Tries of a page before it has failed.
        shard, shards: This owner takes the parts whose number leaves `shard` when divided by `shards`.
        limit: Pages after which this owner stops; None is no limit.
        dedupe: Read files of the same content once.
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
        done: Pages that this owner read, or copied.
        copied: Pages of these whose results were copied from a file of the same content.
        failed: Pages that failed, by error code.
        planned, all_done, all_failed: Pages of its shard, and how many of them were read and have failed, whoever
            tried them.
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
        store, plan, ledger: The run; the ledger refreshed.
        owner: Who works on it.
        log: The owner's own logs.
        reader: Reads pages; started.
        writers: Of the output.
        load: Gives the bytes of a source's file.
        unfinished: Writers of parts of which a limit has some pages read.
    """

    store: Store
    plan: Plan
    ledger: Ledger
    owner: Owner
    log: LedgerLog
    reader: PageReader
    writers: Sequence[OutputWriter]
    load: Load
    unfinished: Sequence[OutputWriter] = ()
