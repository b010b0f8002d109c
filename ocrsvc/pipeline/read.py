"""Reads the images of a request: admit, decode, run the engine, restore coordinates, answer. Start reading here."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

from ocrsvc.engines.contract import Engine
from ocrsvc.errors import ClientGone, DeadlineExceeded, OcrsvcError
from ocrsvc.formats.document import PictureOf
from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.document import Document, DocumentPage
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.models.loaded_models import Lease
from ocrsvc.pipeline.answer_masking import AnswerMasking
from ocrsvc.pipeline.decode_job import DecodeJob, ReadRequest, make_read_request
from ocrsvc.pipeline.documents import Documents, FileRead, PageRead, find_own_page, numbered_pages, whole_page
from ocrsvc.pipeline.engine_lifecycle import EngineLifecycle, ModelsOpener
from ocrsvc.pipeline.page_decoder import PageDecoder
from ocrsvc.results import Image, OwnText, Page, Reading, ReadOptions, Timing
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, RequestContext, make_check
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

LOGGER: Final = logging.getLogger("ocrsvc.reader")
_PDFS_AT_ONCE = 2  # number of PDFs created at the same time, each in a child process
_MAKING_WAITING = 16
_JOB_AHEAD_BYTES: Final = 64 << 20  # while a job's pages use more memory than this, no further page of the job starts

# What to read: an image file, a page of a document, or the error of a file that could not be opened.
Source = bytes | DocumentPage | OcrsvcError
# A started page: queued or running; finished (from the cache, or from the document's own text); or failed.
Begun = DecodeJob | Reading | OcrsvcError
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Reader(EngineLifecycle):
    """Reads images with the models of a worker; thread-safe.

    `on_reading` is called with each result and its request's context, in the request's thread. `pdf_making` limits the
    requests that create PDFs at the same time, `file_making` those that create other result files of jobs; each keeps
    one core busy. For the other arguments see EngineLifecycle.
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
        """Read an image file or a page of an open document, with the leased model version or that of the options."""
        with self._request(options, limit_s, context, lease) as request:
            return self._finish(self._begin(request, data))

    def masked_text(self, text: str, context: RequestContext) -> str:
        """Mask a text file's content as its request wants. Raises as `AnswerMasking.masked_text`."""
        return self._masking.masked_text(text, context.mask)

    @contextmanager
    def one_version(self, options: ReadOptions, limit_s: float, context: RequestContext) -> Iterator[Lease]:
        """Lease one model version for all pages of a document inside the block. Raises as WorkerModels.lease."""
        with self._request(options, limit_s, context) as request:
            yield request.reading_lease

    def _request(
        self, options: ReadOptions, limit_s: float, context: RequestContext, lease: Lease | None = None
    ) -> ReadRequest:
        """What a request's pages share, such as the leased model; a context manager. Raises as WorkerModels.lease."""
        if context.choice is not None:
            options = context.choice.apply(options)
        request = make_read_request(options, limit_s, context)
        if lease is not None:
            return replace(request, lease=lease.again())
        with context.ledger.during("wait"):
            return replace(request, lease=self.worker_models.lease(options, request.deadline, request.check))

    def _begin(self, request: ReadRequest, data: Source) -> Begun:
        """Answer from the result cache if the page is there, else queue the page or use the document's own text."""
        if isinstance(data, OcrsvcError):
            raise data
        request.check()
        self._masking.check(request.mask)
        request.context.pages.take()
        page = data if isinstance(data, DocumentPage) else DocumentPage(Document(data, self._limits), 1)
        cache, context = self._result_cache, request.context
        is_cached = cache is not None and context.pages.may_cache and (cache.is_for_all or context.keeps_result)
        if cache is None or not is_cached or not self._is_open:
            return self._read_or_queue(page, request)
        began_s = time.monotonic()
        request.context.ledger.enter("decode")
        lease = request.reading_lease
        key = cache.key_of(page, request.options, lease.describe(), lease.version.digest)
        cached = cache.get(key)
        if cached is None:
            return self._read_or_queue(page, request, key)
        request.context.ledger.enter("answer")
        timing = Timing(0.0, 0.0, 0.0, time.monotonic() - began_s)
        return self._answer(self._masking.masked(cached, request), timing, request, from_cache=True)

    def _read_or_queue(self, page: DocumentPage, request: ReadRequest, key: bytes = b"") -> Begun:
        """Answer with the document's own text if that is enough, else queue the page for an engine."""
        began_s, own = time.monotonic(), find_own_page(page, request)
        if (whole := whole_page(own, page.number, request)) is None:
            return self._queue(page, request, key, None if own is None else own.text)
        if self._result_cache is not None and key:
            self._result_cache.put(key, whole)
        seconds = time.monotonic() - began_s
        return self._answer(self._masking.masked(whole, request), Timing(seconds, 0.0, 0.0, seconds), request)

    def _queue(self, page: DocumentPage, request: ReadRequest, key: bytes, own: OwnText | None) -> DecodeJob:
        """Queue a page: first reserve a place, then decode, so that a page that the queue refuses costs no decoding."""
        executor, ledger = self._running(), request.context.ledger
        ledger.enter("decode")
        job = DecodeJob(request, request.reading_lease.engine.traits, page.number, own, key)
        # Close the job however it ends: read, expired, or cancelled in the queue.
        job.add_done_callback(DecodeJob.close)  # type: ignore[arg-type]  # the future passed to it is the job itself
        try:
            executor.submit(job, lambda: self._decoder.open(page, job, executor.queue.waiting_bytes))
        except BaseException:
            job.cancel()
            raise
        ledger.enter("wait")
        return job

    def _finish(self, begun: Begun) -> Reading:
        """Wait until the engine has read the page, restore its coordinates, and return the result."""
        if isinstance(begun, OcrsvcError):
            raise begun
        if isinstance(begun, Reading):
            return begun
        assert self._executor is not None, "the page was queued"
        try:
            read = self._executor.wait(begun)
        except ClientGone:
            LOGGER.info("dropped: the client has disconnected")
            raise
        begun.context.ledger.note_page(begun.phases(read))
        begun.context.ledger.enter("answer")
        page, timing = begun.restore(read)
        if self._result_cache is not None and begun.key and page.fallback is None:
            self._result_cache.put(begun.key, page)
        return self._answer(self._masking.masked(page, begun.request), timing, begun.request)

    def _answer(self, page: Page, timing: Timing, request: ReadRequest, *, from_cache: bool = False) -> Reading:
        reading = Reading(page, request.reading_lease.describe(), timing, from_cache)
        request.context.pages.count()
        self._on_reading(reading, request.context)
        self._masking.log_text(page)
        return reading

    def read_many(
        self, datas: Iterable[bytes], options: ReadOptions, limit_s: float, context: RequestContext = DEFAULT_CONTEXT
    ) -> list[Reading | OcrsvcError]:
        """Read several images; returns a result or error for each, in order. Raises ClientGone, DeadlineExceeded."""
        with self._request(options, limit_s, context) as request:
            return self._outcomes(datas, request)

    def read_files(
        self,
        files: Sequence[bytes | OcrsvcError],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        max_pages: int | None = None,
        *,
        partial: bool = False,
    ) -> list[FileRead]:
        """Read the pages of several files, as `read_many` does; each page is drawn or decoded just before it is read.

        `files` are image files and documents; an error in place of a file becomes its result. `ranges` selects the
        pages of each file. If a file has more than `max_pages` pages, only the first ones are read; without
        `max_pages`, a file with more pages than the settings allow is an error. With `partial`, pages that are not read
        by the deadline get an error, and the other pages their result. Raises the errors of `read_many`.
        """
        chosen: list[tuple[str, int, Sequence[int]]] = []
        with (
            self._request(options, limit_s, context) as request,
            closing(self._documents.pages(files, ranges, max_pages, request, chosen)) as pages,
        ):
            outcomes = iter(self._outcomes(pages, request, partial=partial))
        return [FileRead(kind, total, tuple(zip(numbers, outcomes, strict=False))) for kind, total, numbers in chosen]

    def read_files_by_page(
        self,
        files: Sequence[bytes | OcrsvcError],
        options: ReadOptions,
        limit_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        max_pages: int | None = None,
    ) -> Generator[PageRead, None, None]:
        """Read the pages of files, and yield each in order when it is read; `close` the generator to cancel the rest.

        Arguments as for `read_files`. A page that misses the deadline yields DeadlineExceeded. Raises ClientGone.
        """
        chosen: list[tuple[str, int, Sequence[int]]] = []
        with (
            self._request(options, limit_s, context) as request,
            closing(self._documents.pages(files, ranges, max_pages, request, chosen)) as pages,
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
        """Read the pages of a job, one more at a time than there are engine threads; `close` the generator to cancel.

        The next page is taken from `pages` only when it starts, and no page starts while the running ones need more
        than 64 MiB. Each page has `page_s` seconds, including its wait. `begin_page` returns the context of a page just
        before the page starts; an error that it raises becomes the page's result. `lease` comes from `one_version`,
        whose block must still be open. Raises ClientGone if the job was deleted.
        """

        def begin(page: Source) -> Begun:
            assert isinstance(page, DocumentPage)
            request = make_read_request(options, page_s, begin_page(page))
            return self._begin(replace(request, lease=lease), page)

        yield from self._in_order(pages, begin, self._plan.engine_threads + 1, _JOB_AHEAD_BYTES)

    def _outcomes(
        self, pages: Iterable[Source], request: ReadRequest, *, partial: bool = False
    ) -> list[Reading | OcrsvcError]:
        """Collect all results. Raises DeadlineExceeded, or with `partial` keeps it as the result of unread pages."""
        collected: list[Reading | OcrsvcError] = []
        with closing(self._each_outcome(pages, request)) as outcomes:
            for outcome in outcomes:
                if isinstance(outcome, DeadlineExceeded) and not partial:
                    raise outcome
                collected.append(outcome)
        return collected

    def _each_outcome(
        self, pages: Iterable[Source], request: ReadRequest
    ) -> Generator[Reading | OcrsvcError, None, None]:
        """Yield the result or error of each page, in order.

        A request reads at most one page per engine thread at a time, and starts no page while its running pages need
        more than a quarter of the memory for requests.
        """
        max_bytes = request.context.share.budget_bytes // 4
        yield from self._in_order(pages, partial(self._begin, request), self._plan.engine_threads, max_bytes)

    def _in_order(
        self, pages: Iterable[Source], begin: Callable[[Source], Begun], max_pages: int, max_bytes: int
    ) -> Generator[Reading | OcrsvcError, None, None]:
        """Yield results in order, while at most `max_pages` and `max_bytes` are in progress; ClientGone cancels all."""
        begun: deque[Begun] = deque()
        try:
            for page in pages:
                while len(begun) >= max_pages or _held_bytes(begun) > max_bytes:
                    yield _or_error(self._finish, begun.popleft())
                begun.append(_or_error(begin, page))
            while begun:
                yield _or_error(self._finish, begun.popleft())
        finally:
            for entry in begun:
                if isinstance(entry, DecodeJob) and self._executor is not None:
                    self._executor.queue.discard(entry)

    def open_document(
        self, file: bytes, limit_s: float, context: RequestContext = DEFAULT_CONTEXT
    ) -> AbstractContextManager[Document]:
        """Open a file as a document inside a block, so that `read` can read its pages. Raises as `Documents.open`."""
        return self._documents.open(file, make_read_request(ReadOptions(), limit_s, context))

    @contextmanager
    def decoded_image(
        self,
        data: bytes,
        number: int | None = None,
        limit_s: float = math.inf,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Iterator[Image]:
        """Decode a page (default: the first) in colour, for adapters that draw on it. Raises the errors of `read`."""
        executor = self._running()
        # Waiting for an engine needs a deadline, even if `limit_s` is infinite.
        with (
            self._request(ReadOptions(), min(limit_s, self._settings.deadline_s), context) as request,
            closing(DecodeJob(request, request.reading_lease.engine.traits, image_only=True)) as job,
        ):
            with self._documents.open(data, request) as document:
                image = self._decoder.decode(DocumentPage(document, number or 1), job, executor)
            yield image

    def picture_maker(self, file: bytes, deadline: float, context: RequestContext) -> PictureOf:
        """Make a function that draws a page as an image, masked parts in black, by the deadline. Raises OcrsvcError."""
        check = make_check(context, deadline, time.monotonic)

        def picture_of(page: Page) -> bytes:
            bare = replace(page, lines=())
            left_s = max(0.0, deadline - time.monotonic())
            with (
                self.decoded_image(file, page.number, left_s, context) as image,
                context.share.holding(drawing_bytes(image.pixels, bare)),
            ):
                return draw_page(image.pixels, bare, check)

        return picture_of


def _held_bytes(begun: Iterable[Begun]) -> int:
    return sum(entry.max_bytes for entry in begun if isinstance(entry, DecodeJob))


def _or_error(step: Callable[[*Ts], T], *args: *Ts) -> T | OcrsvcError:
    try:
        return step(*args)
    except ClientGone:
        raise
    except OcrsvcError as error:
        return error.without_frames()
