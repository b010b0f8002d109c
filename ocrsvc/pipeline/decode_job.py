"""A page on its way to the engine: what all pages of its request share, when it is decoded, and how it is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Self, cast

from ocrsvc.engines.contract import EngineTraits, Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.codecs.decode import decode_pixels
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.imaging.engine_input import EngineInput
from ocrsvc.imaging.pdf.merge_text import with_sources
from ocrsvc.models.loaded_models import Lease
from ocrsvc.results import (
    MASK_KINDS,
    Check,
    DecodedPage,
    FileTask,
    Image,
    MaskKind,
    OwnText,
    Page,
    ReadOptions,
    ReadTask,
    Rotate,
    Task,
    Timing,
)
from ocrsvc.serving.request_guard import GuardedRequest, current_request, decoding_for
from ocrsvc.serving.work_queue import DEFAULT_CONTEXT, Job, RequestContext, make_check
from ocrsvc.telemetry.ledger import Segment

MOST_BATCH: Final = 64
"""Jobs that are read together at most, whatever an engine gains from."""
_ROTATIONS: Final[dict[int, Rotate]] = {0: "0", 90: "90", 180: "180", 270: "270"}

PageSource = EncodedImage | Image | bytes
"""A page's file, with a header that was held against the limits; the image, where it was drawn from a document, whose
bytes are in the account already; or the file as it came, for an engine that decodes by itself."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """How the pages of one request are to be read, for whom, and until when."""

    options: ReadOptions  # for the engine; with places of characters where something is to be masked
    mask: tuple[MaskKind, ...]  # what is to be masked in its answers
    asked: ReadOptions  # the options as they came
    deadline: float  # monotonic seconds
    context: RequestContext
    check: Check  # raises DeadlineExceeded or ClientGone once the answer is not wanted any more; for any thread
    guarded: GuardedRequest | None  # the same request, on record with the denylist's guard
    # on the version of a model that reads its pages, until the end of a `with`; None where none are read
    lease: Lease | None = None

    @property
    def reading_lease(self) -> Lease:
        """The lease of a request whose pages are read."""
        assert self.lease is not None, "only asked where pages are read"
        return self.lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lease is not None:
            self.lease.close()


def make_read_request(options: ReadOptions, limit_s: float, context: RequestContext = DEFAULT_CONTEXT) -> ReadRequest:
    """This thread's request, whose answer is wanted within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    check = make_check(context, deadline, time.monotonic)
    mask, for_engine = (*options.mask, *context.mask), options
    if mask:
        mask = tuple(kind for kind in MASK_KINDS if kind in mask)
        for_engine = replace(options, mask=(), characters=True)
    return ReadRequest(for_engine, mask, options, deadline, context, check, current_request())


