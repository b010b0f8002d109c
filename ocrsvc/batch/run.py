"""One owner's work on a run: it leases parts, has their pages read, notes results, and has finished parts written."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

import orjson

from ocrsvc.batch.deduplication import COPIED, Deduplication
from ocrsvc.batch.leased_parts import LeasedParts
from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import KnownPart
from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.page_queue import PageQueue
from ocrsvc.batch.part_writing import PartWriting, write_part
from ocrsvc.batch.progress.contract import Progress
from ocrsvc.batch.reading_threads import ReadingThreads
from ocrsvc.batch.results_removal import ResultsRemoval
from ocrsvc.batch.run_context import RunContext, RunOutcome, RunSettings
from ocrsvc.batch.run_events import (
    Failure,
    FileHashed,
    GroupEnded,
    PageRead,
    PartNotWritten,
    PartWritten,
    ResultsLost,
    RunEvent,
    RunEvents,
    SameContent,
    Woken,
)
from ocrsvc.batch.same_contents import SameContents
from ocrsvc.batch.tasks import PageGroup, PageResult
from ocrsvc.errors import DamagedLedger, EngineUnavailable

MOST_FAILURES: Final = 100
"""Tries in a row that fail and are not the pages' fault: whatever reads is broken, and the run ends before pages do."""

