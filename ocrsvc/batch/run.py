"""The run: hands pages to reading threads, keeps their results, and has parts written that are whole.

One thread does all of it, event after event: it alone writes the work file and hands out pages.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import orjson

from ocrsvc.batch.page_queue import PageQueue
from ocrsvc.batch.pages import COPIED, PageGroup, PageResult, copied_result
from ocrsvc.batch.parts import Manifest, PartThread
from ocrsvc.batch.progress import RunCounts
from ocrsvc.batch.run_context import RunContext, RunOutcome, RunSettings
from ocrsvc.batch.work_file import WorkRecords
from ocrsvc.errors import DamagedLedger, EngineUnavailable, OcrsvcError

MOST_FAILURES: Final = 100
"""Tries in a row that fail and are not the pages' fault: whatever reads is broken, and the run ends before pages do."""
COMMIT_S: Final = 1.0
_MOST_UNWRITTEN: Final = 4
"""Parts that may wait to be written before no further ones are begun."""
_WAIT_S: Final = 1.0
_JOIN_S: Final = 10.0


_Event = Callable[[], None]


class Run:
    """Works on a run until its shard is finished, the limit is reached, or `drain` is called."""

    def __init__(
        self, context: RunContext, settings: RunSettings, counts: RunCounts, clock: Callable[[], float] = time.time
    ) -> None:
        self._context, self._settings, self._counts, self._clock = context, settings, counts, clock
        self._plan, self._work = context.plan, context.work
        self._pages = PageQueue(self._plan, context.begun.deaths, settings.attempts, settings.limit)
        self._todo = iter(context.parts)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._contents = self._work.contents() if settings.dedupe else None
        self._contents_lock = threading.Lock()
        self._groups: queue.SimpleQueue[tuple[PageGroup, bool] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._writer = PartThread(context.writer, context.work.path, context.reopened, self._put_part)
        # Parts that are worked on, with the pages that have no result yet.
        self._left: dict[int, int] = {}
        self._in_flight: dict[PageGroup, None] = {}
        self._waiting: list[tuple[PageGroup, int]] = []
        self._attempts: dict[int, int] = {}
        self._failures = 0
        self._is_apart = False
        self._drain = threading.Event()
        self._committed = clock()
        self._unwritten = len(context.parts)
        self.outcome = RunOutcome()
        self.outcome.planned, self.outcome.all_done, self.outcome.all_failed = context.counted

    def drain(self) -> None:
        """Begin no more pages; for any thread and for signal handlers."""
        self._drain.set()
        self._events.put(lambda: None)

    def execute(self) -> RunOutcome:
        """Do all of it.

        Raises:
            OcrsvcError: The reader cannot go on.
            OSError, sqlite3.Error: Destination or work folder cannot be written. What was committed stands.
        """
        self._writer.start()
        try:
            self._loop()
            self._commit()
            if self._pages.is_at_limit and self._settings.shards == 1:
                self._write_unfinished()
        finally:
            for _ in self._threads:
                self._groups.put(None)
            self._writer.end()
            self._writer.join(_JOIN_S)
        self.outcome.is_complete = not self._unwritten
        return self.outcome

    def join(self, timeout_s: float) -> None:
        """Wait for the run's threads, at most so long each; once the reader is closed."""
        for thread in (*self._threads, self._writer):
            if thread.is_alive():
                thread.join(timeout_s)

    def _loop(self) -> None:
        self._counts.planned(self.outcome.planned, self._pages_left())
        while True:
            self._begin_groups()
            if self._in_flight or self._writer.waiting:
                self._take_events()
                # Also where the clock was set back.
                if not 0 <= self._clock() - self._committed < COMMIT_S:
                    self._commit()
            elif self._waiting:
                # Nothing else is on its way: what they wait for is known, or not to be read.
                self._copy(is_last=True)
                if not self._in_flight and (self._drain.is_set() or self._pages.is_at_limit):
                    return
            else:
                return

    def _begin_groups(self) -> None:
        """Give the threads work; pages that may have killed a process are read apart from all others."""
        if self._drain.is_set() or self._is_apart:
            return
        groups: list[PageGroup] = []
        room = self._room()
        while len(groups) < room and not self._pages.has_suspects:
            group = self._pages.take()
            if group is not None:
                groups.append(group)
            elif self._pages.is_at_limit or not self._begin_part():
                break
        if groups:
            self._begin(groups)
        elif self._pages.has_suspects and room and not self._in_flight:
            self._commit()
            groups = self._pages.take_suspects()
            self._is_apart = bool(groups)
            self._begin(groups)

    def _begin(self, groups: Sequence[PageGroup], *, is_to_be_read: bool = False) -> None:
        self._in_flight |= dict.fromkeys(groups)
        if not self._context.reader.is_elsewhere:
            pages = [index for group in self._in_flight for index in group.indexes]
            self._context.begun.note(pages, is_apart=self._is_apart)
        for group in groups:
            self._counts.begun(group)
            self._groups.put((group, is_to_be_read))

    def _room(self) -> int:
        """How many groups may be begun now: each reading thread has one waiting. Starts threads that are missing."""
        at_once = self._context.reader.at_once
        while len(self._threads) < at_once:
            thread = threading.Thread(target=self._read_groups, name=f"batch-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return 2 * at_once - len(self._in_flight)

    def _begin_part(self) -> bool:
        """Queue the pages of the next part; False where there is none, or many parts wait to be written."""
        if self._writer.waiting >= _MOST_UNWRITTEN:
            return False
        part = next(self._todo, None)
        if part is None:
            return False
        self._queue(part)
        return True

    def _queue(self, part: int) -> None:
        known = self._work.errors(self._plan.pages_of(part))
        count, failed = self._pages.add(part, known)
        self._left[part] = count
        if not count:
            self._write(part)
        for result in failed:
            self._note(result, self._settings.attempts)

    def _take_events(self) -> None:
        """Take what came, waiting a little for the first."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=_WAIT_S)()
            while True:
                self._events.get_nowait()()
        if self._drain.is_set():
            self._writer.is_given_up = True

    def _take_hash(self, group: PageGroup, digest: bytes, first: int) -> None:
        """The content of a group's file, and the first page of the first file that has it."""
        self._work.add_content(digest, first)
        if first != _first_of(group):
            self._waiting.append((group, first))

    def _take_end(self, group: PageGroup) -> None:
        self._counts.ended(group)
        self._in_flight.pop(group, None)
        self._is_apart = self._is_apart and bool(self._in_flight)

    def _take_page(self, group: PageGroup, result: PageResult) -> None:
        attempts = self._attempts.pop(result.index, 0) + 1
        if not (result.error and result.is_retryable):
            self._failures = 0
            self._note(result, attempts)
            return
        self._failures += 1
        if self._failures >= MOST_FAILURES and not self._settings.keeps_going:
            error = orjson.loads(result.record)["error"]
            raise EngineUnavailable(
                f"{self._failures} tries in a row to read pages have failed, the last with {result.error}: "
                f"{error['detail']}",
                "Fix that, and repeat the command: what was read is kept. With --keep-going such pages fail instead.",
            )
        if attempts >= self._settings.attempts:
            self._note(result, attempts)
        else:
            self._attempts[result.index] = attempts
            self._pages.add_again(group, result.index)
            self._counts.retried(result)

    def _note(self, result: PageResult, attempts: int) -> None:
        self._work.add(result, attempts, self._clock())
        self._context.begun.forget([result.index])
        outcome = self.outcome
        outcome.done += not result.error
        outcome.all_done += not result.error
        outcome.all_failed += bool(result.error)
        outcome.copied += result.worker == COPIED
        if result.error:
            outcome.failed[result.error] += 1
        self._counts.page(result)
        part = self._plan.part_of(result.index)
        self._left[part] -= 1
        if not self._left[part]:
            self._write(part)

    def _commit(self) -> None:
        """Make what was noted durable, and copy what can be copied now."""
        self._work.commit()
        self._committed = self._clock()
        self._counts.committed(self._committed, self._pages_left())
        if self._waiting and not self._is_apart:
            self._copy(is_last=False)

    def _pages_left(self) -> int:
        return self.outcome.planned - self.outcome.all_done - self.outcome.all_failed

    def _write(self, part: int) -> None:
        """Have a part written whose pages all have a result."""
        self._work.commit()
        self._left.pop(part, None)
        self._writer.write(part)

    def _put_part(self, part: int, written: Manifest | BaseException | None) -> None:
        """In the output thread."""
        if isinstance(written, BaseException):
            self._events.put(_raising(written))
        else:
            self._events.put(partial(self._take_part, part, written))

    def _take_part(self, part: int, manifest: Manifest | None) -> None:
        """A part was written; or results of it were damaged, and are read again."""
        self._writer.waiting -= 1
        if manifest is not None:
            self._unwritten -= 1
            self._counts.part()
            if not self._settings.dedupe:
                self._work.drop(self._plan.pages_of(part))
        elif not self._drain.is_set():
            pages = self._plan.pages_of(part)
            errors = self._work.errors(pages)
            damaged = [n for n, error in errors.items() if not error and self._work.record(n) is None]
            self._work.forget(damaged)
            self.outcome.all_done -= len(damaged)
            if not damaged:
                raise DamagedLedger(f"Results of part {part} cannot be read.", "Remove the work folder.")
            self._queue(part)

    def _copy(self, *, is_last: bool) -> None:
        """Copy results to pages of files with the same content; read those that have nothing to copy."""
        waiting, self._waiting = self._waiting, []
        for group, first in waiting:
            source = next(file for at, file in self._plan.files_of(self._plan.part_of(first)) if at == first)
            unread = []
            for number, index in zip(group.pages, group.indexes, strict=True):
                original = first + source.pages.index(number) if number in source.pages else None
                record = None if original is None else self._work.record(original)
                if record is not None:
                    self._note(copied_result(record, source.name, group, number), 1)
                else:
                    unread.append((number, index, original))
            if not unread:
                continue
            numbers, indexes, originals = zip(*unread, strict=True)
            rest = PageGroup(group.file, numbers, indexes)
            if not is_last and any(at is not None and self._is_coming(at) for at in originals):
                self._waiting.append((rest, first))
            elif not self._drain.is_set():
                self._begin([rest], is_to_be_read=True)

    def _is_coming(self, page: int) -> bool:
        """Whether a page has no result yet, and is about to be read by this command."""
        return self._plan.part_of(page) in self._left and page not in self._work.errors(range(page, page + 1))

    def _read_groups(self) -> None:
        """A reading thread: read group after group; what cannot be a result ends the run."""
        while (item := self._groups.get()) is not None:
            group, is_to_be_read = item
            try:
                if self._contents is None or is_to_be_read or self._is_first(group, self._contents):
                    for result in self._context.reader.read(group):
                        self._events.put(partial(self._take_page, group, result))
            except BaseException as failure:  # noqa: BLE001  raised by the thread that runs
                self._events.put(_raising(failure))
                return
            self._events.put(partial(self._take_end, group))

    def _is_first(self, group: PageGroup, contents: dict[bytes, int]) -> bool:
        """Whether a group's file is the first with its content; one that cannot be loaded is read, which says why."""
        try:
            digest = hashlib.blake2b(self._context.load(group.file), digest_size=16).digest()
        except OcrsvcError:
            return True
        with self._contents_lock:
            first = contents.setdefault(digest, _first_of(group))
        self._events.put(partial(self._take_hash, group, digest, first))
        return first == _first_of(group)

    def _write_unfinished(self) -> None:
        """At a limit: write what was read of parts that are not whole beside the output."""
        for part in self._left:
            pages = self._plan.pages_of(part)
            if self._work.errors(pages):
                with contextlib.closing(WorkRecords(self._work.path, pages)) as records:
                    self._context.unfinished.write_some(part, records)


def _first_of(group: PageGroup) -> int:
    """The number of the first page of a group's file."""
    return group.indexes[0] - group.file.pages.index(group.pages[0])


def _raising(error: BaseException) -> _Event:
    def fail() -> None:
        raise error

    return fail
