"""Reads the images of a request: admit, decode, run the engine, restore the page, answer. Read this file first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.errors import ClientGone, DeadlineExceeded, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.answer_masking import AnswerMasking
from ocrsvc.pipeline.decode_job import DecodeJob, phases_of
from ocrsvc.pipeline.documents import Documents, FileRead, PageRead, find_own_page, numbered_pages, whole_page
from ocrsvc.pipeline.engine_lifecycle import EngineLifecycle, ModelsOpener
from ocrsvc.pipeline.page_decoder import PageDecoder
from ocrsvc.pipeline.read_ahead import Begun, Source, read_ahead
from ocrsvc.pipeline.read_context import ReadRequest, make_read_request
from ocrsvc.readings import Reading, Timing
from ocrsvc.records import Image, OwnText, Page, ReadOptions
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Item, RequestContext
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOGGER: Final = logging.getLogger("ocrsvc.reader")
# Each that is made has a process beside this one, and waits for its processor.
_PDFS_AT_ONCE, _MAKING_WAITING = 2, 16
# Of a document that nobody waits for, beside one page.
_AHEAD_BYTES: Final = 64 << 20


class Reader(EngineLifecycle):
    """Reads images with the models of a worker; for any thread.

    Args:
        settings, plan, engine_opener, models_opener: As for EngineLifecycle.
        on_reading: Called with each reading and the context of its request, in the request's thread.

    Attributes:
        pdf_making: Taken by each request while a PDF is made of what was read, whichever API it came by.
        file_making: The same for other files of jobs' results, each of which keeps a core busy.
    """

    def __init__(
        self,
        settings: Settings,
        plan: ThreadPlan,
        engine_opener: Callable[[], Engine] | None = None,
        on_reading: Callable[[Reading, RequestContext], object] = lambda _reading, _context: None,
        models_opener: ModelsOpener | None = None,
    ) -> None:
        super().__init__(settings, plan, engine_opener, models_opener)
        self._on_reading = on_reading
        self._limits = PixelLimits(settings.max_pixels, settings.format_max_pixels)
        self._documents = Documents(settings, self._limits, plan.engine_threads + 1)
        self._decoder = PageDecoder(self._limits, plan.engine_threads)
        self._masking = AnswerMasking(settings)
        self.pdf_making = Limiter(_PDFS_AT_ONCE, _MAKING_WAITING, _MAKING_WAITING // 2)
        self.file_making = Limiter(1, _MAKING_WAITING, _MAKING_WAITING // 2)

    def read(
        self,
        data: bytes | DocumentPage,
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        lease: Lease | None = None,
    ) -> Reading:
        """Read one image file, or a page of an open document.

        Args:
            limit_s: Seconds from now within which the answer is worth having.
            lease: On the version that reads, from `one_version`; None leaves it to the options.

        Raises:
            OcrsvcError: Any of those that errors.py lists for a step of a request.
        """
        with self._request(options, limit_s, context, lease) as request:
            return self._finish(self._begin(request, data))

    @contextmanager
    def one_version(self, options: ReadOptions, limit_s: float, context: RequestContext) -> Iterator[Lease]:
        """For a document whose pages are read one by one: the version that reads them all, as long as the block runs.

        Raises as WorkerModels.lease.
        """
        with self._request(options, limit_s, context) as request:
            yield request.reading_lease

    def _request(
        self, options: ReadOptions, limit_s: float, context: RequestContext, lease: Lease | None = None
    ) -> ReadRequest:
        """What all pages of a request share, within a `with`. Raises as WorkerModels.lease."""
        if context.choice is not None:
            options = context.choice.apply(options)
        request = make_read_request(options, limit_s, context)
        if lease is not None:
            return replace(request, lease=lease.again())
        with context.ledger.during("wait"):
            return replace(request, lease=self.worker_models.lease(options, request.deadline, request.check))

    def _begin(self, request: ReadRequest, data: Source) -> Begun:
        """Answer with what was read of the same page before, or queue it."""
        if isinstance(data, OcrsvcError):
            raise data
        request.check()
        self._masking.check(request)
        request.context.pages.take()
        page = data if isinstance(data, DocumentPage) else DocumentPage(Document(data, self._limits), 1)
        if self._result_cache is None or not self._is_open or not request.context.pages.may_cache:
            return self._read_or_queue(page, request)
        began_s = time.monotonic()
        request.context.ledger.enter("decode")
        lease = request.reading_lease
        key = self._result_cache.key_of(page, request.options, lease.describe(), lease.version.digest)
        found = self._result_cache.get(key)
        if found is None:
            return self._read_or_queue(page, request, key)
        request.context.ledger.enter("answer")
        timing = Timing(0.0, 0.0, 0.0, time.monotonic() - began_s)
        return self._answer(self._masking.masked(found, request), timing, request, from_cache=True)

    def _read_or_queue(self, page: DocumentPage, request: ReadRequest, key: bytes = b"") -> Begun:
        """Answer with a page's own text where that is all there is; no engine has to do with it then."""
        began_s, own = time.monotonic(), find_own_page(page, request)
        if (found := whole_page(own, page.number, request)) is None:
            return self._queue(page, request, key, None if own is None else own.text)
        if self._result_cache is not None and key:
            self._result_cache.put(key, found)
        seconds = time.monotonic() - began_s
        return self._answer(self._masking.masked(found, request), Timing(seconds, 0.0, 0.0, seconds), request)

    def _queue(
        self, page: DocumentPage, request: ReadRequest, key: bytes = b"", own: OwnText | None = None
    ) -> Item[DecodeJob, Page]:
        """Admit first, then decode: a request that cannot be served costs no decoding."""
        executor, ledger = self._running(), request.context.ledger
        ledger.enter("decode")
        job = DecodeJob(request, request.reading_lease.engine.traits, page.number, own, key)
        try:
            with executor.admit(request.context) as job.place:
                self._decoder.open(page, job, executor.queue.waiting_bytes)
                item = job.place.submit(job, request.deadline, job.held.held_bytes or page.document.file_bytes)
        except BaseException:
            job.close()
            raise
        # Whatever becomes of it: read, too late, or given up before the engine came to it.
        item.future.add_done_callback(lambda _: job.close())
        ledger.enter("wait")
        return item

    def _finish(self, begun: Begun) -> Reading:
        """Wait for the engine's page, put it back into the frame of its image, and answer."""
        if isinstance(begun, OcrsvcError):
            raise begun
        if isinstance(begun, Reading):
            return begun
        job, ledger = begun.work, begun.context.ledger
        assert job.place is not None, "it is queued"
        try:
            served = job.place.wait(begun)
        except ClientGone:
            LOGGER.info("dropped: its client has gone")
            raise
        ledger.note_page(phases_of(served, begun.queued_at, decoded_ahead=job.is_ahead))
        ledger.enter("answer")
        page, timing = job.restore(served)
        if self._result_cache is not None and job.key:
            self._result_cache.put(job.key, page)
        return self._answer(self._masking.masked(page, job.request), timing, job.request)

    def _answer(self, page: Page, timing: Timing, request: ReadRequest, *, from_cache: bool = False) -> Reading:
        reading = Reading(page, request.reading_lease.describe(), timing, from_cache)
        request.context.pages.count()
        self._on_reading(reading, request.context)
        self._masking.log_text(page)
        return reading

    def read_many(
        self, datas: Iterable[bytes], options: ReadOptions, limit_s: float, context: RequestContext = DEFAULT_CONTEXT
    ) -> list[Reading | OcrsvcError]:
        """Read several images, each answered apart, in the same order; all share one deadline.

        Raises ClientGone where nobody waits any more, and DeadlineExceeded where some were not read in time.
        """
        with self._request(options, limit_s, context) as request:
            return self._outcomes(datas, request)

    def read_files(
        self,
        files: Sequence[bytes | OcrsvcError],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        most: int | None = None,
        *,
        partial: bool = False,
    ) -> list[FileRead]:
        """Read the pages of several files, as `read_many`; a page is drawn or decoded when it is its turn.

        Args:
            files: Image files and documents; in place of one that is none, its error, which is passed on.
            ranges: The pages wanted of each file.
            most: Of a file with more, read the first so many; None makes an error of more than the settings allow.
            partial: At the deadline, give the pages that are read, and the error in place of the others.

        Raises:
            ClientGone, DeadlineExceeded: As `read_many`; the latter not with `partial`.
        """
        chosen: list[tuple[str, int, Sequence[int]]] = []
        with (
            self._request(options, limit_s, context) as request,
            closing(self._documents.pages(files, ranges, most, request, chosen)) as pages,
        ):
            outcomes = iter(self._outcomes(pages, request, partial=partial))
        return [FileRead(kind, total, tuple(zip(numbers, outcomes, strict=False))) for kind, total, numbers in chosen]

    def read_by_page(
        self,
        file: bytes,
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        most: int | None = None,
    ) -> Generator[PageRead, None, None]:
        """Read the pages of a file, and yield each in order as soon as it is read; `close` it to give up the rest.

        Arguments as for `read_files`; a page that is too late is an outcome. Raises ClientGone.
        """
        yield from self.read_files_by_page([file], options, limit_s, context, ranges, most)

    def read_files_by_page(
        self,
        files: Sequence[bytes | OcrsvcError],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        most: int | None = None,
    ) -> Generator[PageRead, None, None]:
        """As `read_by_page`, of several files one after the other."""
        chosen: list[tuple[str, int, Sequence[int]]] = []
        with (
            self._request(options, limit_s, context) as request,
            closing(self._documents.pages(files, ranges, most, request, chosen)) as pages,
            closing(self._each_outcome(pages, request)) as outcomes,
        ):
            places = numbered_pages(chosen)
            for outcome in outcomes:
                file, number = next(places)
                _, total, numbers = chosen[file]
                yield PageRead(number, total, len(numbers), outcome, file + 1)

    def read_ahead(
        self,
        pages: Iterable[DocumentPage],
        options: ReadOptions,
        page_s: float,
        begin_page: Callable[[DocumentPage], RequestContext],
        lease: Lease,
    ) -> Generator[Reading | OcrsvcError, None, None]:
        """Read pages of a document that nobody waits for, one more on its way than engine threads; `close` it early.

        Args:
            pages: Taken one by one, when they are begun, and none while those before it need more than 64 MiB.
            options, page_s: How they are read, and the seconds that each may take, its wait included.
            begin_page: Gives the context of each page, just before it is begun; what it raises is what came of it.
            lease: From `one_version`, which is to stay open.

        Raises:
            ClientGone: Nobody wants them any more.
        """

        def begin(page: Source) -> Begun:
            assert isinstance(page, DocumentPage)
            request = make_read_request(options, page_s, begin_page(page))
            return self._begin(replace(request, lease=lease), page)

        yield from read_ahead(pages, begin, self._finish, places=self._plan.engine_threads + 1, most_bytes=_AHEAD_BYTES)

    def _outcomes(
        self, pages: Iterable[Source], request: ReadRequest, *, partial: bool = False
    ) -> list[Reading | OcrsvcError]:
        """All of `_each_outcome`.

        Raises DeadlineExceeded, unless `partial`: most formats have no place for a page that is missing, and a client
        that reads results alone would take the others for the whole document.
        """
        found: list[Reading | OcrsvcError] = []
        with closing(self._each_outcome(pages, request)) as outcomes:
            for outcome in outcomes:
                if isinstance(outcome, DeadlineExceeded) and not partial:
                    raise outcome
                found.append(outcome)
        return found

    def _each_outcome(
        self, pages: Iterable[Source], request: ReadRequest
    ) -> Generator[Reading | OcrsvcError, None, None]:
        """The reading or error of each page, in order.

        One request holds no more places than there are engine threads, and begins no page while those before it need a
        quarter of all memory for requests.
        """
        begin, most_bytes = partial(self._begin, request), request.context.share.budget_bytes // 4
        yield from read_ahead(pages, begin, self._finish, places=self._plan.engine_threads, most_bytes=most_bytes)

    def open_document(
        self, file: bytes, limit_s: float, context: RequestContext = DEFAULT_CONTEXT
    ) -> AbstractContextManager[Document]:
        """A file as a document whose pages `read` takes, within a block. Raises as opening it does."""
        return self._documents.open(file, make_read_request(ReadOptions(), limit_s, context))

    @contextmanager
    def decoded_image(
        self,
        data: bytes,
        number: int | None = None,
        limit_s: float = math.inf,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Iterator[Image]:
        """The image of a page of a file, by default the first, in colour, in its block; for adapters that draw on it.

        Under the same limits as `read`, whose errors it raises.
        """
        executor = self._running()
        # Whoever waits for an engine needs an end to it.
        with (
            self._request(ReadOptions(), min(limit_s, self._settings.deadline_s), context) as request,
            closing(DecodeJob(request, request.reading_lease.engine.traits, image_only=True)) as job,
        ):
            with self._documents.open(data, request) as document:
                image = self._decoder.decode(DocumentPage(document, number or 1), job, executor)
            yield image
