"""One owner's work on a run: it leases parts, has their pages read, notes the results, and writes finished parts."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from ocrsvc.batch.lease_clock import LEASE_S, RENEW_S
from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import Ledger
from ocrsvc.batch.ledger.ledger_log import FinishedPart, LedgerLog
from ocrsvc.batch.ledger.owner import Owner
from ocrsvc.batch.outputs.contract import FileResults, OutputWriter
from ocrsvc.batch.page_reader import PageReader
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import MOST_GROUP_PAGES, PageGroup, PageResult, SourceFile

_WAIT_S: Final = 0.2
_WAIT_FOR_OTHERS_S: Final = 2.0


class Progress(Protocol):
    """Told what happens in a run, in the thread that runs it; must not block."""

    def page(self, result: PageResult, attempts: int) -> None:
        """A page was read or has failed, and counts."""

    def retried(self, result: PageResult) -> None:
        """A page was not read, and will be tried again."""

    def part(self, part: FinishedPart) -> None:
        """A part is in the output."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is worked on.

    Attributes:
        attempts: Tries of a page before it has failed.
        shard, shards: This owner takes the parts whose number leaves `shard` when divided by `shards`.
        limit: Pages after which this owner stops; None is no limit.
    """

    attempts: int = 3
    shard: int = 0
    shards: int = 1
    limit: int | None = None


@dataclass(slots=True)
class RunOutcome:
    """How it went: pages that this owner read, those that failed by error code, and whether its shard is finished."""

    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)
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
    """

    store: Store
    plan: Plan
    ledger: Ledger
    owner: Owner
    log: LedgerLog
    reader: PageReader
    writers: Sequence[OutputWriter]
    load: Callable[[SourceFile], bytes]


