"""Reads the documents in the job store: one thread of each worker, one document at a time, at batch priority.

It takes whichever job is free, reads its pages a few ahead and writes each where it is kept, in order, so that what a
worker leaves behind, because it was replaced or died, is continued by another one after the last page that was written.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Final

from ocrsvc.access.admission import Admission
from ocrsvc.access.gate import AccessGate
from ocrsvc.errors import ClientGone, DeadlineExceeded, KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.jobs.job import BEGUN, ENGINE, Job
from ocrsvc.jobs.job_database import LOGGER, StorageFull, storing
from ocrsvc.jobs.job_result import ANSWER, has_answer, make_result, unpack_options
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.jobs.storage_threads import POLL_S, StorageThreads
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.serving.work_queue import NeverStarted, RequestContext, client_gone, make_check
from ocrsvc.telemetry.loggable import loggable_error

OPENING: Final = 0
"""In place of the number of a page: the document is being opened. Below it are the files that are made of it."""

MOST_TRIES: Final = 3
"""How often a page may be begun that is never finished: by then it is what ends the processes that read it."""

# After a loss of power the pages of so many seconds may have to be read again.
_SYNC_S: Final = 2.0
_SWEEP_S: Final = 60.0


class BegunPages:
    """Which pages of a claimed job are being read, and how often processes began each that did not come back.

    With the one that ends them innocent ones are begun: a page that was begun before is read alone. Any method may
    raise OSError.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._times: dict[int, int] = {}
        # After a loss of power it may be empty.
        with suppress(FileNotFoundError, ValueError):
            self._times = {int(number): times for number, times in job.get(BEGUN).items()}

    def times(self, number: int) -> int:
        """How often the page was begun and never finished."""
        return self._times.get(number, 0)

    def begin(self, number: int) -> None:
        """A page is begun."""
        self._note({number: self.times(number) + 1})

    def end(self, number: int) -> None:
        """What was begun came back."""
        self._note({number: 0})

    def forget(self, *numbers: int) -> None:
        """These were given up in good order, to be begun again: the last time does not count."""
        self._note({number: self.times(number) - 1 for number in numbers})

    @contextmanager
    def trying(self, number: int) -> Iterator[None]:
        """What no page is done within the block. Raises DeadlineExceeded where that has ended processes before."""
        if self.times(number) >= MOST_TRIES:
            raise DeadlineExceeded(f"This was begun {MOST_TRIES} times, and that never ended.")
        self.begin(number)
        try:
            yield
        except ClientGone:
            self.forget(number)
            raise
        except Exception:
            self.end(number)
            raise
        self.end(number)

    def _note(self, times: Mapping[int, int]) -> None:
        self._times = {number: count for number, count in {**self._times, **times}.items() if count > 0}
        # Not for a loss of power, which is no page's fault.
        self._job.put(BEGUN, self._times, is_durable=False)


