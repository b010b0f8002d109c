"""Reads the documents in the job store: one thread of each worker, one document at a time, at batch priority.

It takes whichever job is free, reads its pages a few ahead and writes each where it is kept, in order, so that what a
worker leaves behind, because it was replaced or died, is continued by another one after the last page that was written.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final

from ocrsvc.access.admission import Admission
from ocrsvc.access.gate import AccessGate
from ocrsvc.errors import ClientGone, DeadlineExceeded, KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.jobs.job import BEGUN, ENGINE, Job
from ocrsvc.jobs.job_database import LOGGER, StorageFull, storing
from ocrsvc.jobs.job_options import unpack_options
from ocrsvc.jobs.job_result import ANSWER, has_answer, make_answer, make_result
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.serving.work_queue import NeverStarted, RequestContext, client_gone
from ocrsvc.telemetry.loggable import loggable_error

OPENING: Final = 0
"""In place of the number of a page: the document is being opened. Below it are the files that are made of it."""

MOST_TRIES: Final = 3
"""How often a page may be begun that is never finished: by then it is what ends the processes that read it."""

# After a loss of power the pages of so many seconds may have to be read again.
_SYNC_S: Final = 2.0
_POLL_S: Final = 1.0
_SWEEP_ROUNDS: Final = 60
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LOG_INTERVAL_S: Final = 60.0


class BegunPages:
    """Which pages of a claimed job are being read, and how often processes began each that did not come back.

    With the one that ends them innocent ones are begun: a page that was begun before is read alone.
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

    def begin(self, number: int) -> int:
        """Note that a page is begun; how often it was before. Raises OSError."""
        before = self.times(number)
        self._note({number: before + 1})
        return before

    def end(self, number: int) -> None:
        """What was begun came back. Raises OSError."""
        self._note({number: 0})

    def forget(self, *numbers: int) -> None:
        """These were given up in good order, to be begun again: the last time does not count. Raises OSError."""
        self._note({number: self.times(number) - 1 for number in numbers})

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

    job: Job
    reader: Reader
    page_s: float
    context: RequestContext
    gate: AccessGate | None
    wait: Callable[[], object]

    def __post_init__(self) -> None:
        self._about = self.job.about()
        self._options = unpack_options(self._about["options"])
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
        self.job.note_start()
        numbers: Sequence[int] = self._about["numbers"]
        done = self.job.log.count()
        if done == len(numbers):
            return
        with (
            self._opened() as document,
            self.reader.one_version(self._options, self.page_s, self.context) as lease,
        ):
            while done < len(numbers):
                self._read_some(document, numbers[done:], lease)
                done = self.job.log.count()

    @contextmanager
    def _opened(self) -> Iterator[Document]:
        """The document. Raises DeadlineExceeded where opening it is what ends the processes that do."""
        if self._begun.times(OPENING) >= MOST_TRIES:
            raise DeadlineExceeded(f"The document was begun to be opened {MOST_TRIES} times, and that never ended.")
        self._begun.begin(OPENING)
        with ExitStack() as stack:
            try:
                opening = self.reader.open_document(self.job.data(), math.inf, self.context)
                document = stack.enter_context(opening)
            finally:
                self._begun.end(OPENING)
            yield document

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
        if self.gate is None or self._about.get("key") is None:
            return self.context
        pages = self.gate.resume(self._about["key"])
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
    """A thread that reads what waits; `start` it when the reader is ready, and `stop` it before the reader is.

    A page may take `page_s`, its wait included. `is_leaving` says whether this process is to end, so that others should
    go on; `gate` counts the pages for the keys that the documents were left with.
    """

    jobs: JobStore
    reader: Reader
    page_s: float
    is_leaving: Callable[[], bool]
    gate: AccessGate | None = None

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._pause_s = 0.0
        self._quiet_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="documents", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave the job that is under way to others."""
        self._stopped.set()
        self.jobs.added.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def read_all(self) -> None:
        """Read what waits, until this process is to end."""
        for job in self.jobs.waiting():
            if self._is_stopping():
                return
            with suppress(FileNotFoundError), job.claim() as is_ours:
                if is_ours:
                    self._read(job)

    def _is_stopping(self) -> bool:
        return self._stopped.is_set() or self.is_leaving()

    def _run(self) -> None:
        rounds = 0
        # An earlier service may have left some.
        self.jobs.added.set()
        while not self._is_stopping():
            self.jobs.added.wait(_POLL_S)
            self.jobs.added.clear()
            rounds += 1
            try:
                with storing():
                    if rounds % _SWEEP_ROUNDS == 0:
                        self.jobs.sweep()
                    self.read_all()
                self._pause_s = 0.0
            except Exception as error:  # noqa: BLE001  a thread that ended would leave every later document unread
                self._pause(error)

    def _pause(self, error: Exception) -> None:
        """Try again later, and later each time; what is wrong with the disk is logged now and then, not each time."""
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            shown = loggable_error(error)
            cause = None if isinstance(error, StorageFull) else shown
            LOGGER.error("documents cannot be read; tried again later: %s", shown, exc_info=cause)
        self._stopped.wait(self._pause_s)

    def _read(self, job: Job) -> None:
        """Read what is left of a job; one that meets a full disk, also at its very end, is left to be gone on with."""
        if job.is_done():
            # Its reader died between the two.
            job.note_progress()
            return
        context = RequestContext("batch", lambda: self._is_stopping() or not job.is_there(), source="job")
        try:
            with storing():
                error = self._read_pages(job, context)
                if error is None:
                    job.finish("success")
                else:
                    job.finish("failure", str(error), error.code)
                self.jobs.note("done" if error is None else "failed")
        except StorageFull:
            job.release()
            raise
        except (ClientGone, Refused):
            return

    def _read_pages(self, job: Job, context: RequestContext) -> OcrsvcError | None:
        """Why the job has failed; None where it has not. Raises ClientGone, and Refused where it is gone on with."""
        try:
            with storing():
                JobReading(job, self.reader, self.page_s, context, self.gate, self._give_way).read()
                self._make_files(job, context)
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

    def _make_files(self, job: Job, context: RequestContext) -> None:
        """The formats that were asked for, and the adapter's answer; who fetches one that failed learns why."""

        def check() -> None:
            if context.is_gone():
                raise client_gone()

        begun = BegunPages(job)
        makers: list[tuple[str, Callable[[], object]]] = [
            (name, partial(make_result, self.jobs, job, name, check)) for name in job.about().get("formats", ())
        ]
        if has_answer(job):
            makers.append((ANSWER, partial(make_answer, self.jobs, job, check)))
        for place, (name, make) in enumerate(makers):
            number = OPENING - 1 - place
            if begun.times(number) >= MOST_TRIES:
                LOGGER.error("no file was made of job %s format=%s: whoever makes it ends", job.id, name)
                continue
            begun.begin(number)
            try:
                make()
            except ClientGone:
                begun.forget(number)
                raise
            except OcrsvcError as error:
                LOGGER.info("no file was made of job %s format=%s code=%s", job.id, name, error.code)
            begun.end(number)

    def _give_way(self) -> None:
        """Others come first."""
        self._stopped.wait(_POLL_S)
