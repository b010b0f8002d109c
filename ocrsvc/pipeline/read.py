"""Reads the images of a request: admit, decode, run the engine, restore the page, answer. Read this file first."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from ocrsvc.engines.contract import Engine
from ocrsvc.engines.opening import open_engine
from ocrsvc.errors import ClientGone, NotReady, OcrsvcError, QueueFull
from ocrsvc.imaging.decode import PixelLimits, open_encoded_image, open_without_pillow
from ocrsvc.imaging.document import Document, DocumentPage, chosen_pages, is_pdf, open_document
from ocrsvc.imaging.encoded_image import EncodedImage
from ocrsvc.imaging.geometry import restore_page
from ocrsvc.imaging.page_ranges import ALL, Ranges
from ocrsvc.pipeline.decode_job import AHEAD_BYTES, DecodeJob, DecodingHandle
from ocrsvc.pipeline.result_cache import ResultCache, key_of, open_result_cache
from ocrsvc.records import EngineInfo, Image, Page, Reading, ReadOptions, Timing
from ocrsvc.serving.executor import Executor, QueuePlace
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.work_queue import (
    DEFAULT_CONTEXT,
    GONE_S,
    Item,
    Priority,
    RequestContext,
    Served,
    client_gone,
    deadline_passed,
    make_check,
)
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import give_back
from ocrsvc.system.child_process import Check
from ocrsvc.system.thread_plan import ThreadPlan

LOGGER: Final = logging.getLogger("ocrsvc.reader")

Source = bytes | DocumentPage | OcrsvcError
"""An image file, a page of a document, or why there is neither."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """What was read of one file.

    Attributes:
        kind: For people: PDF, TIFF or image.
        total: Pages that it has; 1 when it could not be opened.
        pages: Those that were asked for, in order; each reading's page has its number in the file.
    """

    kind: str
    total: int
    pages: tuple[tuple[int, Reading | OcrsvcError], ...]

    @property
    def readings(self) -> list[Reading]:
        """Of the pages that were read."""
        return [outcome for _, outcome in self.pages if isinstance(outcome, Reading)]

    @property
    def errors(self) -> list[tuple[int, OcrsvcError]]:
        """Of the pages that were not, with their numbers."""
        return [(number, outcome) for number, outcome in self.pages if isinstance(outcome, OcrsvcError)]


@dataclass(frozen=True, slots=True)
class _Pending:
    """One image in the queue: what is needed to wait for it and to put its page back into the frame of the image.

    Attributes:
        most_bytes: What its pixels will hold at most.
    """

    place: QueuePlace[DecodeJob, Page]
    item: Item[DecodeJob, Page]
    ahead: bool
    admitted: float
    key: bytes | None
    most_bytes: int


class Reader:
    """Reads images with one engine. Made cheaply; `start` loads the models, in the process that will read.

    Args:
        settings: The effective settings.
        plan: How many engine threads this process runs.
        engine_opener: Opens the engine; the default is the one that the settings name.
        clock: Monotonic seconds.
        on_reading: Called with each reading, in the thread of its request.
    """

    def __init__(
        self,
        settings: Settings,
        plan: ThreadPlan,
        engine_opener: Callable[[], Engine] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_reading: Callable[[Reading], object] = bool,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._open_engine = engine_opener or (lambda: open_engine(settings, plan))
        self._clock = clock
        self._on_reading = on_reading
        self._limits = PixelLimits(settings.max_pixels, settings.format_max_pixels)
        # More decoders than cores gain nothing.
        self._decode_permits = threading.Semaphore(plan.engine_threads + 1)
        # Half of the cores at most decode large pages; the others are for what is soon done.
        self._large_permits = threading.Semaphore(max(1, plan.engine_threads // 2))
        self._pdf_limiter = Limiter(plan.engine_threads + 1, settings.queue_size // 2)
        self._result_cache: ResultCache | None = None
        self._engine: Engine | None = None
        self._executor: Executor[DecodeJob, Page] | None = None
        self.ready = False

    def start(self) -> None:
        """Load the engine and warm every thread's handle; returns when the first request would be served at full speed.

        Raises:
            EngineUnavailable: The engine cannot be opened here.
        """
        self._result_cache = open_result_cache(self._settings)
        engine = self._open_engine()
        self._executor = Executor(
            lambda: DecodingHandle(engine.open_handle()),
            threads=self._plan.engine_threads,
            places=self._settings.queue_size,
            batch=engine.traits.best_batch,
            serial_open=engine.traits.serial_open,
            on_idle=give_back,
            clock=self._clock,
        )
        self._engine = engine
        self._executor.start()
        self.ready = True

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued (at most `timeout_s`), then close the engine. Safe to call when never started."""
        self.ready = False
        if self._executor is not None and self._executor.stop(timeout_s) and self._engine is not None:
            self._engine.close()
        if self._result_cache is not None:
            self._result_cache.close()

    def waiting(self) -> int:
        """Images admitted that no engine thread has taken yet."""
        return self._executor.waiting() if self._executor is not None else 0

    def waiting_bytes(self) -> int:
        """Bytes that the images hold that no engine thread has taken yet."""
        return self._executor.waiting_bytes() if self._executor is not None else 0

    @property
    def engine_threads(self) -> int:
        """Threads that run the engine."""
        return self._plan.engine_threads

    def stuck_threads(self) -> int:
        """Engine threads that still work on what should have been answered a while ago."""
        return self._executor.stuck_threads() if self._executor is not None else 0

    def describe(self) -> EngineInfo:
        """Which engine reads here. Raises NotReady before `start`."""
        if self._engine is None:
            raise NotReady("The engine of this worker is not loaded yet.", "Send the request again in a moment.", 2)
        return self._engine.describe()

    @contextmanager
    def decoded_image(
        self,
        data: bytes,
        number: int | None = None,
        limit_s: float = math.inf,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Iterator[Image]:
        """The image itself, in colour, under the same limits as `read`, in its block; for adapters that draw on it.

        Args:
            data: A file.
            number: Of the page in it, from 1; None is what `read` reads.
            limit_s: Seconds within which it is worth having.
            context: Whether anybody still waits for it.

        Raises:
            OcrsvcError: As for reading it.
        """
        # Whoever waits for an engine needs an end to it.
        deadline = self._clock() + min(limit_s, self._settings.deadline_s)
        check = make_check(context, deadline, self._clock)
        job = DecodeJob(ReadOptions(), deadline, gray=False, check=check, held=context.share.part())
        try:
            if number is None:
                yield self._decode(data, job, context)
                return
            with self._opened(data, self._checking(deadline, context), context) as document:
                image = self._decode(DocumentPage(document, number), job, context)
            yield image
        finally:
            job.release()

    def _decode(self, data: bytes | DocumentPage, job: DecodeJob, context: RequestContext) -> Image:
        with self._decode_permit_for(data, job.deadline, context):
            job.source = self._open(data, job, context)
            if not job.is_decoded_by_engine and not job.is_large:
                return job.prepare().image
        if job.is_decoded_by_engine:
            return self._decode_by_engine(job, context)
        self._take_large_permit(job, context)
        return job.prepare().image

    def _decode_by_engine(self, job: DecodeJob, context: RequestContext) -> Image:
        """The image, decoded by the engine."""
        job.image_only = True
        with self._running().admit(context) as place:
            item = place.submit(job, job.deadline, job.pixel_bytes)
        place.wait(item)
        assert job.image is not None, "an engine that decodes gives what is asked for, or an error"
        job.held.take(max(0, job.image.pixels.nbytes - job.held.held_bytes))
        return job.image

    @property
    def _engine_decodes(self) -> bool:
        """Whether the engine decodes image files by itself, so that a decoder that crashes is not in this process."""
        return self._engine is not None and self._engine.traits.decodes

    def check_capacity(self, priority: Priority) -> None:
        """Raises QueueFull or NotReady when a read would be refused now; asked before a body is received."""
        self._running().check_capacity(priority)

    def read(
        self, data: bytes, options: ReadOptions, deadline_s: float, context: RequestContext = DEFAULT_CONTEXT
    ) -> Reading:
        """Read one image.

        Args:
            data: The bytes of an image file.
            options: What the request asks for.
            deadline_s: Seconds from now within which the answer is worth having.
            context: Its priority, and whether anybody still waits for it.

        Raises:
            OcrsvcError: Any of those that errors.py lists for a step of a request.
        """
        deadline = self._clock() + deadline_s
        return self._find_cached(data, options) or self._wait_for_reading(
            self._submit(data, options, deadline, context)
        )

    def read_files(
        self,
        files: Sequence[bytes | OcrsvcError],
        options: ReadOptions,
        deadline_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
        ranges: Ranges = ALL,
        most: int | None = None,
    ) -> list[FileRead]:
        """Read the pages of several files, each answered apart; all share one deadline.

        Pages are drawn or decoded when it is their turn, so that never more than a few of them are in memory.

        Args:
            files: Image files and documents; in place of one that is none, its error, which is passed on.
            options, deadline_s, context: As for `read`.
            ranges: The pages wanted of each file.
            most: Of a file with more, read the first so many; None makes an error of more than the settings allow.

        Raises:
            ClientGone: Nobody waits any more; what is still queued is dropped.
        """
        found: list[tuple[str, int, Sequence[int]]] = []
        with closing(self._document_pages(files, ranges, most, self._clock() + deadline_s, context, found)) as pages:
            outcomes = iter(self.read_many(pages, options, deadline_s, context))
        return [
            FileRead(kind, total, tuple((number, _numbered(next(outcomes), number)) for number in numbers))
            for kind, total, numbers in found
        ]

    def count_pages(self, file: bytes, deadline_s: float, context: RequestContext = DEFAULT_CONTEXT) -> int:
        """How many pages a file has. Raises as opening it does, DeadlineExceeded and ClientGone included."""
        with self._opened(file, self._checking(self._clock() + deadline_s, context), context) as document:
            return document.count

    def read_in_turn(
        self, file: bytes, numbers: Iterable[int], options: ReadOptions, page_s: float, context: RequestContext
    ) -> Generator[tuple[int, Reading | OcrsvcError], None, None]:
        """Read pages of one file one after the other, each when the one before was taken; `close` it.

        Args:
            file: An image file or a document.
            numbers: Of the pages, from 1; the same one may come again.
            options: As for `read`.
            page_s: Seconds that each page may take, its wait included.
            context: As for `read`. Who does not wait any more finds ClientGone in place of the page; where the time is
                over before the engine comes to it, that is QueueFull.

        Raises:
            OcrsvcError: The file cannot be opened.
        """

        def check() -> None:
            if context.is_gone():
                raise client_gone()

        with self._opened(file, check, context) as document:
            for number in numbers:
                try:
                    begun = self._submit_or_error(
                        DocumentPage(document, number), options, self._clock() + page_s, context
                    )
                    outcome = self._reading_or_error(begun)
                    if isinstance(begun, _Pending) and begun.item.future.cancelled():
                        outcome = QueueFull("Others came first, and the time for this page is over.", "Read it again.")
                except ClientGone as gone:
                    outcome = gone
                yield number, _numbered(outcome, number)

    def _document_pages(
        self,
        files: Sequence[bytes | OcrsvcError],
        ranges: Ranges,
        most: int | None,
        deadline: float,
        context: RequestContext,
        found: list[tuple[str, int, Sequence[int]]],
    ) -> Generator[Source, None, None]:
        """The pages of all files, one file open at a time; each file's kind, count and numbers go into `found`."""
        check = self._checking(deadline, context)
        for file in files:
            kind, total, numbers = "image", 1, [1]
            try:
                if isinstance(file, OcrsvcError):
                    raise file
                with self._opened(file, check, context) as document:
                    kind, total = document.kind, document.count
                    numbers = list(self._choose(document, ranges, most))
                    found.append((kind, total, numbers))
                    for number in numbers:
                        yield DocumentPage(document, number)
            except ClientGone:
                raise
            except OcrsvcError as error:
                found.append((kind, total, [1]))
                yield error

    @contextmanager
    def _opened(self, file: bytes, check: Check, context: RequestContext) -> Iterator[Document]:
        """The file as a document. A PDF has a process of its own for as long as it is open, so that not all may be."""
        # Small files are open before anybody asks whether they are still wanted, and a request may carry a thousand.
        check()
        with self._pdf_limiter.take(check) if is_pdf(file) else nullcontext(), context.share.part() as held:
            document = open_document(file, self._limits, self._settings.pdf_dpi, check, held.take)
            with closing(document):
                yield document

    def _choose(self, document: Document, ranges: Ranges, most: int | None) -> Sequence[int]:
        allowed = self._settings.max_pages
        return chosen_pages(document, ranges, min(most or allowed, allowed), cut=most is not None)

    def _checking(self, deadline: float, context: RequestContext) -> Check:
        """Raises DeadlineExceeded or ClientGone when nobody waits any more."""

        def check() -> None:
            if self._clock() >= deadline:
                raise deadline_passed()
            if context.is_gone():
                raise client_gone()

        return check

    def read_many(
        self,
        datas: Iterable[Source],
        options: ReadOptions,
        deadline_s: float,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> list[Reading | OcrsvcError]:
        """Read several images, each answered apart, in the same order; all share one deadline.

        One request holds no more places than there are engine threads, so that it cannot fill the queue by itself, and
        begins no image while those before it need a quarter of all memory for requests.

        Raises:
            ClientGone: Nobody waits any more; what is still queued is dropped.
        """
        began = self._clock()
        answers: list[Reading | OcrsvcError] = []
        pending: deque[_Pending | Reading | OcrsvcError] = deque()
        try:
            for data in datas:
                while len(pending) >= self._plan.engine_threads or _hold_much_memory(
                    pending, context.share.budget_bytes
                ):
                    answers.append(self._reading_or_error(pending.popleft()))
                if self._clock() - began >= GONE_S and context.is_gone():
                    raise client_gone()
                pending.append(self._submit_or_error(data, options, began + deadline_s, context))
            while pending:
                answers.append(self._reading_or_error(pending.popleft()))
        finally:
            for entry in pending:
                if isinstance(entry, _Pending):
                    entry.place.give_up(entry.item)
        return answers

    def _running(self) -> Executor[DecodeJob, Page]:
        if self._executor is None or not self.ready:
            raise NotReady("The engine of this worker is not warm yet.", "Send the request again in a moment.", 2)
        return self._executor

    def _submit(
        self, data: bytes | DocumentPage, options: ReadOptions, deadline: float, context: RequestContext
    ) -> _Pending:
        """Admit first, then queue, decoded where little waits: a request that cannot be served costs no decoding."""
        executor, engine = self._running(), self._engine
        assert engine is not None, "ready means that there is one"
        admitted = self._clock()
        check = make_check(context, deadline, self._clock)
        job = DecodeJob(options, deadline, engine.traits.wants_gray, check, held=context.share.part())
        try:
            with executor.admit(context) as place:
                with self._decode_permit_for(data, deadline, context):
                    began = self._clock()
                    job.source = self._open(data, job, context)
                    job.decode_s = self._clock() - began
                    most_bytes = job.most_bytes
                    ahead = job.is_rendered or (
                        not job.is_decoded_by_engine and executor.waiting_bytes() + job.pixel_bytes <= AHEAD_BYTES
                    )
                    if ahead:
                        job.prepare()
                if job.is_large:
                    ahead = True
                    self._take_large_permit(job, context)
                size_bytes = job.prepare().image.pixels.nbytes if ahead else _file_bytes(data)
                item = place.submit(job, deadline, size_bytes)
        except BaseException:
            job.release()
            raise
        # Whatever becomes of it: read, too late, or given up before the engine came to it.
        item.future.add_done_callback(lambda _: job.release())
        key = key_of(_cache_bytes_of(data), options, self.describe()) if self._result_cache is not None else None
        return _Pending(place, item, ahead, admitted, key, most_bytes)

    def _open(
        self, data: bytes | DocumentPage, job: DecodeJob, context: RequestContext
    ) -> EncodedImage | Image | bytes:
        if self._engine_decodes:
            file = data.document.file(data.number, job.held.take) if isinstance(data, DocumentPage) else data
            if file is not None:
                open_without_pillow(file, self._limits)
                # It is copied to where the engine is.
                job.held.take(len(file))
                return file
        if not isinstance(data, DocumentPage):
            return open_encoded_image(data, self._limits)
        check = self._checking(job.deadline, context)
        return data.document.open(data.number, gray=job.gray, check=check, take=job.held.take)

    def _decode_permit_for(
        self, data: bytes | DocumentPage, deadline: float, context: RequestContext
    ) -> AbstractContextManager[None]:
        """A permit to decode, for what needs one."""
        is_apart = isinstance(data, DocumentPage) and data.is_drawn_in_child
        return nullcontext() if is_apart else self._decode_permit(deadline, context)

    @contextmanager
    def _decode_permit(self, deadline: float, context: RequestContext) -> Iterator[None]:
        """A permit to decode. Raises DeadlineExceeded or ClientGone when nobody waits for it any more."""
        self._acquire(self._decode_permits, deadline, context)
        try:
            yield
        finally:
            self._decode_permits.release()

    def _take_large_permit(self, job: DecodeJob, context: RequestContext) -> None:
        """Take the permit for a large image; the job gives it back. Raises as `_decode_permit`."""
        self._acquire(self._large_permits, job.deadline, context)
        job.permit.callback(self._large_permits.release)
        # Of the largest no other one may be decoded meanwhile: it would find no memory, and be refused.
        job.keeps_permit = (self._plan.engine_threads + 1) * job.most_bytes > context.share.budget_bytes

    def _acquire(self, permits: threading.Semaphore, deadline: float, context: RequestContext) -> None:
        while not permits.acquire(timeout=max(0.0, min(GONE_S, deadline - self._clock()))):
            if context.is_gone():
                raise client_gone()
            if self._clock() >= deadline:
                raise deadline_passed()

    def _find_cached(self, data: bytes | DocumentPage, options: ReadOptions) -> Reading | None:
        """What was read of the same bytes before, if the result cache has it."""
        if self._result_cache is None or not self.ready:
            return None
        began = self._clock()
        page = self._result_cache.get(key_of(_cache_bytes_of(data), options, self.describe()))
        if page is None:
            return None
        reading = Reading(page, self.describe(), Timing(0.0, 0.0, 0.0, self._clock() - began), from_cache=True)
        self._on_reading(reading)
        return reading

    def _submit_or_error(
        self, data: Source, options: ReadOptions, deadline: float, context: RequestContext
    ) -> _Pending | Reading | OcrsvcError:
        if isinstance(data, OcrsvcError):
            return data
        try:
            return self._find_cached(data, options) or self._submit(data, options, deadline, context)
        except ClientGone:
            raise
        except OcrsvcError as error:
            return error

    def _reading_or_error(self, entry: _Pending | Reading | OcrsvcError) -> Reading | OcrsvcError:
        if not isinstance(entry, _Pending):
            return entry
        try:
            return self._wait_for_reading(entry)
        except ClientGone:
            raise
        except OcrsvcError as error:
            return error

    def _wait_for_reading(self, pending: _Pending) -> Reading:
        try:
            served: Served[Page] = pending.place.wait(pending.item)
        except ClientGone:
            LOGGER.info("dropped: its client has gone")
            raise
        job = pending.item.work
        page = restore_page(served.answer, job.turned, *job.size)
        if self._result_cache is not None and pending.key is not None:
            self._result_cache.put(pending.key, page)
        engine_s = served.run_s if pending.ahead else max(0.0, served.run_s - job.decode_s)
        timing = Timing(job.decode_s, served.queue_s, engine_s, self._clock() - pending.admitted)
        reading = Reading(page, self.describe(), timing)
        self._on_reading(reading)
        return reading


def _hold_much_memory(pending: Iterable[_Pending | Reading | OcrsvcError], budget_bytes: int) -> bool:
    return sum(entry.most_bytes for entry in pending if isinstance(entry, _Pending)) > budget_bytes // 4


def _file_bytes(data: bytes | DocumentPage) -> int:
    """Bytes that are held while a page waits undecoded."""
    return data.document.file_bytes if isinstance(data, DocumentPage) else len(data)


def _cache_bytes_of(data: bytes | DocumentPage) -> bytes:
    """The bytes that a cached page is found by."""
    return data.document.key(data.number) if isinstance(data, DocumentPage) else data


def _numbered(outcome: Reading | OcrsvcError, number: int) -> Reading | OcrsvcError:
    if isinstance(outcome, OcrsvcError):
        return outcome
    return replace(outcome, page=replace(outcome.page, number=number))
