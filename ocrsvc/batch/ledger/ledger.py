"""What is known of all pages of a run: the logs of all its owners, read once and followed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.entries import ENTRY, LEASE, FrameKind, PageState
from ocrsvc.batch.ledger.frames import HEAD_BYTES, read_frames
from ocrsvc.batch.ledger.ledger_log import LEDGER, FinishedPart, results_log
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import DamagedLedger

_READ_BYTES: Final = 16 * 1024 * 1024
_PLACE: Final = np.dtype([("log", "<u4"), ("offset", "<u4"), ("size", "<u4")])


@dataclass
class OwnerLog:
    """The log of one owner, as far as it was read: who it is, its names by number, and what it began with."""

    name: str
    owner: Owner | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: [""])
    read_to: int = 0
    has_ended: bool = False


class Ledger:
    """The state of every page and part; `refresh` takes in what was written since.

    Of a page that is done twice, the first result that was met counts; one that is done counts before one that failed.

    Attributes:
        states: A PageState for each page of the plan.
        attempts: How often each was tried.
        finished: The parts that are in the output.
    """

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store, self._plan = store, plan
        pages = plan.totals.pages
        self.states = np.zeros(pages, np.uint8)
        self.attempts = np.zeros(pages, np.uint8)
        self._places = np.zeros(pages, _PLACE)
        self._result_logs: list[str] = [""]
        self.finished: dict[int, FinishedPart] = {}
        self._leases: dict[int, tuple[Owner, float]] = {}
        self._logs: dict[str, OwnerLog] = {}

    def refresh(self) -> None:
        """Read what the logs say since the last time. Raises OSError and DamagedLedger."""
        for name in self._store.log_names(LEDGER):
            log = self._logs.setdefault(name, OwnerLog(name))
            while data := self._store.read_log(name, log.read_to, _READ_BYTES):
                begin = log.read_to
                for kind, payload, end in read_frames(data):
                    self._take(log, FrameKind(kind), payload)
                    log.read_to = begin + end
                if log.read_to == begin:
                    # A torn end: what its owner wrote last, or is writing now.
                    break

    def lease_of(self, part: int, now: float, here: Owner) -> Owner | None:
        """Who else has the part at this Unix time; None if it is free for this owner."""
        owner, until = self._leases.get(part, (here, 0.0))
        return None if owner == here or until <= now or owner.is_gone(here) else owner

    def is_finished(self, part: int) -> bool:
        """Whether the part is in the output with all that is known of it."""
        pages = self._plan.pages_of(part)
        states = self.states[pages.start : pages.stop]
        found = self.finished.get(part)
        return (
            found is not None
            and bool((states != PageState.PLANNED).all())
            and found.failed == int((states == PageState.FAILED).sum())
        )

    def forget_failures(self) -> int:
        """Have the pages that failed be read again; gives how many there are."""
        failed = self.states == PageState.FAILED
        self.states[failed], self.attempts[failed] = PageState.PLANNED, 0
        return int(failed.sum())

    def record_of(self, page: int) -> bytes | None:
        """The record of a page that was read or has failed; None of another. Raises OSError and DamagedLedger."""
        place = self._places[page]
        if not place["log"] or self.states[page] == PageState.PLANNED:
            return None
        # The frame around it checks that it is what was written.
        log = self._result_logs[place["log"]]
        data = self._store.read_log(log, int(place["offset"]), int(place["size"]) + HEAD_BYTES)
        for _, record, _ in read_frames(data):
            return record
        raise DamagedLedger(
            f"The result of page {page} of the plan is not in {log}.",
            "If that file was changed or removed, take another destination.",
        )

    def owners(self) -> Iterator[OwnerLog]:
        """The logs, in the order in which they were begun."""
        yield from self._logs.values()

    def _take(self, log: OwnerLog, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.OWNER:
            log.facts = orjson.loads(payload)
            log.owner = Owner.of(log.facts.pop("owner"))
        elif kind is FrameKind.NAMES:
            log.names += orjson.loads(payload)
        elif kind is FrameKind.PAGES:
            self._take_pages(log, int.from_bytes(payload[:4], "little"), np.frombuffer(payload[4:], ENTRY))
        elif kind is FrameKind.LEASE and log.owner is not None:
            for part, since, until in np.frombuffer(payload, LEASE):
                self._take_lease(int(part), log.owner, float(since), float(until))
        elif kind is FrameKind.FINISHED:
            said = orjson.loads(payload)
            files = {name: (size, digest) for name, (size, digest) in said["files"].items()}
            self.finished[said["part"]] = FinishedPart(said["part"], said["done"], said["failed"], files)
        elif kind is FrameKind.ENDED:
            log.has_ended = True

    def _take_pages(self, log: OwnerLog, number: int, entries: np.ndarray) -> None:
        name = results_log(log.name.removeprefix(LEDGER), number)
        if self._result_logs[-1] != name:
            self._result_logs.append(name)
        pages = entries["page"]
        better = self.states[pages] != PageState.DONE
        pages, entries = pages[better], entries[better]
        self.states[pages], self.attempts[pages] = entries["state"], entries["attempts"]
        self._places["log"][pages] = len(self._result_logs) - 1
        self._places["offset"][pages], self._places["size"][pages] = entries["offset"], entries["size"]

    def _take_lease(self, part: int, owner: Owner, since: float, until: float) -> None:
        held, held_until = self._leases.get(part, (owner, 0.0))
        # Of two that took it at once, the one that began first has it.
        if held == owner or held_until <= since or owner.name < held.name:
            self._leases[part] = (owner, until)
