"""The job runner: one thread per worker that reads one job at a time, at batch priority.

It takes any unclaimed job, reads a few pages ahead and writes them in order. If the worker is replaced or dies, another
worker continues after the last page that was written.
"""

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

# Keys in the file BEGUN, which counts tries: 0 for opening the document, page numbers, negative for output files.
OPENING: Final = 0
# After this many tries that never finished, a page is assumed to crash the processes that read it.
MAX_TRIES: Final = 3
# Interval of syncs to disk; after a power failure the pages since the last sync are read again.
_SYNC_S: Final = 2.0
_SWEEP_S: Final = 60.0


@dataclass
class JobRunner:
    """Reads waiting jobs in `thread`, until this process `is_leaving`. Stop the runner before the reader.

    `page_s` is the time limit of a page, including its wait; `gate` counts pages against the job's API key.
    """

    jobs: JobStore
    reader: Reader
    page_s: float
    is_leaving: Callable[[], bool]
    gate: AccessGate | None = None

    def __post_init__(self) -> None:
        self._swept_s = time.monotonic()
        self.thread = StorageThreads("jobs", self.read_all, 1, self.jobs.added)

    def read_all(self) -> bool:
        """Read all waiting jobs; returns False, so StorageThreads waits for new jobs. Raises QueueFull, OSError."""
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
        """Whether this worker must stop; others then read the remaining jobs."""
        return self.thread.stopped.is_set() or self.is_leaving()

    def _read(self, job: Job) -> None:
        """Read the remaining pages of a job. If the disk is full, the job waits and is continued later."""
        if job.is_done():
            # Another worker ended this job, but died before it updated the database: update the database now.
            job.note_progress()
            return
        try:
            with storing():
                error = self._outcome(job)
                job.finish(error)
                self.jobs.note("done" if error is None else "failed")
        except StorageFull:
            # Return the job to the state "waiting"; this deletes a file, so it works although the disk is full.
            (job.folder / BEGUN).unlink(missing_ok=True)
            raise
        except (ClientGone, Refused):
            return

    def _outcome(self, job: Job) -> OcrsvcError | None:
        """Read the job; returns the error it fails with, or None. Raises ClientGone; Refused to continue it later."""
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
            LOGGER.error("a job cannot be read", exc_info=loggable_error(error))
            return OcrsvcError("An unexpected error occurred; it is in the service's log.")
        return None


class JobReading:
    """Reads one job that this process has claimed, and counts the unfinished tries of each page.

    If a page crashes the process, all pages in progress are lost, so pages with unfinished tries are read alone.
    """

    def __init__(self, runner: JobRunner, job: Job) -> None:
        self._runner, self._reader, self._job, self._record = runner, runner.reader, job, job.record()
        self._options = unpack_options(self._record.options)
        self._context = RequestContext("batch", lambda: runner.is_stopping() or not job.is_there(), source="job")
        # Pages being read: page number, and the admission of the job's API key that counts the page.
        self._in_progress: deque[tuple[int, Admission | None]] = deque()
        self._synced_s = time.monotonic()
        self._begun: dict[int, int] = {}
        # The file BEGUN is missing before the first page, and may be empty after a power failure.
        with suppress(FileNotFoundError, ValueError):
            self._begun = {int(number): times for number, times in job.get(BEGUN).items()}

    def read(self) -> None:
        """Read the remaining pages. Raises OcrsvcError: ClientGone if the job was deleted or this process ends."""
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
        """Make the output files that the client ordered. Failures are logged; fetching a missing file reports them."""
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
        """Read pages from the front of `numbers`, until one must be tried again."""
        if self._begun.get(numbers[0], 0) >= MAX_TRIES:
            why = f"The page was begun {MAX_TRIES} times and never finished; it is skipped."
            self._write(numbers[0], {"error": why, "code": DeadlineExceeded.code})
            return
        # A page with unfinished tries is read alone, so that it takes no other page with it if it crashes the process.
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
        """Count a try of a page; returns the request context to read it with. Raises ClientGone, KeyRefused."""
        if self._context.is_gone():
            raise client_gone()
        gate, key = self._runner.gate, self._record.key
        pages = None if gate is None or key is None else gate.resume(key)
        self._in_progress.append((page.number, pages))
        self._note_begun(1, page.number)
        return self._context if pages is None else replace(self._context, pages=pages)

    def _take(self, outcome: Reading | OcrsvcError) -> bool:
        """Write the outcome of the oldest page in progress; False if the page must be read again. Raises as `read`."""
        if isinstance(outcome, KeyRefused | QuotaExceeded | ClientGone):
            raise outcome
        if isinstance(outcome, Refused | NeverStarted):
            # The service is busy: drop the pages in progress, and read them later.
            self._give_up()
            self._runner.thread.stopped.wait(POLL_S)
            return False
        number, pages = self._in_progress[0]
        # A page that is too slow is tried again, like one that crashes the process.
        is_late = isinstance(outcome, DeadlineExceeded) and self._begun.get(number, 0) < MAX_TRIES
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
        _, pages = self._in_progress.popleft()
        if pages is not None:
            pages.release()

    def _give_up(self) -> None:
        """Drop the pages in progress; this does not count as a try."""
        numbers = [number for number, _ in self._in_progress]
        while self._in_progress:
            self._end_first()
        if numbers and self._job.is_there():
            self._note_begun(-1, *numbers)

    @contextmanager
    def _trying(self, number: int) -> Iterator[None]:
        """Count the block as a try to open the document or make a file. Raises DeadlineExceeded after MAX_TRIES."""
        if self._begun.get(number, 0) >= MAX_TRIES:
            raise DeadlineExceeded(f"This step was begun {MAX_TRIES} times and never finished.")
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
        """Add `more` to the unfinished tries of the keys `numbers` in BEGUN; None resets them to 0. Raises OSError."""
        for number in numbers:
            times = self._begun.pop(number, 0)
            if more is not None and times + more > 0:
                self._begun[number] = times + more
        # Not synced to disk: a try that a power failure ended should not count against the page.
        self._job.put(BEGUN, self._begun, is_durable=False)