class Run:
    """Works on a run until its shard is finished, the limit is reached, or `drain` is called.

    Args:
        context: With what.
        settings: How.
        progress: Told what happens.
        clock: Unix time.
    """

    def __init__(
        self, context: RunContext, settings: RunSettings, progress: Progress, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._plan, self._ledger = context.store, context.plan, context.ledger
        self._owner, self._log, self._reader = context.owner, context.log, context.reader
        self._writers, self._load = context.writers, context.load
        self._settings, self._progress, self._clock = settings, progress, clock
        self._groups: queue.Queue[PageGroup | None] = queue.Queue()
        self._results: queue.Queue[tuple[PageGroup, PageResult | None] | BaseException] = queue.Queue(maxsize=1000)
        self._waiting: deque[PageGroup] = deque()
        self._attempts: Counter[int] = Counter()
        self._leased: dict[int, float] = {}
        self._in_flight = 0
        self._threads = 0
        self._left: Counter[int] = Counter()
        self._drain = threading.Event()
        self._outcome = RunOutcome()
        self._to_begin = settings.limit
        self._committed = clock()

    def drain(self) -> None:
        """Begin no more pages; for any thread and for signal handlers."""
        self._drain.set()

    def execute(self) -> RunOutcome:
        """Do all of it.

        Raises:
            OcrsvcError: The reader cannot go on, or the ledger is damaged.
            OSError: The store cannot be read or written. What was committed stands.
        """
        try:
            self._work()
        finally:
            for _ in range(self._threads):
                self._groups.put(None)
        return self._outcome

    def _work(self) -> None:
        """The loop: keep the threads busy, take results, commit now and then, finish parts."""
        while True:
            self._begin_groups(2 * self._start_threads())
            if not self._in_flight:
                if self._stops() or not self._wait_for_others():
                    break
                continue
            self._take_results()
            if self._clock() - self._committed >= self._store.commit_s:
                self._commit()
        self._commit()
        self._write_unfinished()
        self._outcome.is_complete = self._is_complete()
        for part in list(self._leased):
            self._log.note_lease(part, self._clock(), self._clock())
        self._log.commit()

    def _start_threads(self) -> int:
        """Have a thread for each group that is read at once, which may change; gives how many groups that is now."""
        at_once = self._reader.at_once
        for _ in range(self._threads, at_once):
            threading.Thread(target=self._read_groups, daemon=True).start()
            self._threads += 1
        return at_once

    def _stops(self) -> bool:
        return self._drain.is_set() or self._to_begin == 0

    def _begin_groups(self, most: int) -> None:
        """Give the threads work, from the part at hand or the next that is free."""
        while self._in_flight < most and not self._stops():
            if not self._waiting and not self._lease_next():
                return
            group = self._waiting.popleft()
            if self._to_begin is not None:
                group = _first_of(group, self._to_begin)
                self._to_begin -= len(group.pages)
            self._in_flight += 1
            self._groups.put(group)

    def _lease_next(self) -> bool:
        """Lease a part that has pages to be read, and queue them; False where none is free."""
        now = self._clock()
        for part in self._own_parts():
            if part in self._leased or self._ledger.is_finished(part):
                continue
            if self._ledger.lease_of(part, now, self._owner) is not None:
                continue
            self._log.note_lease(part, now, now + LEASE_S)
            self._leased[part] = now
            self._commit()
            if self._ledger.lease_of(part, now, self._owner) is not None:
                del self._leased[part]
                continue
            groups = list(self._groups_of(part))
            self._left[part] = sum(len(group.pages) for group in groups)
            if not groups:
                self._finish(part)
                continue
            self._waiting.extend(groups)
            return True
        return False

    def _own_parts(self) -> range:
        return range(self._settings.shard, self._plan.parts, self._settings.shards)

    def _groups_of(self, part: int) -> Iterator[PageGroup]:
        """The pages of a part that are neither done nor failed."""
        for first, file in self._plan.files_of(part):
            left = [
                (number, first + at)
                for at, number in enumerate(file.pages)
                if self._ledger.states[first + at] == PageState.PLANNED
            ]
            for begin in range(0, len(left), MOST_GROUP_PAGES):
                numbers, indexes = zip(*left[begin : begin + MOST_GROUP_PAGES], strict=True)
                yield PageGroup(file, numbers, indexes)

    def _read_groups(self) -> None:
        """One thread: read group after group; what cannot be a result ends the run."""
        while (group := self._groups.get()) is not None:
            try:
                for result in self._reader.read(group):
                    self._results.put((group, result))
            except BaseException as failure:  # noqa: BLE001  raised by the thread that runs
                self._results.put(failure)
                return
            self._results.put((group, None))

    def _take_results(self) -> None:
        """Note what came, waiting a little for the first."""
        try:
            came = self._results.get(timeout=_WAIT_S)
            while True:
                self._take(came)
                came = self._results.get_nowait()
        except queue.Empty:
            return

    def _take(self, came: tuple[PageGroup, PageResult | None] | BaseException) -> None:
        if isinstance(came, BaseException):
            raise came
        group, result = came
        if result is None:
            self._in_flight -= 1
            return
        self._attempts[result.index] += 1
        attempts = self._attempts[result.index]
        if result.error and result.is_retryable and attempts < self._settings.attempts:
            number = group.pages[group.indexes.index(result.index)]
            self._waiting.append(PageGroup(group.file, (number,), (result.index,)))
            if self._to_begin is not None:
                self._to_begin += 1
            self._progress.retried(result)
            return
        del self._attempts[result.index]
        self._note(result, attempts)

    def _note(self, result: PageResult, attempts: int) -> None:
        self._log.note_page(result, attempts, self._clock())
        self._outcome.done += not result.error
        if result.error:
            self._outcome.failed[result.error] += 1
        self._progress.page(result, attempts)
        part = self._plan.part_of(result.index)
        self._left[part] -= 1
        if not self._left[part]:
            self._finish(part)

    def _commit(self) -> None:
        """Make what was noted durable, renew leases, and see what others did."""
        now = self._clock()
        for part, since in self._leased.items():
            if now - since >= RENEW_S:
                self._log.note_lease(part, now, now + LEASE_S)
                self._leased[part] = now
        self._log.commit()
        self._committed = now
        self._ledger.refresh()

    def _finish(self, part: int) -> None:
        """Write a part all of whose pages are done or have failed, and say so."""
        self._commit()
        if not self._ledger.is_finished(part):
            finished = self._write(part)
            self._log.note_finished(finished)
            self._progress.part(finished)
        self._leased.pop(part, None)
        self._left.pop(part, None)

    def _write(self, part: int) -> FinishedPart:
        names: list[str] = []
        for writer in self._writers:
            names += writer.write(self._store, part, self._results_of(part))
        pages = self._plan.pages_of(part)
        states = self._ledger.states[pages.start : pages.stop]
        files = {name: _size_and_digest(self._store, name) for name in names}
        done, failed = (int((states == state).sum()) for state in (PageState.DONE, PageState.FAILED))
        return FinishedPart(part, done, failed, files)

    def _results_of(self, part: int) -> Iterator[FileResults]:
        for first, file in self._plan.files_of(part):
            index_of = {number: first + at for at, number in enumerate(file.pages)}
            known = [number for number, at in index_of.items() if self._ledger.states[at] != PageState.PLANNED]

            def record(number: int, index_of: dict[int, int] = index_of) -> bytes:
                found = self._ledger.record_of(index_of[number])
                assert found is not None, "the ledger says that it is there"
                return found

            yield FileResults(file, known, record, partial(self._load, file))

    def _write_unfinished(self) -> None:
        """At the end: parts that were begun are written with what is known of them."""
        for part in self._leased:
            self._write(part)

    def _wait_for_others(self) -> bool:
        """Whether others still read parts of this shard; waits a little, and looks again."""
        if self._is_complete():
            return False
        self._drain.wait(_WAIT_FOR_OTHERS_S)
        self._commit()
        return True

    def _is_complete(self) -> bool:
        return all(self._ledger.is_finished(part) for part in self._own_parts())


def _first_of(group: PageGroup, most: int) -> PageGroup:
    return PageGroup(group.file, group.pages[:most], group.indexes[:most])


def _size_and_digest(store: Store, name: str) -> tuple[int, str]:
    data = store.read(name)
    return len(data), hashlib.sha256(data).hexdigest()
