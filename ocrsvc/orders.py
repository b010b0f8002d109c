"""When is an image decoded: at once, while little waits for the engine, or only when the engine comes to it?

Decoded pages are ten times their files. A few are decoded ahead, so that an engine never waits for its next page; the
rest wait as files, so that what a worker holds does not grow with the number of its clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from ocrsvc.engines.base import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.decode import develop
from ocrsvc.imaging.geometry import fixed_turn, make_task
from ocrsvc.imaging.picture import Picture
from ocrsvc.records import Check, DecodedPage, FileTask, Image, Page, ReadOptions, ReadTask, Task, no_check
from ocrsvc.serving.guard import Work, current_work, decoding_for

AHEAD_BYTES: Final = 16 * 2**20
"""Bytes of waiting work up to which images are decoded ahead: some pages of an ordinary size, none of the largest."""


@dataclass(slots=True, eq=False)
class Order:
    """One image on its way to the engine; used by one thread at a time.

    Attributes:
        source: Its file, with a header that was held against the limits; the image, drawn from a document; or the file
            as it came, for an engine that decodes by itself.
        options: What the request asks for.
        deadline: Monotonic seconds from which nobody waits for the answer.
        gray: The engine needs no colour.
        check: Raises once nobody waits for the answer any more.
        size: (width, height) in pixels of the decoded image, before any turn or shrinking.
        work: The request that it belongs to, on record.
        decode_s: What opening and decoding took so far.
        looks: Only the image is wanted, in colour; of a file for an engine that decodes by itself.
        image: That image, once it is there.
    """

    source: Picture | Image | bytes
    options: ReadOptions
    deadline: float
    gray: bool
    check: Check = no_check
    size: tuple[int, int] = (0, 0)
    decode_s: float = 0.0
    looks: bool = False
    image: Image | None = None
    work: Work | None = field(default_factory=current_work, init=False)
    _task: ReadTask | None = field(default=None, init=False)

    @property
    def is_drawn(self) -> bool:
        """Is it an image already, so that waiting undecoded saves nothing?"""
        return isinstance(self.source, Image)

    @property
    def is_decoded_elsewhere(self) -> bool:
        """Does the engine decode it by itself?"""
        return isinstance(self.source, bytes)

    @property
    def pixel_bytes(self) -> int:
        """What the decoded image will hold here, by its header."""
        if isinstance(self.source, bytes):
            return 0
        if isinstance(self.source, Image):
            return self.source.pixels.nbytes
        return self.source.width * self.source.height * (1 if self.gray or self.source.gray else 3)

    @property
    def turned(self) -> int:
        """Degrees by which the image was turned, clockwise, so that the page that comes back is turned as well."""
        return 0 if self.is_decoded_elsewhere else fixed_turn(self.options)

    def prepare(self) -> ReadTask:
        """Decode, unless that is done; apply a fixed turn and the largest side, which no engine needs to know about.

        Raises:
            BrokenImage: Cut off or damaged.
        """
        if self._task is None:
            began = time.perf_counter()
            source = self.source
            assert not isinstance(source, bytes), "the engine decodes this one"
            image = source if isinstance(source, Image) else develop(source, gray=self.gray)
            self.size = (image.width, image.height)
            self._task = make_task(image, self.options, self.deadline, self.check)
            self.decode_s += time.perf_counter() - began
        return self._task

    def task(self) -> Task:
        """What the engine's handle is given. Raises BrokenImage."""
        if isinstance(self.source, bytes):
            return FileTask(self.source, None if self.looks else self.options, self.deadline, self.check)
        return self.prepare()

    def note(self, page: DecodedPage) -> Page:
        """Take what the engine says about decoding, and leave the page."""
        self.size, self.image = (page.width, page.height), page.image
        self.decode_s += page.decode_s
        return Page(page.width, page.height, page.angle, page.lines)

    def forget(self) -> None:
        """Let go of the pixels: the answer may wait for its thread, and they need not wait with it."""
        self._task = None


class DecodingHandle:
    """An engine's handle that first decodes what was not decoded ahead; see serving.executor.Server."""

    def __init__(self, handle: Handle) -> None:
        # An order for an engine that decodes by itself is only given to such an engine.
        self._read = cast("Callable[[Sequence[Task]], list[Page | OcrsvcError]]", handle.read)
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, orders: Sequence[Order]) -> list[Page | OcrsvcError]:
        """One page or error for each order; a damaged image fails alone."""
        tasks = [_task_or_error(order) for order in orders]
        good = [(order, task) for order, task in zip(orders, tasks, strict=True) if not isinstance(task, OcrsvcError)]
        pages = self._read([task for _, task in good]) if good else []
        noted = [
            order.note(page) if isinstance(page, DecodedPage) else page
            for (order, _), page in zip(good, pages, strict=True)
        ]
        for order in orders:
            order.forget()
        answers = iter(noted)
        return [task if isinstance(task, OcrsvcError) else next(answers) for task in tasks]


def _task_or_error(order: Order) -> Task | OcrsvcError:
    try:
        with decoding_for(order.work):
            return order.task()
    except OcrsvcError as error:
        return error
