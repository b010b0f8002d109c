"""The threads of a run in which groups of pages are read."""

from __future__ import annotations

import queue
import threading

from ocrsvc.batch.deduplication import Deduplication
from ocrsvc.batch.page_reader import PageReader
from ocrsvc.batch.run_events import Failure, FileHashed, GroupEnded, PageRead, RunEvents, SameContent
from ocrsvc.batch.tasks import PageGroup


class ReadingThreads:
    """As many threads as the reader reads groups at once; used by the thread that runs.

    Args:
        reader: Reads the groups; started.
        events: Told what becomes of them.
        deduplication: Finds files that were read under another name; None where nobody looks for them.

    Attributes:
        in_flight: Groups that were begun and have not ended.
    """

    def __init__(self, reader: PageReader, events: RunEvents, deduplication: Deduplication | None = None) -> None:
        self._reader, self._events, self._deduplication = reader, events, deduplication
        self._groups: queue.SimpleQueue[tuple[PageGroup, bool] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.in_flight = 0

    def room(self) -> int:
        """How many groups may be begun now: each thread has one waiting, so that it need not."""
        at_once = self._reader.at_once
        while len(self._threads) < at_once:
            thread = threading.Thread(target=self._read_groups, name=f"batch-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return 2 * at_once - self.in_flight

    def begin(self, group: PageGroup, *, is_to_be_read: bool = False) -> None:
        """Have a group read; is_to_be_read: also where its content was met before."""
        self.in_flight += 1
        self._groups.put((group, is_to_be_read))

    def end(self) -> None:
        """Have the threads end with what they read now; `join` waits for them."""
        for _ in self._threads:
            self._groups.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads at most so long each, once the reader is closed."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _read_groups(self) -> None:
        """One thread: read group after group; what cannot be a result ends the run."""
        while (item := self._groups.get()) is not None:
            group, is_to_be_read = item
            try:
                self._read(group, is_to_be_read)
            except BaseException as failure:  # noqa: BLE001  raised by the thread that runs
                self._events.put(Failure(failure))
                return
            self._events.put(GroupEnded(group))

    def _read(self, group: PageGroup, is_to_be_read: bool) -> None:  # noqa: FBT001
        if self._deduplication is not None and not is_to_be_read:
            content = self._deduplication.content_of(group)
            if content.same_as is not None:
                self._events.put(SameContent(group, content.same_as))
                return
            if content.digest is not None:
                self._events.put(FileHashed(group, content.digest))
        for result in self._reader.read(group):
            self._events.put(PageRead(group, result))
