"""What the ledger says of every page, as columns: 32 bytes a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.entries import ENTRY, FrameKind, PageState
from ocrsvc.batch.ledger.frames import read_frames
from ocrsvc.batch.ledger.ledger import unpack_finished
from ocrsvc.batch.ledger.ledger_log import LEDGER, results_log
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.store.contract import Store

_READ_BYTES: Final = 16 * 1024 * 1024
_COLUMNS: Final = np.dtype(
    [
        ("state", "u1"),
        ("attempts", "u1"),
        ("confidence", "<u2"),
        ("lines", "<u4"),
        ("seconds", "<f4"),
        ("at", "<f4"),
        ("worker", "<u2"),
        ("reason", "<u2"),
        ("log", "<u4"),
        ("offset", "<u4"),
        ("size", "<u4"),
    ]
)
"""As ENTRY, with `at` in seconds since the run began, names and results logs numbered over all owners."""


@dataclass(slots=True)
class OwnerFacts:
    """One process that worked on the run: since when (Unix time), until its last page, what it said of itself."""

    owner: Owner
    facts: dict[str, Any]
    last: float
    pages: int = 0
    has_ended: bool = False


@dataclass(slots=True)
class PageTable:
    """Every page of the plan, in its order.

    Attributes:
        rows: With `_COLUMNS`.
        names: Workers and reasons, by number; "" for none.
        logs: Names of results logs, by number; "" for none.
        finished: The parts that are in the output, with the names of their files as JSON Lines, if there are any.
        owners: In the order in which they began.
        began: Of the first of them, Unix time; 0 where nobody has begun.
    """

    rows: np.ndarray
    names: list[str] = field(default_factory=lambda: [""])
    logs: list[str] = field(default_factory=lambda: [""])
    finished: dict[int, str] = field(default_factory=dict)
    owners: list[OwnerFacts] = field(default_factory=list)
    began: float = 0.0


def is_json_lines(name: str) -> bool:
    """Whether a file of the output is JSON Lines, packed or not."""
    return name.endswith((".jsonl", ".jsonl.gz"))


def read_page_table(store: Store, pages: int) -> PageTable:
    """The table of a run of so many pages. Of results of one page the last counts, one that was read before a failure.

    Raises OSError.
    """
    table = PageTable(np.zeros(pages, _COLUMNS))
    numbers = {"": 0}
    for name in store.log_names(LEDGER):
        _LogReader(table, numbers, name.removeprefix(LEDGER)).read(store, name)
    return table


class _LogReader:
    """Reads one owner's log into the table."""

    def __init__(self, table: PageTable, numbers: dict[str, int], owner: str) -> None:
        self._table, self._numbers, self._name = table, numbers, owner
        self._own_numbers = np.zeros(1, "<u2")
        self._owner: OwnerFacts | None = None

    def read(self, store: Store, name: str) -> None:
        """All of it, up to a torn end."""
        begin = 0
        while data := store.read_log(name, begin, _READ_BYTES):
            end = 0
            for kind, payload, frame_end in read_frames(data):
                self._take(kind, payload)
                end = frame_end
            if not end:
                return
            begin += end

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.OWNER:
            facts = orjson.loads(payload)
            owner = Owner.of(facts.pop("owner"))
            self._owner = OwnerFacts(owner, facts, owner.began)
            self._table.owners.append(self._owner)
            self._table.began = self._table.began or owner.began
        elif kind == FrameKind.NAMES:
            self._take_names(orjson.loads(payload))
        elif kind == FrameKind.PAGES and self._owner is not None:
            log = results_log(self._name, int.from_bytes(payload[:4], "little"))
            if self._table.logs[-1] != log:
                self._table.logs.append(log)
            self._take_pages(np.frombuffer(payload[4:], ENTRY), self._owner)
        elif kind == FrameKind.FINISHED:
            part = unpack_finished(payload)
            self._table.finished[part.part] = next((name for name in sorted(part.files) if is_json_lines(name)), "")
        elif kind == FrameKind.ENDED and self._owner is not None:
            self._owner.has_ended = True

    def _take_names(self, names: list[str]) -> None:
        for name in names:
            # A name too many counts as none, as in a log of its own.
            if name not in self._numbers and len(self._numbers) < 0xFFFF:
                self._numbers[name] = len(self._numbers)
                self._table.names.append(name)
        new = [self._numbers.get(name, 0) for name in names]
        self._own_numbers = np.append(self._own_numbers, np.array(new, "<u2"))

    def _take_pages(self, entries: np.ndarray, owner: OwnerFacts) -> None:
        rows = self._table.rows
        entries = entries[entries["page"] < len(rows)]
        owner.last = max(owner.last, owner.owner.began + float(entries["since"].max(initial=0.0)))
        is_better = (entries["state"] == PageState.DONE) | (rows["state"][entries["page"]] != PageState.DONE)
        entries = entries[is_better]
        pages = entries["page"]
        for column in ("state", "attempts", "confidence", "lines", "seconds", "offset", "size"):
            rows[column][pages] = entries[column]
        rows["log"][pages] = len(self._table.logs) - 1
        since = entries["since"].astype("<f8") + owner.owner.began
        rows["at"][pages] = since - self._table.began
        rows["worker"][pages] = self._own_numbers[entries["worker"]]
        rows["reason"][pages] = self._own_numbers[entries["reason"]]
        owner.pages += len(pages)