class DecodeJob(Job[Page]):
    """One page of a request in the queue, decoded before or by an engine thread; for one thread at a time.

    `number` is its own in its document, from 1; `own` the text that the page has itself, None where that was not asked
    for; `key` that in the result cache, empty without one. With `image_only` the decoded image is wanted, in colour.
    """

    def __init__(
        self,
        request: ReadRequest,
        traits: EngineTraits,
        number: int = 1,
        own: OwnText | None = None,
        key: bytes = b"",
        *,
        image_only: bool = False,
    ) -> None:
        super().__init__(request.deadline, request.context)
        self.request, self.traits, self.number, self.key, self.image_only = request, traits, number, key, image_only
        self.gray = traits.wants_gray and not image_only
        # The account of its pixels, and its own lease: an engine thread may need both longer than the request waits.
        self.held = request.context.share.part()
        self.lease = request.reading_lease.again()
        # None before it is opened, and when it was decoded.
        self.source: PageSource | None = None
        # What the decoded image will hold here, by its header (of a file that is decoded elsewhere, what is copied),
        # and what will be held at most while it is decoded, turned and shrunk.
        self.pixel_bytes = self.most_bytes = 0
        self.is_ahead, self.decode_s, self._began_s = False, 0.0, time.monotonic()
        # To decode a large page, which few hold at once; given back when the engine takes the page, or is done with it.
        self.permit, self.keeps_permit = ExitStack(), False
        self._own, options = own, request.options
        if own is not None and own.lines and options.rotate == "auto":
            # How the page stands is known.
            options = replace(options, rotate=_ROTATIONS[own.angle])
        self._view = EngineInput(options)
        self._task: ReadTask | None = None

    def open(self, source: PageSource) -> None:
        """The page is open."""
        self.source = source
        self.pixel_bytes, decoding_bytes = self.held.held_bytes, 0
        if isinstance(source, EncodedImage):
            self.pixel_bytes, decoding_bytes = source.flat_bytes(gray=self.gray), source.most_bytes(gray=self.gray)
        copies = 2 if self._view.makes_copy else 1
        self.most_bytes = max(decoding_bytes, copies * self.pixel_bytes)

    def prepare(self) -> ReadTask:
        """Decode, turn and shrink as the options ask, once. Raises BrokenImage, QueueFull and BodyTooLarge."""
        if self._task is None:
            began_s = time.perf_counter()
            self.held.take(self.most_bytes - self.held.held_bytes)
            try:
                self._task = self._make_task()
            except BaseException:
                self.held.release()
                raise
            self.held.give_back(self.held.held_bytes - self._task.image.pixels.nbytes)
            self.decode_s += time.perf_counter() - began_s
        return self._task

    def task(self) -> Task:
        """What the engine's handle is given. Raises as `prepare`."""
        if isinstance(self.source, bytes):
            options = None if self.image_only else self.request.options
            return FileTask(self.source, options, self.deadline, self.request.check)
        if not self.keeps_permit:
            self.permit.close()
        return self.prepare()

    def restore(self, page: Page) -> tuple[Page, Timing]:
        """The engine's page, put back into the frame of the image that was sent, and where its time went."""
        if isinstance(page, DecodedPage):
            self.decode_s += page.decode_s
            page = page.page()
        else:
            page = self._view.restore(page)
        engine_s = self.run_s if self.is_ahead else max(0.0, self.run_s - self.decode_s)
        if self.request.options.text_layer != "ignore":
            page = with_sources(page)
        timing = Timing(self.decode_s, self.queue_s, engine_s, time.monotonic() - self._began_s)
        return replace(page, number=self.number), timing

    def phases(self, page: Page) -> Sequence[Segment]:
        """The stages of the page that an engine read, on `time.monotonic`, from the queue to the engine's end.

        Unless it was decoded before it was queued, that was beside the engine, which began afterwards. An engine that
        does not report when it had the lines counts as reading them all the time.
        """
        began_s, times = self.queued_at + self.queue_s, page.times
        read_s = times.began_s if times is not None else began_s
        found_s = times.found_s if times is not None else read_s
        return (
            Segment("wait", self.queued_at, began_s),
            Segment("wait" if self.is_ahead else "decode", began_s, read_s),
            Segment("detect", read_s, found_s),
            Segment("recognise", found_s, began_s + self.run_s),
        )

    def close(self) -> None:
        """Free the pixels: the answer may wait for its thread, and they need not wait with it."""
        self._task = self.source = None
        self.permit.close()
        self.held.release()
        self.lease.close()

    def _make_task(self) -> ReadTask:
        image = self._view.apply(self._take_image())
        own = None if self._own is None else self._view.apply_to_text(self._own)
        return ReadTask(image, self._view.left, self.deadline, self.request.check, own)

    def _take_image(self) -> Image:
        """The decoded image, which nothing else keeps then."""
        assert isinstance(self.source, EncodedImage | Image), "it was opened here"
        image = self.source if isinstance(self.source, Image) else decode_pixels(self.source, gray=self.gray)
        self.source = None
        return image


def may_join(first: DecodeJob, taken: int, other: DecodeJob) -> bool:
    """Whether a job may be read with a number of others, the first of which is given."""
    return taken < first.traits.best_batch and first.lease.version == other.lease.version


def read_jobs(jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
    """One page or error for each job, all for one version, whose handle of this engine thread reads them."""
    return read_with(jobs[0].lease.handle(), jobs)


def read_with(handle: Handle, jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
    """One page or error for each job, decoded first where that was not done ahead; a damaged image fails alone."""
    tasks = [_task_or_error(job) for job in jobs]
    good = [task for task in tasks if not isinstance(task, OcrsvcError)]
    # A file for an engine that decodes by itself is only given to such an engine.
    read = cast("Callable[[Sequence[Task]], list[Page | OcrsvcError]]", handle.read)
    pages = iter([page for _, page in zip(good, read(good) if good else [], strict=True)])
    return [task if isinstance(task, OcrsvcError) else next(pages) for task in tasks]


def _task_or_error(job: DecodeJob) -> Task | OcrsvcError:
    try:
        with decoding_for(job.request.guarded):
            return job.task()
    except OcrsvcError as error:
        return error.without_frames()
