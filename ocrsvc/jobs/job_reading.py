"""Reads the pages of one job, a few of them ahead, and writes each where it is kept, in order."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from ocrsvc.access.gate import AccessGate
from ocrsvc.access.request_pages import RequestPages
from ocrsvc.errors import ClientGone, DeadlineExceeded, KeyRefused, OcrsvcError, QuotaExceeded, Refused
from ocrsvc.formats.page_serialization import pack_page
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.jobs.begun_pages import MOST_TRIES, OPENING, BegunPages
from ocrsvc.jobs.job import ENGINE, Job
from ocrsvc.jobs.packed_options import unpack_options
from ocrsvc.pipeline.read import Reader
from ocrsvc.readings import Reading
from ocrsvc.serving.work_queue import NeverStarted, RequestContext, client_gone

if TYPE_CHECKING:
    # Loaded where there is a model repository alone.
    from ocrsvc.model_serving.loaded_models import Lease

# After a loss of power the pages of so many seconds may have to be read again.
_SYNC_S: Final = 2.0


class JobReading:
    """One job that this process has claimed, while it is read; used by one thread.

    Args:
        job: The job.
        reader: Reads its pages.
        page_s: Seconds that a page may take, its wait included.
        context: Its priority, and whether it is still wanted, here.
        gate: Counts the pages for the key of who left the document; None where there are no keys.
        wait: Called while other requests come first.
    """

    def __init__(
        self,
        job: Job,
        reader: Reader,
        page_s: float,
        context: RequestContext,
        gate: AccessGate | None,
        wait: Callable[[], object],
    ) -> None:
        self._job, self._reader, self._page_s, self._context = job, reader, page_s, context
        self._gate, self._wait = gate, wait
        self._about = job.about()
        self._options = unpack_options(self._about["options"])
        self._begun = BegunPages(job)
        # Numbers of the pages on their way, with where each is counted.
        self._on_way: deque[tuple[int, RequestPages | None]] = deque()
        self._synced_s = time.monotonic()
        self._knows_engine = False

    def read(self) -> None:
        """Read what is left of it.

        Raises:
            ClientGone: This process ends, or the job was deleted.
            KeyRefused: The key of who left the document is not valid any more.
            QuotaExceeded: It has no pages left.
            OcrsvcError: The document cannot be opened, or no model reads it.
            OSError: It cannot be written what was read.
        """
        self._job.note_start()
        numbers: Sequence[int] = self._about["numbers"]
        done = self._job.count_pages()
        if done == len(numbers):
            return
        with (
            self._opened() as document,
            self._reader.one_version(self._options, self._page_s, self._context) as lease,
        ):
            while done < len(numbers):
                self._read_some(document, numbers[done:], lease)
                done = self._job.count_pages()

    @contextmanager
    def _opened(self) -> Iterator[Document]:
        """The document. Raises DeadlineExceeded where opening it is what ends the processes that do."""
        if self._begun.times(OPENING) >= MOST_TRIES:
            raise DeadlineExceeded(f"The document was begun to be opened {MOST_TRIES} times, and that never ended.")
        self._begun.begin(OPENING)
        with ExitStack() as stack:
            try:
                opening = self._reader.open_document(self._job.data(), math.inf, self._context)
                document = stack.enter_context(opening)
            finally:
                self._begun.settle(OPENING)
            yield document

    def _read_some(self, document: Document, numbers: Sequence[int], lease: Lease | None) -> None:
        """The next of these pages, as many as there are until one has to be tried again."""
        if self._begun.times(numbers[0]) >= MOST_TRIES:
            why = f"The page was begun {MOST_TRIES} times and never finished, and is left out."
            self._write(numbers[0], {"error": why, "code": DeadlineExceeded.code})
            return
        # With what others died of, nothing else is begun.
        some = list(takewhile(lambda number: not self._begun.times(number), numbers)) or [numbers[0]]
        pages = (DocumentPage(document, number) for number in some)
        reading = self._reader.read_ahead(pages, self._options, self._page_s, self._begin, lease)
        try:
            with closing(reading) as outcomes:
                for outcome in outcomes:
                    if not self._take(outcome):
                        return
        finally:
            self._give_up()

    def _begin(self, page: DocumentPage) -> RequestContext:
        """A page is about to be begun, as part of this. Raises ClientGone, KeyRefused."""
        if self._context.is_gone():
            raise client_gone()
        self._begun.begin(page.number)
        self._on_way.append((page.number, None))
        if self._gate is None or self._about.get("key") is None:
            return self._context
        pages = RequestPages(self._gate.resume(self._about["key"]))
        self._on_way[-1] = (page.number, pages)
        return replace(self._context, pages=pages)

    def _take(self, outcome: Reading | OcrsvcError) -> bool:
        """Write what became of the page that was begun first; False when it is to be tried again.

        Raises:
            KeyRefused, QuotaExceeded: As `read` does.
        """
        number, pages = self._on_way[0]
        if isinstance(outcome, KeyRefused | QuotaExceeded | ClientGone):
            raise outcome
        if isinstance(outcome, Refused | NeverStarted):
            self._give_up()
            self._wait()
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
            self._job.put(ENGINE, asdict(outcome.engine))
            self._knows_engine = True
        return {"page": pack_page(outcome.page), "took_s": outcome.timing.total_s, "at_s": time.time()}

    def _write(self, number: int, row: dict[str, object]) -> None:
        self._job.add_page({"number": number, **row})
        self._begun.end(number)
        if self._job.is_durable and time.monotonic() - self._synced_s >= _SYNC_S:
            self._job.log.sync()
            self._synced_s = time.monotonic()

    def _end_first(self) -> None:
        _, pages = self._on_way.popleft()
        if pages is not None:
            pages.release()

    def _give_up(self) -> None:
        """Those on their way are begun again later, and it is not their fault."""
        if not self._on_way:
            return
        numbers = [number for number, _ in self._on_way]
        while self._on_way:
            self._end_first()
        if self._job.is_there():
            self._begun.forget(*numbers)
