"""The thread of a run that writes parts to the output, while others are read."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ocrsvc.batch.ledger.entries import PageState
from ocrsvc.batch.ledger.ledger import KnownPart
from ocrsvc.batch.ledger.ledger_log import FinishedPart
from ocrsvc.batch.outputs.contract import FileResults, OutputWriter
from ocrsvc.batch.plan import Plan
from ocrsvc.batch.run_events import Failure, PartNotWritten, PartWritten, ResultsLost, RunEvents
from ocrsvc.batch.store.contract import Store
from ocrsvc.batch.tasks import SourceFile
from ocrsvc.errors import DamagedLedger

Load = Callable[[SourceFile], bytes]
"""Gives the bytes of a source's file; raises SourceGone."""


class PartWriting:
    """One thread that writes parts one after the other; used by the thread that runs.

    Args:
        store, plan: Of the run.
        writers: Of the output.
        load: For writers that need the files themselves.
        events: Told what becomes of parts.
    """

    def __init__(
        self, store: Store, plan: Plan, writers: Sequence[OutputWriter], load: Load, events: RunEvents
    ) -> None:
        self._store, self._plan, self._writers, self._load, self._events = store, plan, writers, load, events
        self._parts: queue.SimpleQueue[tuple[int, KnownPart] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_parts, name="batch-output", daemon=True)
        self._is_given_up = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, part: int, known: KnownPart) -> None:
        """Have a part written, all of whose pages were read or have failed."""
        self._parts.put((part, known))

    def give_up(self) -> None:
        """Write what is being written, and nothing that waits."""
        self._is_given_up = True

    def end(self) -> None:
        """Have the thread end after what it writes; `join` waits for it."""
        self._is_given_up = True
        self._parts.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread at most so long."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _write_parts(self) -> None:
        while (item := self._parts.get()) is not None:
            part, known = item
            try:
                self._events.put(self._write(part, known))
            except DamagedLedger as error:
                self._events.put(ResultsLost(part, error))
            except BaseException as failure:  # noqa: BLE001  raised by the thread that runs
                self._events.put(Failure(failure))
                return

    def _write(self, part: int, known: KnownPart) -> PartWritten | PartNotWritten:
        if self._is_given_up:
            return PartNotWritten(part)
        return PartWritten(write_part(self._store, self._plan, self._writers, self._load, part, known), known)


def write_part(
    store: Store, plan: Plan, writers: Sequence[OutputWriter], load: Load, part: int, known: KnownPart
) -> FinishedPart:
    """Write what is known of a part, in every format; gives what was written. Raises OSError and OcrsvcError."""
    written = [file for writer in writers for file in writer.write(store, part, _results_of(plan, load, part, known))]
    files = {file.name: (file.size, file.sha256) for file in written}
    return FinishedPart(part, known.count(PageState.DONE), known.count(PageState.FAILED), files)


def _results_of(plan: Plan, load: Load, part: int, known: KnownPart) -> Iterator[FileResults]:
    for first, file in plan.files_of(part):
        index_of = {number: first + at for at, number in enumerate(file.pages)}
        numbers = [number for number, at in index_of.items() if known.is_known(at)]

        def record(number: int, index_of: dict[int, int] = index_of) -> bytes:
            return known.read_record(index_of[number])

        yield FileResults(file, numbers, record, partial(load, file))
