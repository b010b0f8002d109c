"""One image to be decoded: ahead, while little waits for the engine, else when the engine comes to it.

Decoded pages are ten times their files. A few are decoded ahead, so that an engine never waits for its next page; the
rest wait as files, so that what a worker holds does not grow with the number of its clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final, cast

from ocrsvc.engines.contract import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.decode import decode_pixels
from ocrsvc.imaging.encoded_image import EncodedImage
from ocrsvc.imaging.geometry import shrink, turn
from ocrsvc.records import Check, DecodedPage, FileTask, Image, Page, ReadOptions, ReadTask, Rotate, Task, no_check
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.request_guard import GuardedRequest, current_request, decoding_for

AHEAD_BYTES: Final = 16 * 2**20
"""Bytes of waiting work up to which images are decoded ahead: some pages of an ordinary size.

A page that is larger by itself is decoded ahead too, but few at once: an engine thread that decoded it would keep the
small ones waiting for a second.
"""


@dataclass(slots=True, eq=False)
class DecodeJob:
    """One image on its way to the engine; used by one thread at a time.

    Attributes:
        options: What the request asks for.
        deadline: Monotonic seconds from which nobody waits for the answer.
        gray: The engine needs no colour.
        check: Raises once nobody waits for the answer any more.
        held: The account of its pixels, which may be needed longer than the request waits.
        source: Its file, with a header that was held against the limits; the image, drawn from a document, whose bytes
            are in the account already; or the file as it came, for an engine that decodes by itself. None before it is
            opened, and when it was decoded.
        size: (width, height) in pixels of the decoded image, before any turn or shrinking.
        permit: To decode a large image, which few hold at once; given back when the engine takes the image.
        keeps_permit: Whether it is given back only when the engine has done with the image.
        guarded_request: The request that it belongs to, on record.
        decode_s: What opening and decoding took so far.
        image_only: Only the decoded image is wanted, in colour; for an engine that decodes by itself.
        image: That image, once it is there.
    """

    options: ReadOptions
    deadline: float
    gray: bool
    check: Check = no_check
    held: Share = field(default_factory=unlimited)
    source: EncodedImage | Image | bytes | None = None
    size: tuple[int, int] = (0, 0)
    decode_s: float = 0.0
    image_only: bool = False
    image: Image | None = None
    permit: ExitStack = field(default_factory=ExitStack, init=False)
    keeps_permit: bool = False
    guarded_request: GuardedRequest | None = field(default_factory=current_request, init=False)
    _task: ReadTask | None = field(default=None, init=False)
    _is_put_back: bool = field(default=False, init=False)

    @property
    def is_rendered(self) -> bool:
        """Whether it is an image already, rendered from a document, so that waiting undecoded saves nothing."""
        return isinstance(self.source, Image)

    @property
    def is_decoded_by_engine(self) -> bool:
        """Whether the engine decodes it by itself."""
        return isinstance(self.source, bytes)

    @property
    def is_large(self) -> bool:
        """Whether it is more than may wait decoded, except for a few."""
        return isinstance(self.source, EncodedImage) and self.pixel_bytes > AHEAD_BYTES

    @property
    def pixel_bytes(self) -> int:
        """What the decoded image will hold here, by its header; of a file that is decoded elsewhere, what is copied."""
        return self.source.flat_bytes(gray=self.gray) if isinstance(self.source, EncodedImage) else self.held.held_bytes

    @property
    def most_bytes(self) -> int:
        """What will be held at most while it is decoded, turned and shrunk."""
        copies = 2 if self.turned or self.options.max_side is not None else 1
        decoding = self.source.most_bytes(gray=self.gray) if isinstance(self.source, EncodedImage) else 0
        return max(decoding, copies * self.pixel_bytes)

    @property
    def turned(self) -> int:
        """Degrees by which the image is turned, clockwise, before the engine sees it; 0 once the page is put back."""
        return 0 if self._is_put_back or self.options.rotate == "auto" else int(self.options.rotate)

    def prepare(self) -> ReadTask:
        """Decode, unless that is done; apply a fixed turn and the largest side, which no engine needs to know about.

        Raises:
            BrokenImage: Cut off or damaged.
            QueueFull, BodyTooLarge: There is no memory for it now, or never will be.
        """
        if self._task is None:
            began = time.perf_counter()
            self.held.take(self.most_bytes - self.held.held_bytes)
            try:
                self._task = self._make_task()
            except BaseException:
                self.held.release()
                raise
            self.held.give_back(self.held.held_bytes - self._task.image.pixels.nbytes)
            self.decode_s += time.perf_counter() - began
        return self._task

    def task(self) -> Task:
        """What the engine's handle is given. Raises BrokenImage."""
        source = self.source
        if isinstance(source, bytes):
            return FileTask(source, None if self.image_only else self.options, self.deadline, self.check)
        if not self.keeps_permit:
            self.permit.close()
        return self.prepare()

    def note(self, page: DecodedPage) -> Page:
        """Store what the engine reports about decoding; returns the page without it."""
        self.size, self.image, self._is_put_back = (page.width, page.height), page.image, True
        self.decode_s += page.decode_s
        return Page(page.width, page.height, page.angle, page.lines)

    def release(self) -> None:
        """Free the pixels: the answer may wait for its thread, and they need not wait with it."""
        self._task = self.source = self.image = None
        self.permit.close()
        self.held.release()

    def _make_task(self) -> ReadTask:
        assert isinstance(self.source, EncodedImage | Image), "it was opened here"
        image = self.source if isinstance(self.source, Image) else decode_pixels(self.source, gray=self.gray)
        self.size, kind, pixels = (image.width, image.height), image.format, image.pixels
        # Nothing but `pixels` may keep the image before it was turned or shrunk.
        self.source = None
        del image
        pixels = turn(pixels, self.turned)
        if self.options.max_side is not None:
            pixels, _ = shrink(pixels, self.options.max_side)
        rotate: Rotate = "auto" if self.options.rotate == "auto" else "0"
        return ReadTask(Image(pixels, kind), replace(self.options, rotate=rotate), self.deadline, self.check)


class DecodingHandle:
    """An engine's handle that first decodes what was not decoded ahead; see serving.executor.ThreadHandle."""

    def __init__(self, handle: Handle) -> None:
        # A file for an engine that decodes by itself is only given to such an engine.
        self._read = cast("Callable[[Sequence[Task]], list[Page | OcrsvcError]]", handle.read)
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, jobs: Sequence[DecodeJob]) -> list[Page | OcrsvcError]:
        """One page or error for each job; a damaged image fails alone."""
        tasks = [_task_or_error(job) for job in jobs]
        good = [(job, task) for job, task in zip(jobs, tasks, strict=True) if not isinstance(task, OcrsvcError)]
        pages = self._read([task for _, task in good]) if good else []
        noted = [
            job.note(page) if isinstance(page, DecodedPage) else page
            for (job, _), page in zip(good, pages, strict=True)
        ]
        answers = iter(noted)
        return [task if isinstance(task, OcrsvcError) else next(answers) for task in tasks]


def _task_or_error(job: DecodeJob) -> Task | OcrsvcError:
    try:
        with decoding_for(job.guarded_request):
            return job.task()
    except OcrsvcError as error:
        return error
