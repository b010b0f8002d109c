"""Reads the documents in the job store: one thread of each worker, one document at a time, at batch priority.

It takes whichever job is free, reads its pages a few ahead and writes each where it is kept, in order, so that what a
worker leaves behind, because it was replaced or died, is continued by another one after the last page that was written.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from ocrsvc.access.admission import Admission
from ocrsvc.access.gate import AccessGate
from ocrsvc.errors import ClientGone, DeadlineExceeded, KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.jobs.job import BEGUN, ENGINE, Job
from ocrsvc.jobs.job_database import LOGGER, StorageFull, storing
from ocrsvc.jobs.job_result import formats_made, make_result, unpack_options
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.jobs.storage_threads import POLL_S, StorageThreads
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Reading
from ocrsvc.serving.work_queue import NeverStarted, RequestContext, client_gone, make_check
from ocrsvc.telemetry.loggable import loggable_error

# In place of the number of a page: the document is being opened. Below it are the files that are made of it.
OPENING: Final = 0
# How often a page may be begun that is never finished: by then it is what ends the processes that read it.
MOST_TRIES: Final = 3
# After a loss of power the pages of so many seconds may have to be read again.
_SYNC_S: Final = 2.0
_SWEEP_S: Final = 60.0


@dataclass
class JobRunner:
    """A `thread` that reads what waits, until this process `is_leaving`; to be stopped before the reader is.

    A page may take `page_s`, its wait included; `gate` counts it for the key that the document was left with.
    """

    jobs: JobStore
    reader: Reader
    page_s: float
    is_leaving: Callable[[], bool]
    gate: AccessGate | None = None

    def __post_init__(self) -> None:
        self._swept_s = time.monotonic()
        self.thread = StorageThreads("documents", self.read_all, 1, self.jobs.added)

    def read_all(self) -> bool:
        """Read what waits, until this process is to end; False. Raises QueueFull, OSError."""
        self.jobs.added.clear()
        if time.monotonic() - self._swept_s >= _SWEEP_S:
            self._swept_s = time.monotonic()
            self.jobs.sweep()
        for job in self.jobs.all("NOT is_done"):
            if self.is_stopping():
                break
            with suppress(FileNotFoundError), job.claim() as is_ours:
                if is_ours:
                    self._read(job)
        return False

    def is_stopping(self) -> bool:
        """Whether others are to go on."""
        return self.thread.stopped.is_set() or self.is_leaving()

    def _read(self, job: Job) -> None:
        """Read what is left of a job; one that meets a full disk, also at its very end, is left to be gone on with."""
        if job.is_done():
            # Its reader died between the two.
            job.note_progress()
            return
        try:
            with storing():
                error = self._outcome(job)
                job.finish(error)
                self.jobs.note("done" if error is None else "failed")
        except StorageFull:
            # It waits again, which needs no room.
            (job.folder / BEGUN).unlink(missing_ok=True)
            raise
        except (ClientGone, Refused):
            return

    def _outcome(self, job: Job) -> OcrsvcError | None:
        """Why the job has failed; None where it has not. Raises ClientGone, and Refused where it is gone on with."""
        try:
            with storing():
                reading = JobReading(self, job)
                reading.read()
                reading.make_files()
        except OcrsvcError as error:
            if isinstance(error, ClientGone | Refused) and not isinstance(error, QuotaExceeded):
                raise
            return error
        except Exception as error:
            if not job.is_there():
                raise client_gone() from error
            LOGGER.error("a document cannot be read", exc_info=loggable_error(error))
            return OcrsvcError("Something went wrong here; it is in the service's log.")
        return None


class JobReading:
    """One job that this process has claimed, while it is read, with how often each page was begun and never ended.

    With the page that ends processes innocent ones are begun: one that was begun before is read alone.
    """

    def __init__(self, runner: JobRunner, job: Job) -> None:
        self._runner, self._reader, self._job, self._record = runner, runner.reader, job, job.record()
        self._options = unpack_options(self._record.options)
        self._context = RequestContext("batch", lambda: runner.is_stopping() or not job.is_there(), source="job")
        # Numbers of the pages on their way, with where each is counted.
        self._on_way: deque[tuple[int, Admission | None]] = deque()
        self._synced_s = time.monotonic()
        self._begun: dict[int, int] = {}
        # After a loss of power it may be empty.
        with suppress(FileNotFoundError, ValueError):
            self._begun = {int(number): times for number, times in job.get(BEGUN).items()}

    def read(self) -> None:
        """Read what is left of it. Raises ClientGone where this process ends or the job was deleted; OcrsvcError."""
        numbers, job, page_s = self._record.numbers, self._job, self._runner.page_s
        if job.page_count() == len(numbers):
            return
        with ExitStack() as stack:
            with self._trying(OPENING):
                document = stack.enter_context(self._reader.open_document(job.data(), math.inf, self._context))
            lease = stack.enter_context(self._reader.one_version(self._options, page_s, self._context))
            while left := numbers[job.page_count() :]:
                self._read_some(document, left, lease)

    def make_files(self) -> None:
        """What is made before anybody asks; who fetches a file that failed learns why."""
        check = make_check(self._context, math.inf, time.monotonic)
        for place, name in enumerate(formats_made(self._record)):
            try:
                with self._trying(OPENING - 1 - place):
                    make_result(self._runner.jobs, self._job, name, check)
            except ClientGone:
                raise
            except OcrsvcError as error:
                LOGGER.info("no file was made of job %s format=%s code=%s", self._job.id, name, error.code)

    def _read_some(self, document: Document, numbers: Sequence[int], lease: Lease) -> None:
        """The next of these pages, as many as there are until one has to be tried again."""
        if self._begun.get(numbers[0], 0) >= MOST_TRIES:
            why = f"The page was begun {MOST_TRIES} times and never finished, and is left out."
            self._write(numbers[0], {"error": why, "code": DeadlineExceeded.code})
            return
        # With what others died of, nothing else is begun.
        some = list(takewhile(lambda number: number not in self._begun, numbers)) or [numbers[0]]
        pages = (DocumentPage(document, number) for number in some)
        try:
            reading = self._reader.read_ahead(pages, self._options, self._runner.page_s, self._begin, lease)
            with closing(reading):
                for outcome in reading:
                    if not self._take(outcome):
                        return
        finally:
            self._give_up()

    def _begin(self, page: DocumentPage) -> RequestContext:
        """A page is about to be begun, as part of this. Raises ClientGone, KeyRefused."""
        if self._context.is_gone():
            raise client_gone()
        gate, key = self._runner.gate, self._record.key
        pages = None if gate is None or key is None else gate.resume(key)
        self._on_way.append((page.number, pages))
        self._note_begun(1, page.number)
        return self._context if pages is None else replace(self._context, pages=pages)

    def _take(self, outcome: Reading | OcrsvcError) -> bool:
        """Write what became of the page that was begun first; False when it is to be tried again. Raises as `read`."""
        if isinstance(outcome, KeyRefused | QuotaExceeded | ClientGone):
            raise outcome
        if isinstance(outcome, Refused | NeverStarted):
            # Others come first.
            self._give_up()
            self._runner.thread.stopped.wait(POLL_S)
            return False
        number, pages = self._on_way[0]
        # A page that is too slow for us counts like one that ends us.
        is_late = isinstance(outcome, DeadlineExceeded) and self._begun.get(number, 0) < MOST_TRIES
        if pages is not None and isinstance(outcome, Reading):
            try:
                pages.settle(succeeded=True)
            except Refused as refused:
                return self._take(refused)
        self._end_first()
        if not is_late:
            self._write(number, self._row(outcome))
        return not is_late

    def _row(self, outcome: Reading | OcrsvcError) -> dict[str, object]:
        if isinstance(outcome, OcrsvcError):
            return {"error": str(outcome), "code": outcome.code}
        if not (self._job.folder / ENGINE).exists():
            self._job.put(ENGINE, outcome.engine)
        return {"page": pack_page(outcome.page), "took_s": outcome.timing.total_s, "at_s": time.time()}

    def _write(self, number: int, row: dict[str, object]) -> None:
        self._job.append_page({"number": number, **row})
        self._note_begun(None, number)
        if time.monotonic() - self._synced_s >= _SYNC_S:
            self._job.note_progress()
            self._synced_s = time.monotonic()

    def _end_first(self) -> None:
        _, pages = self._on_way.popleft()
        if pages is not None:
            pages.release()

    def _give_up(self) -> None:
        """Those on their way are begun again later, and it is not their fault."""
        numbers = [number for number, _ in self._on_way]
        while self._on_way:
            self._end_first()
        if numbers and self._job.is_there():
            self._note_begun(-1, *numbers)

    @contextmanager
    def _trying(self, number: int) -> Iterator[None]:
        """What is no page is begun and ends with the block. Raises DeadlineExceeded where it never ended before."""
        if self._begun.get(number, 0) >= MOST_TRIES:
            raise DeadlineExceeded(f"This was begun {MOST_TRIES} times, and that never ended.")
        self._note_begun(1, number)
        ended: int | None = None
        try:
            yield
        except ClientGone:
            ended = -1
            raise
        finally:
            self._note_begun(ended, number)

    def _note_begun(self, more: int | None, *numbers: int) -> None:
        """They are begun once more, or once less as that does not count; None: they came back. Raises OSError."""
        for number in numbers:
            times = self._begun.pop(number, 0)
            if more is not None and times + more > 0:
                self._begun[number] = times + more
        # Not for a loss of power, which is no page's fault.
        self._job.put(BEGUN, self._begun, is_durable=False)
