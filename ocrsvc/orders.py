"""When is an image decoded: at once, while little waits for the engine, or only when the engine comes to it?

Decoded pages are ten times their files. A few are decoded ahead, so that an engine never waits for its next page; the
rest wait as files, so that what a worker holds does not grow with the number of its clients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ocrsvc.engines.base import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.decode import develop
from ocrsvc.imaging.geometry import shrink, turn
from ocrsvc.imaging.picture import Picture
from ocrsvc.records import Image, Page, ReadOptions, ReadTask, Rotate
from ocrsvc.serving.guard import Work, current_work, decoding_for

AHEAD_BYTES: Final = 16 * 2**20
"""Bytes of waiting work up to which images are decoded ahead: some pages of an ordinary size, none of the largest."""


@dataclass(slots=True, eq=False)
class Order:
    """One image on its way to the engine; used by one thread at a time.

    Attributes:
        source: Its file, with a header that was held against the limits; or the image, drawn from a document.
        options: What the request asks for.
        deadline: Monotonic seconds from which nobody waits for the answer.
        gray: The engine needs no colour.
        size: (width, height) in pixels of the decoded image, before any turn or shrinking.
        work: The request that it belongs to, on record.
        decode_s: What opening and decoding took so far.
    """

    source: Picture | Image
    options: ReadOptions
    deadline: float
    gray: bool
    size: tuple[int, int] = (0, 0)
    decode_s: float = 0.0
    work: Work | None = field(default_factory=current_work, init=False)
    _task: ReadTask | None = field(default=None, init=False)

    @property
    def is_drawn(self) -> bool:
        """Is it an image already, so that waiting undecoded saves nothing?"""
        return isinstance(self.source, Image)

    @property
    def pixel_bytes(self) -> int:
        """What the decoded image will hold, by its header."""
        if isinstance(self.source, Image):
            return self.source.pixels.nbytes
        return self.source.width * self.source.height * (1 if self.gray or self.source.gray else 3)

    @property
    def turned(self) -> int:
        """Degrees by which the image is turned, clockwise, before the engine sees it."""
        return 0 if self.options.rotate == "auto" else int(self.options.rotate)

    def prepare(self) -> ReadTask:
        """Decode, unless that is done; apply a fixed turn and the largest side, which no engine needs to know about.

        Raises:
            BrokenImage: Cut off or damaged.
        """
        if self._task is None:
            began = time.perf_counter()
            source = self.source
            image = source if isinstance(source, Image) else develop(source, gray=self.gray)
            self.size = (image.width, image.height)
            pixels = turn(image.pixels, self.turned)
            if self.options.max_side is not None:
                pixels, _ = shrink(pixels, self.options.max_side)
            rotate: Rotate = "auto" if self.options.rotate == "auto" else "0"
            options = replace(self.options, rotate=rotate)
            self._task = ReadTask(replace(image, pixels=pixels), options, self.deadline)
            self.decode_s += time.perf_counter() - began
        return self._task

    def forget(self) -> None:
        """Let go of the pixels: the answer may wait for its thread, and they need not wait with it."""
        self._task = None


class DecodingHandle:
    """An engine's handle that first decodes what was not decoded ahead; see serving.executor.Server."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, orders: Sequence[Order]) -> list[Page | OcrsvcError]:
        """One page or error for each order; a damaged image fails alone."""
        tasks = [_task_or_error(order) for order in orders]
        good = [place for place, task in enumerate(tasks) if isinstance(task, ReadTask)]
        pages = self._handle.read([task for task in tasks if isinstance(task, ReadTask)]) if good else []
        for order in orders:
            order.forget()
        answers = dict(zip(good, pages, strict=True))
        return [task if isinstance(task, OcrsvcError) else answers[place] for place, task in enumerate(tasks)]


def _task_or_error(order: Order) -> ReadTask | OcrsvcError:
    try:
        with decoding_for(order.work):
            return order.prepare()
    except OcrsvcError as error:
        return error
