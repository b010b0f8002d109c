"""What is known of all pages of a run: the logs of all its owners, read once and followed."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson

from ocrsvc.batch.ledger.content_index import ContentIndex
from ocrsvc.batch.ledger.entries import CONTENT, ENTRY, LEASE, FrameKind, PageState
from ocrsvc.batch.ledger.frames import HEAD_BYTES, read_frames
from ocrsvc.batch.ledger.lease_table import LeaseTable
from ocrsvc.batch.ledger.ledger_log import LEDGER, FinishedPart, parse_results_log, results_log
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.ledger.owner_log import OwnerLog
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.store.contract import Store
from ocrsvc.errors import DamagedLedger, RunChanged

_READ_BYTES: Final = 64 * 1024 * 1024
_PLACE: Final = np.dtype([("log", "<u4"), ("offset", "<u4"), ("size", "<u4")])


@dataclass(frozen=True, slots=True)
class KnownPart:
    """What was known of a part's pages at one moment; for any thread.

    Attributes:
        first: The number in the plan of its first page.
        states: A PageState for each of its pages.
        read_record: Gives the record of one of them, by its number in the plan. Raises OSError, and DamagedLedger where
            it is not there any more.
    """

    first: int
    states: np.ndarray
    read_record: Callable[[int], bytes]

    def is_known(self, page: int) -> bool:
        """Whether a page, by its number in the plan, was read or has failed."""
        return bool(self.states[page - self.first] != PageState.PLANNED)

    def count(self, state: PageState) -> int:
        """How many pages are in a state."""
        return int((self.states == state).sum())


@dataclass(frozen=True, slots=True)
class Deaths:
    """Processes that died while they read a page: all of them, and those that read nothing beside it."""

    all: int
    alone: int


class Ledger:
    """The state of every page and part; `refresh` takes in what was written since. For one thread.

    Of a page that was read twice, the result that was met last counts; one that was read counts before one that failed.

    Args:
        store, plan: Of the run.
        clock: Unix time.
        on_finished: Told of each part that was written, with what `unpack_finished` takes.

    Attributes:
        states: A PageState for each page of the plan.
        attempts: How often each was tried.
        finished: The parts that are in the output, with the pages that were read and have failed.
        contents: Files by their content, where a run looks for those that are the same.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        clock: Callable[[], float] = time.time,
        on_finished: Callable[[int, bytes], object] = lambda _part, _payload: None,
    ) -> None:
        self._store, self._plan, self._clock, self._on_finished = store, plan, clock, on_finished
        pages = plan.totals.pages
        self.states = np.zeros(pages, np.uint8)
        self.attempts = np.zeros(pages, np.uint8)
        self._places = np.zeros(pages, _PLACE)
        self._result_logs: list[str] = [""]
        self._result_numbers: dict[str, int] = {"": 0}
        self.finished: dict[int, tuple[int, int]] = {}
        self.contents = ContentIndex()
        self._leases = LeaseTable()
        self._logs: dict[str, OwnerLog] = {}

    def refresh(self) -> None:
        """Read what the logs say since the last time. Raises OSError and DamagedLedger."""
        for name in self._store.log_names(LEDGER):
            log = self._logs.setdefault(name, OwnerLog(name))
            if not log.is_over:
                self._follow(log)

    def owners(self) -> Iterator[OwnerLog]:
        """The logs, in the order in which they were begun."""
        yield from self._logs.values()

    def note_ended(self, here: Owner) -> None:
        """Follow logs no more whose process has ended, as this owner sees it; what they say was read since."""
        for log in self._logs.values():
            if not log.is_over and log.owner is not None and log.owner.is_gone(here):
                self._follow(log)
                log.is_over = True

    def holder(self, part: int, now: float, here: Owner) -> Owner | None:
        """Who has a part at this Unix time, as seen by an owner."""
        return self._leases.holder(part, now, here)

    def is_finished(self, part: int) -> bool:
        """Whether the part is in the output with all that is known of it."""
        found = self.finished.get(part)
        if found is None:
            return False
        states = self.known_states(part)
        return bool((states != PageState.PLANNED).all()) and found[1] == int((states == PageState.FAILED).sum())

    def known_states(self, part: int) -> np.ndarray:
        """The states of a part's pages."""
        pages = self._plan.pages_of(part)
        return self.states[pages.start : pages.stop]

    def known_part(self, part: int) -> KnownPart:
        """What is known of a part now."""
        pages = self._plan.pages_of(part)
        places = self._places[pages.start : pages.stop].copy()
        logs = {number: self._result_logs[number] for number in np.unique(places["log"])}

        def read_record(page: int) -> bytes:
            place = places[page - pages.start]
            return read_result(self._store, logs[place["log"]], int(place["offset"]), int(place["size"]))

        return KnownPart(pages.start, self.known_states(part).copy(), read_record)

    def read_record(self, page: int) -> bytes:
        """The record of a page that was read or has failed. Raises OSError, and DamagedLedger where it is gone."""
        return self.known_part(self._plan.part_of(page)).read_record(page)

    def forget_failures(self) -> int:
        """Have the pages that failed be read again; gives how many there are."""
        failed = self.states == PageState.FAILED
        self.states[failed], self.attempts[failed] = PageState.PLANNED, 0
        return int(failed.sum())

    def forget_finished(self, part: int) -> None:
        """Have a part be written again."""
        self.finished.pop(part, None)

    def forget_lost(self, part: int) -> int:
        """Have the pages of a part be read again whose results are not there any more; gives how many there are."""
        known, lost = self.known_part(part), 0
        for page in self._plan.pages_of(part):
            if known.is_known(page):
                try:
                    known.read_record(page)
                except DamagedLedger:
                    self.states[page], lost = PageState.PLANNED, lost + 1
        return lost

    def suspects_of(self, part: int, here: Owner) -> dict[int, Deaths]:
        """The pages of a part that other owners were reading when they died, as it seems, and are still to be read.

        Asked once the part is this owner's alone.
        """
        pages, found = self._plan.pages_of(part), dict[int, Deaths]()
        for log in self._logs.values():
            if log.has_ended or log.owner == here:
                continue
            for page in log.begun:
                if page in pages and self.states[page] == PageState.PLANNED:
                    had = found.get(page, Deaths(0, 0))
                    found[page] = Deaths(had.all + 1, had.alone + (log.alone == page))
        return found

    def needed_results(self) -> set[str]:
        """The results logs with results of parts that are not in the output, or are there with failures."""
        open_pages = np.ones(len(self.states), bool)
        for part, (_, failed) in self.finished.items():
            if not failed and self.is_finished(part):
                pages = self._plan.pages_of(part)
                open_pages[pages.start : pages.stop] = False
        return {self._result_logs[number] for number in np.unique(self._places["log"][open_pages])}

    def is_closed(self, results: str) -> bool:
        """Whether nobody appends to a results log any more."""
        name, number = parse_results_log(results)
        log = self._logs.get(name)
        return log is not None and (log.is_over or number < log.results)

    def _follow(self, log: OwnerLog) -> None:
        while data := self._store.read_log(log.name, log.read_to, _READ_BYTES):
            begin = log.read_to
            for kind, payload, end in read_frames(data):
                self._take(log, kind, payload)
                log.read_to = begin + end
            if log.read_to == begin or len(data) < _READ_BYTES:
                # What is left is a torn end: what its owner wrote last, or is writing now.
                return

    def _take(self, log: OwnerLog, kind: int, payload: bytes) -> None:
        if log.take(kind, payload):
            return
        match kind:
            case FrameKind.LEASE:
                self._take_leases(log, payload)
            case FrameKind.PAGES:
                self._take_pages(log, int.from_bytes(payload[:4], "little"), np.frombuffer(payload[4:], ENTRY))
            case FrameKind.CONTENTS:
                for page, digest in np.frombuffer(payload, CONTENT).tolist():
                    self.contents.add(digest, page)
            case FrameKind.FINISHED:
                part = unpack_finished(payload)
                # Failures become fewer, and the logs are not read in the order in which they were written.
                if part.failed <= self.finished.get(part.part, (0, part.failed))[1]:
                    self.finished[part.part] = (part.done, part.failed)
                self._leases.forget(part.part)
                self._on_finished(part.part, payload)
            case FrameKind.ENDED:
                self._leases.end(log.owner)
            case _:
                raise DamagedLedger(
                    f"{log.name} in {self._store.address} says what this version does not know.",
                    "Go on with the version that wrote it.",
                )

    def _take_pages(self, log: OwnerLog, number: int, entries: np.ndarray) -> None:
        name = results_log(log.name.removeprefix(LEDGER), number)
        place = self._result_numbers.setdefault(name, len(self._result_logs))
        if place == len(self._result_logs):
            self._result_logs.append(name)
        log.results = number
        log.begun.difference_update(entries["page"].tolist())
        self._forget_deaths(set(entries["page"][entries["state"] == PageState.FAILED].tolist()))
        # Of a page that is named twice the last counts.
        entries = entries[np.argsort(entries["state"] == PageState.DONE, kind="stable")]
        pages = entries["page"]
        if len(pages) and int(pages.max()) >= len(self.states):
            raise RunChanged(
                f"The run in {self._store.address} has more pages since another process gave --update.",
                "Give the same command again: what was read is kept.",
            )
        better = (entries["state"] == PageState.DONE) | (self.states[pages] != PageState.DONE)
        pages, entries = pages[better], entries[better]
        self.states[pages], self.attempts[pages] = entries["state"], entries["attempts"]
        self._places["log"][pages] = place
        self._places["offset"][pages], self._places["size"][pages] = entries["offset"], entries["size"]

    def _forget_deaths(self, failed: set[int]) -> None:
        """A page that has failed is suspected no more: whoever tries it again begins to count anew."""
        for log in self._logs.values() if failed else ():
            if log.begun:
                log.begun = log.begun - failed

    def _take_leases(self, log: OwnerLog, payload: bytes) -> None:
        if log.owner is not None:
            now = self._clock()
            for part, since, until in np.frombuffer(payload, LEASE).tolist():
                self._leases.note(part, log.owner, since, until, now)


def unpack_finished(payload: bytes) -> FinishedPart:
    """What a frame says of a part that is in the output."""
    said = orjson.loads(zlib.decompress(payload))
    files = {name: (size, digest) for name, (size, digest) in said["files"].items()}
    return FinishedPart(said["part"], said["done"], said["failed"], files)


def read_result(store: Store, log: str, offset: int, size: int) -> bytes:
    """The record of a page from a results log. Raises OSError, and DamagedLedger where it is not what was written."""
    # The frame around it checks that it is what was written.
    with contextlib.suppress(FileNotFoundError):
        for _, record, _ in read_frames(store.read_log(log, offset, size + HEAD_BYTES)):
            return record
    raise DamagedLedger(
        f"A result is not in {log} of {store.address} any more.",
        "If that file was changed or removed, take another destination.",
    )