@dataclass
class JobReading:
    """One job that this process has claimed, while it is read; used by one thread.

    A page may take `page_s`, its wait included. `context` says whether the job is still wanted, here; `gate` counts the
    pages for the key that the document was left with, and `wait` is called while other requests come first.
    """

    jobs: JobStore
    job: Job
    reader: Reader
    page_s: float
    context: RequestContext
    gate: AccessGate | None
    wait: Callable[[], object]

    def __post_init__(self) -> None:
        self._record = self.job.record()
        self._options = unpack_options(self._record.options)
        self._begun = BegunPages(self.job)
        # Numbers of the pages on their way, with where each is counted.
        self._on_way: deque[tuple[int, Admission | None]] = deque()
        self._synced_s = time.monotonic()
        self._knows_engine = False

    def read(self) -> None:
        """Read what is left of it.

        Raises:
            ClientGone: This process ends, or the job was deleted.
            KeyRefused, QuotaExceeded: The key of the document is not valid any more, or has no pages left.
            OcrsvcError: The document cannot be opened, or no model reads it.
            OSError: It cannot be written what was read.
        """
        numbers, job, context = self._record.numbers, self.job, self.context
        if job.log.count() == len(numbers):
            return
        with ExitStack() as stack:
            with self._begun.trying(OPENING):
                document = stack.enter_context(self.reader.open_document(job.data(), math.inf, context))
            lease = stack.enter_context(self.reader.one_version(self._options, self.page_s, context))
            while left := numbers[job.log.count() :]:
                self._read_some(document, left, lease)

    def make_files(self) -> None:
        """The formats that were asked for, and the adapter's answer; who fetches one that failed learns why."""
        check = make_check(self.context, math.inf, time.monotonic)
        names = (*self._record.formats, *([ANSWER] if has_answer(self._record) else ()))
        for place, name in enumerate(names):
            try:
                with self._begun.trying(OPENING - 1 - place):
                    make_result(self.jobs, self.job, name, check)
            except ClientGone:
                raise
            except OcrsvcError as error:
                LOGGER.info("no file was made of job %s format=%s code=%s", self.job.id, name, error.code)

    def _read_some(self, document: Document, numbers: Sequence[int], lease: Lease) -> None:
        """The next of these pages, as many as there are until one has to be tried again."""
        if self._begun.times(numbers[0]) >= MOST_TRIES:
            why = f"The page was begun {MOST_TRIES} times and never finished, and is left out."
            self._write(numbers[0], {"error": why, "code": DeadlineExceeded.code})
            return
        # With what others died of, nothing else is begun.
        some = list(takewhile(lambda number: not self._begun.times(number), numbers)) or [numbers[0]]
        pages = (DocumentPage(document, number) for number in some)
        reading = self.reader.read_ahead(pages, self._options, self.page_s, self._begin, lease)
        try:
            with closing(reading) as outcomes:
                for outcome in outcomes:
                    if not self._take(outcome):
                        return
        finally:
            self._give_up()

    def _begin(self, page: DocumentPage) -> RequestContext:
        """A page is about to be begun, as part of this. Raises ClientGone, KeyRefused."""
        if self.context.is_gone():
            raise client_gone()
        self._begun.begin(page.number)
        self._on_way.append((page.number, None))
        if self.gate is None or self._record.key is None:
            return self.context
        pages = self.gate.resume(self._record.key)
        self._on_way[-1] = (page.number, pages)
        return replace(self.context, pages=pages)

    def _take(self, outcome: Reading | OcrsvcError) -> bool:
        """Write what became of the page that was begun first; False when it is to be tried again. Raises as `read`."""
        number, pages = self._on_way[0]
        if isinstance(outcome, KeyRefused | QuotaExceeded | ClientGone):
            raise outcome
        if isinstance(outcome, Refused | NeverStarted):
            self._give_up()
            self.wait()
            return False
        if isinstance(outcome, DeadlineExceeded) and self._begun.times(number) < MOST_TRIES:
            # A page that is too slow for us counts like one that ends us.
            self._end_first()
            return False
        try:
            if pages is not None and isinstance(outcome, Reading):
                pages.settle(succeeded=True)
        except Refused as refused:
            return self._take(refused)
        self._end_first()
        self._write(number, self._row(outcome))
        return True

    def _row(self, outcome: Reading | OcrsvcError) -> dict[str, object]:
        if isinstance(outcome, OcrsvcError):
            return {"error": str(outcome), "code": outcome.code}
        if not self._knows_engine:
            self.job.put(ENGINE, asdict(outcome.engine))
            self._knows_engine = True
        return {"page": pack_page(outcome.page), "took_s": outcome.timing.total_s, "at_s": time.time()}

    def _write(self, number: int, row: dict[str, object]) -> None:
        self.job.log.append({"number": number, **row})
        self._begun.end(number)
        if time.monotonic() - self._synced_s >= _SYNC_S:
            self.job.note_progress()
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
        if numbers and self.job.is_there():
            self._begun.forget(*numbers)


@dataclass
class JobRunner:
    """A thread that reads what waits; start its `thread` when the reader is ready, and stop it before the reader is.

    A page may take `page_s`, its wait included. `is_leaving` says whether this process is to end, so that others should
    go on; `gate` counts the pages for the keys that the documents were left with.
    """

    jobs: JobStore
    reader: Reader
    page_s: float
    is_leaving: Callable[[], bool]
    gate: AccessGate | None = None

    def __post_init__(self) -> None:
        self._swept_s = time.monotonic()
        self.thread = StorageThreads("documents", self.read_all, wakes=self.jobs.added)

    def read_all(self) -> bool:
        """Read what waits, until this process is to end; False. Raises QueueFull, OSError."""
        self.jobs.added.clear()
        if time.monotonic() - self._swept_s >= _SWEEP_S:
            self._swept_s = time.monotonic()
            self.jobs.sweep()
        for job in self.jobs.waiting():
            if self._is_stopping():
                break
            with suppress(FileNotFoundError), job.claim() as is_ours:
                if is_ours:
                    self._read(job)
        return False

    def _is_stopping(self) -> bool:
        return self.thread.stopped.is_set() or self.is_leaving()

    def _read(self, job: Job) -> None:
        """Read what is left of a job; one that meets a full disk, also at its very end, is left to be gone on with."""
        if job.is_done():
            # Its reader died between the two.
            job.note_progress()
            return
        try:
            with storing():
                error = self._read_pages(job)
                if error is None:
                    job.finish("success")
                else:
                    job.finish("failure", str(error), error.code)
                self.jobs.note("done" if error is None else "failed")
        except StorageFull:
            # It waits again, which needs no room.
            (job.folder / BEGUN).unlink(missing_ok=True)
            raise
        except (ClientGone, Refused):
            return

    def _read_pages(self, job: Job) -> OcrsvcError | None:
        """Why the job has failed; None where it has not. Raises ClientGone, and Refused where it is gone on with."""
        context = RequestContext("batch", lambda: self._is_stopping() or not job.is_there(), source="job")
        try:
            with storing():
                reading = JobReading(self.jobs, job, self.reader, self.page_s, context, self.gate, self._give_way)
                reading.read()
                reading.make_files()
        except QuotaExceeded as error:
            return error
        except (ClientGone, Refused):
            raise
        except OcrsvcError as error:
            return error
        except Exception as error:
            if not job.is_there():
                raise client_gone() from error
            LOGGER.error("a document cannot be read", exc_info=loggable_error(error))
            return OcrsvcError("Something went wrong here; it is in the service's log.")
        return None

    def _give_way(self) -> None:
        """Others come first."""
        self.thread.stopped.wait(POLL_S)