_WAIT_S: Final = 1.0
_JOIN_S: Final = 10.0
_WAIT_FOR_OTHERS_S: Final = 2.0


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
        self._store, self._plan, self._ledger, self._log = context.store, context.plan, context.ledger, context.log
        self._context, self._settings, self._progress, self._clock = context, settings, progress, clock
        self._own = range(settings.shard, self._plan.parts, settings.shards)
        self._parts = LeasedParts(self._ledger, self._log, context.owner, self._own, clock)
        self._pages = PageQueue(self._plan, self._ledger, context.owner, settings.attempts, settings.limit)
        self._events: RunEvents = queue.SimpleQueue()
        contents = self._ledger.contents
        self._threads = ReadingThreads(
            context.reader, self._events, Deduplication(contents, context.load) if settings.dedupe else None
        )
        self._same = SameContents(self._plan, self._ledger)
        self._writing = PartWriting(self._store, self._plan, context.writers, context.load, self._events)
        self._being_written: set[int] = set()
        self._read_twice: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._failures = 0
        self._is_apart = False
        self._drain = threading.Event()
        self._outcome = RunOutcome()
        self._committed = clock()
        self._removal = ResultsRemoval(self._store, self._ledger, context.owner, clock)

    def drain(self) -> None:
        """Begin no more pages; for any thread and for signal handlers."""
        self._drain.set()
        # It may be put into while a handler interrupts who takes from it.
        self._events.put(Woken())

    def execute(self) -> RunOutcome:
        """Do all of it.

        Raises:
            OcrsvcError: The reader cannot go on, or the ledger is damaged.
            OSError: The store cannot be read or written. What was committed stands.
        """
        self._writing.start()
        try:
            self._work()
        finally:
            self._threads.end()
            self._writing.end()
            # The log's last word gives the parts to others: what is being written must not replace what they write.
            self._writing.join(_JOIN_S)
        return self._outcome

    def join(self, timeout_s: float) -> None:
        """Wait for the run's threads, at most so long each; once the reader is closed."""
        self._threads.join(timeout_s)
        self._writing.join(timeout_s)

    def remove_results(self) -> None:
        """Once the log has ended: remove results that are in the output. Raises OSError and DamagedLedger."""
        if self._may_remove:
            self._ledger.refresh()
            self._removal.remove()

    @property
    def _may_remove(self) -> bool:
        """With --dedupe results may be copied until the last page."""
        return self._outcome.is_complete or not self._settings.dedupe

    def _work(self) -> None:
        """The loop: keep the threads busy, take what they give, commit now and then."""
        self._progress.planned(self._count_planned(), self._count(PageState.PLANNED))
        while True:
            self._begin_groups()
            if self._threads.in_flight or self._being_written:
                self._take_events()
                # Also where the clock was set back.
                if not 0 <= self._clock() - self._committed < self._store.commit_s:
                    self._commit()
            elif self._same:
                # Nothing else is on its way: what they wait for is known after a commit, or not to be read.
                self._commit()
                if not self._threads.in_flight:
                    self._same.give_up()
            elif self._stops() or not self._wait_for_others():
                break
        self._end()

    def _end(self) -> None:
        self._commit()
        if self._pages.is_at_limit:
            self._write_unfinished()
        self._outcome.is_complete = self._parts.is_complete()
        self._outcome.planned = self._count_planned()
        self._outcome.all_done, self._outcome.all_failed = self._count(PageState.DONE), self._count(PageState.FAILED)

    def _write_unfinished(self) -> None:
        """At a limit: what was read of parts that are not finished, beside the output."""
        for part in self._parts.unfinished():
            known = self._ledger.known_part(part)
            if known.count(PageState.PLANNED) < len(known.states):
                write_part(self._store, self._plan, self._context.unfinished, self._context.load, part, known)

    def _stops(self) -> bool:
        return self._drain.is_set() or self._pages.is_at_limit

    def _begin_groups(self) -> None:
        """Give the threads work; pages that may have killed a process are read apart from all others."""
        if self._drain.is_set() or self._is_apart:
            return
        groups: list[PageGroup] = []
        room = self._threads.room()
        while len(groups) < room and not self._pages.has_suspects:
            group = self._pages.take()
            if group is not None:
                groups.append(group)
            elif self._pages.is_at_limit or not self._lease_next():
                break
        if groups:
            if not self._context.reader.is_elsewhere:
                self._log.note_begun(index for group in groups for index in group.indexes)
            for group in groups:
                self._begin(group)
        elif self._pages.has_suspects and room and not self._threads.in_flight:
            self._begin_suspects()

    def _begin_suspects(self) -> None:
        # What is not known of earlier pages when one of these kills the process counts against them.
        self._commit()
        if not self._threads.in_flight and (groups := self._pages.take_suspects()):
            self._is_apart = True
            self._log.note_begun((index for group in groups for index in group.indexes), alone=len(groups) == 1)
            for group in groups:
                self._begin(group)

    def _begin(self, group: PageGroup, *, is_to_be_read: bool = False) -> None:
        self._progress.begun(group)
        self._threads.begin(group, is_to_be_read=is_to_be_read)

    def _lease_next(self) -> bool:
        """Lease a part, and queue its pages that are to be read; False where none is free."""
        part = self._parts.lease_next()
        if part is None:
            return False
        self._queue(part)
        return True

    def _queue(self, part: int) -> None:
        count, failed = self._pages.add(part)
        self._parts.add_pages(part, count)
        for result in failed:
            self._note(result, self._settings.attempts)
        if part not in self._being_written and (self._ledger.known_states(part) != PageState.PLANNED).all():
            self._write(part)

    def _take_events(self) -> None:
        """Take what came, waiting a little for the first."""
        with contextlib.suppress(queue.Empty):
            self._take(self._events.get(timeout=_WAIT_S))
            while True:
                self._take(self._events.get_nowait())
        if self._drain.is_set():
            self._writing.give_up()

    def _take(self, event: RunEvent) -> None:
        match event:
            case PageRead(group, result):
                self._take_page(group, result)
            case GroupEnded(group):
                self._progress.ended(group)
                self._threads.in_flight -= 1
                self._is_apart = self._is_apart and self._threads.in_flight > 0
            case FileHashed(group, digest):
                self._log.note_content(group.indexes[0], digest)
            case SameContent(group, first):
                self._same.add(group, first)
            case PartWritten(part, known):
                self._take_part(part, known)
            case PartNotWritten(part):
                self._being_written.discard(part)
            case ResultsLost(part, error):
                self._read_again(part, error)
            case Failure(error):
                raise error

    def _take_page(self, group: PageGroup, result: PageResult) -> None:
        attempts = self._attempts.pop(result.index, 0) + 1
        if not (result.error and result.is_retryable):
            self._failures = 0
            self._note(result, attempts)
            return
        self._failures += 1
        if self._failures >= MOST_FAILURES and not self._settings.keeps_going:
            raise _broken(self._failures, result)
        if attempts >= self._settings.attempts:
            self._note(result, attempts)
        elif self._plan.part_of(result.index) in self._parts:
            self._attempts[result.index] = attempts
            self._pages.add_again(group, result.index)
            self._progress.retried(result)

    def _note(self, result: PageResult, attempts: int) -> None:
        # Another owner may have read it meanwhile.
        if self._ledger.states[result.index] != PageState.DONE:
            self._log.note_page(result, attempts, self._clock())
        self._outcome.done += not result.error
        self._outcome.copied += result.worker == COPIED
        if result.error:
            self._outcome.failed[result.error] += 1
        self._progress.page(result, attempts)
        part = self._plan.part_of(result.index)
        if self._parts.note_page(part):
            self._write(part)

    def _commit(self) -> None:
        """Make what was noted durable, renew leases, see what others did, and copy what can be copied now."""
        for part in self._parts.commit():
            self._pages.drop(part)
        self._committed = self._clock()
        self._progress.committed(self._committed, self._count(PageState.PLANNED))
        if self._same and not self._is_apart:
            results, unread = self._same.take(self._parts)
            for group in unread:
                self._begin(group, is_to_be_read=True)
            for result in results:
                self._note(result, 1)
        if self._may_remove:
            self._removal.remove_sometimes()

    def _count_planned(self) -> int:
        """Pages of the shard."""
        return sum(len(self._plan.pages_of(part)) for part in self._own)

    def _count(self, state: PageState) -> int:
        """Pages of the shard that are in a state."""
        if self._own.step == 1:
            return int((self._ledger.states == state).sum())
        return sum(int((self._ledger.known_states(part) == state).sum()) for part in self._own)

    def _write(self, part: int) -> None:
        """Have a part written whose pages were all read or have failed."""
        self._commit()
        if part not in self._parts or part in self._being_written:
            return
        known = self._ledger.known_part(part)
        if known.count(PageState.PLANNED):
            self._queue(part)
            return
        self._being_written.add(part)
        self._writing.write(part, known)

    def _take_part(self, part: FinishedPart, written: KnownPart) -> None:
        """A part was written: it is finished, unless more is known of it by now than was written."""
        number = part.part
        self._being_written.discard(number)
        self._commit()
        if (self._ledger.known_states(number) != written.states).any():
            # Another owner wrote it with fewer failures while this one was stopped, and this one's file is there now.
            self._ledger.forget_finished(number)
            self._parts.open_again(number)
            return
        self._log.note_finished(part)
        self._parts.drop(number)
        self._progress.part(part)

    def _read_again(self, part: int, error: DamagedLedger) -> None:
        """Results of a part are not there: another owner has finished it and removed them, or they are damaged."""
        self._being_written.discard(part)
        self._commit()
        if self._ledger.is_finished(part):
            self._parts.drop(part)
            return
        if part in self._read_twice or not self._ledger.forget_lost(part):
            raise error
        self._read_twice.add(part)
        if part in self._parts:
            self._queue(part)

    def _wait_for_others(self) -> bool:
        """Whether others still read parts of this shard; waits a little, and looks again."""
        self._commit()
        if self._parts.is_complete():
            return False
        self._drain.wait(_WAIT_FOR_OTHERS_S)
        return True


def _broken(failures: int, result: PageResult) -> EngineUnavailable:
    error = orjson.loads(result.record)["error"]
    return EngineUnavailable(
        f"{failures} tries in a row to read pages have failed, the last with {result.error}: {error['detail']}",
        "Mend that, and give the same command again: what was read is kept. With --keep-going such pages fail instead.",
    )
