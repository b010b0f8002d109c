"""The job of reading one page, from decoding to the result in original coordinates, and the state of its request."""

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

MAX_BATCH: Final = 64  # upper limit on the jobs in one batch; an engine's `best_batch` may be lower
_ROTATIONS: Final[dict[int, Rotate]] = {0: "0", 90: "90", 180: "180", 270: "270"}

# What a page is decoded from: an image file whose header is within the limits; an image drawn from a document, whose
# memory is already counted; or the file's bytes, if the engine decodes files itself.
PageSource = EncodedImage | Image | bytes


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The options, deadline and context that all pages of one request share."""

    options: ReadOptions  # options for the engine; if text is masked, these also request characters
    mask: tuple[MaskKind, ...]  # kinds of text to mask in the answer
    client_options: ReadOptions  # options as the client sent them
    deadline: float  # in monotonic seconds
    context: RequestContext
    check: Check  # raises DeadlineExceeded or ClientGone; thread-safe
    guarded: GuardedRequest | None  # the request's record in the RequestGuard
    # lease on the model version that reads the pages, held until the `with` block ends; None if no page is read
    lease: Lease | None = None

    @property
    def reading_lease(self) -> Lease:
        """The lease on the model version; only for a request that has one."""
        assert self.lease is not None, "the request reads no pages"
        return self.lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lease is not None:
            self.lease.close()


def make_read_request(options: ReadOptions, limit_s: float, context: RequestContext = DEFAULT_CONTEXT) -> ReadRequest:
    """Describe a read request that the calling thread serves; its deadline is `limit_s` seconds from now."""
    deadline = time.monotonic() + limit_s
    check = make_check(context, deadline, time.monotonic)
    mask, for_engine = (*options.mask, *context.mask), options
    if mask:
        mask = tuple(kind for kind in MASK_KINDS if kind in mask)
        for_engine = replace(options, mask=(), characters=True)
    return ReadRequest(for_engine, mask, options, deadline, context, check, current_request())


class DecodeJob(Job[Page]):
    """One page of a request, decoded in its request's thread or in an engine thread; not thread-safe.

    `number` is the page number in its document, from 1; `own` is the document's own text of the page, None if not
    requested; `key` is its key in the result cache, or empty. With `image_only` the result is the image, in colour.
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
        self.request = request
        self.traits = traits
        self.number = number
        self.key = key
        self.image_only = image_only
        self.gray = traits.wants_gray and not image_only
        # The job has its own memory share and lease: an engine thread may need both after the request has ended.
        self.held = request.context.share.part()
        self.lease = request.reading_lease.again()
        # Set by `open`; None again after decoding, to free the memory.
        self.source: PageSource | None = None
        # Size of the decoded pixels, by the image's header; if the engine decodes the image, size of the copied file.
        self.pixel_bytes = 0
        # Peak memory while the image is decoded, rotated and shrunk.
        self.max_bytes = 0
        self.is_ahead = False
        self.decode_s = 0.0
        self._began_s = time.monotonic()
        # Permit to decode a large page, released when the engine takes the page or, with `keeps_permit`, has read it.
        self.permit = ExitStack()
        self.keeps_permit = False
        self._own = own
        options = request.options
        if own is not None and own.lines and options.rotate == "auto":
            # The document's own text shows how the page is rotated, so the engine need not find out.
            options = replace(options, rotate=_ROTATIONS[own.angle])
        self._view = EngineInput(options)
        self._task: ReadTask | None = None

    def open(self, source: PageSource) -> None:
        """Set the image or file from which the page is decoded, and compute the memory that decoding needs."""
        self.source = source
        self.pixel_bytes, decoding_bytes = self.held.held_bytes, 0
        if isinstance(source, EncodedImage):
            self.pixel_bytes, decoding_bytes = source.flat_bytes(gray=self.gray), source.peak_bytes(gray=self.gray)
        copies = 2 if self._view.makes_copy else 1
        self.max_bytes = max(decoding_bytes, copies * self.pixel_bytes)

    def prepare(self) -> ReadTask:
        """Decode, rotate and shrink the page, if not done yet. Raises as `decode_pixels`, QueueFull, BodyTooLarge."""
        if self._task is None:
            began_s = time.perf_counter()
            self.held.take(self.max_bytes - self.held.held_bytes)
            try:
                self._task = self._make_task()
            except BaseException:
                self.held.release()
                raise
            self.held.give_back(self.held.held_bytes - self._task.image.pixels.nbytes)
            self.decode_s += time.perf_counter() - began_s
        return self._task

    def task(self) -> Task:
        """The task to pass to the engine's handle. Raises the errors of `prepare`."""
        if isinstance(self.source, bytes):
            options = None if self.image_only else self.request.options
            return FileTask(self.source, options, self.deadline, self.request.check)
        if not self.keeps_permit:
            self.permit.close()
        return self.prepare()

    def restore(self, page: Page) -> tuple[Page, Timing]:
        """Map the engine's page back to the coordinates of the original image; returns it with its timing."""
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
        """When each stage of reading a page began and ended (`time.monotonic`), from the wait in the queue on.

        A page that was not decoded ahead is decoded by the engine thread before the engine begins. If an engine reports
        no times, its whole run counts as recognition.
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
        """Free the pixels and release the permit, memory and lease; the result remains available."""
        self._task = self.source = None
        self.permit.close()
        self.held.release()
        self.lease.close()

    def _make_task(self) -> ReadTask:
        image = self._view.apply(self._take_image())
        own = None if self._own is None else self._view.apply_to_text(self._own)
        return ReadTask(image, self._view.left, self.deadline, self.request.check, own)

    def _take_image(self) -> Image:
        """Decode the image and drop the job's reference to its source."""
        assert isinstance(self.source, EncodedImage | Image), "the page was not opened here"
        source = self.source
        image = source if isinstance(source, Image) else decode_pixels(source, gray=self.gray, check=self.request.check)
        self.source = None
        return image


def may_join(first: DecodeJob, taken: int, other: DecodeJob) -> bool:
    """Whether `other` may join a batch that begins with `first` and has `taken` jobs so far."""
    return taken < first.traits.best_batch and first.lease.version == other.lease.version


def read_jobs(jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
    """Read jobs of one model version with this thread's engine handle; returns a page or an error per job."""
    return read_with(jobs[0].lease.handle(), jobs)


def read_with(handle: Handle, jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
    """Decode the jobs that are not decoded yet, and read all of them; returns a page or an error per job."""
    tasks = [_task_or_error(job) for job in jobs]
    good = [task for task in tasks if not isinstance(task, OcrsvcError)]
    # The cast is safe: FileTasks are made only for engines that decode files themselves.
    read = cast("Callable[[Sequence[Task]], list[Page | OcrsvcError]]", handle.read)
    pages = iter([page for _, page in zip(good, read(good) if good else [], strict=True)])
    return [task if isinstance(task, OcrsvcError) else next(pages) for task in tasks]


def _task_or_error(job: DecodeJob) -> Task | OcrsvcError:
    try:
        with decoding_for(job.request.guarded):
            return job.task()
    except OcrsvcError as error:
        return error.without_frames()
