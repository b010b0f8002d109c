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
from ocrsvc.records import Check, Image, Page, ReadOptions, ReadTask, Rotate, no_check
from ocrsvc.serving.limits import Share, unlimited

AHEAD_BYTES: Final = 16 * 2**20
"""Bytes of waiting work up to which images are decoded ahead: some pages of an ordinary size, none of the largest."""


@dataclass(slots=True, eq=False)
class Order:
    """One image on its way to the engine; used by one thread at a time.

    Attributes:
        options: What the request asks for.
        deadline: Monotonic seconds from which nobody waits for the answer.
        gray: The engine needs no colour.
        check: Raises once nobody waits for the answer any more.
        held: The account of its pixels, which may be needed longer than the request waits.
        source: Its file, with a header that was held against the limits; or the image, drawn from a document, whose
            bytes are in the account already. None when it is not opened yet, and when it was decoded.
        size: (width, height) in pixels of the decoded image, before any turn or shrinking.
        decode_s: What opening and decoding took so far.
    """

    options: ReadOptions
    deadline: float
    gray: bool
    check: Check = no_check
    held: Share = field(default_factory=unlimited)
    source: Picture | Image | None = None
    size: tuple[int, int] = (0, 0)
    decode_s: float = 0.0
    _task: ReadTask | None = field(default=None, init=False)

    @property
    def is_drawn(self) -> bool:
        """Is it an image already, so that waiting undecoded saves nothing?"""
        return isinstance(self.source, Image)

    @property
    def pixel_bytes(self) -> int:
        """What the decoded image will hold, by its header."""
        return self.source.flat_bytes(gray=self.gray) if isinstance(self.source, Picture) else self.held.held_bytes

    @property
    def most_bytes(self) -> int:
        """What will be held at most while it is decoded, turned and shrunk."""
        copies = 2 if self.turned or self.options.max_side is not None else 1
        decoding = self.source.most_bytes(gray=self.gray) if isinstance(self.source, Picture) else 0
        return max(decoding, copies * self.pixel_bytes)

    @property
    def turned(self) -> int:
        """Degrees by which the image is turned, clockwise, before the engine sees it."""
        return 0 if self.options.rotate == "auto" else int(self.options.rotate)

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

    def forget(self) -> None:
        """Let go of the pixels: the answer may wait for its thread, and they need not wait with it."""
        self._task = self.source = None
        self.held.release()

    def _make_task(self) -> ReadTask:
        assert self.source is not None, "it was opened"
        image = self.source if isinstance(self.source, Image) else develop(self.source, gray=self.gray)
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
    """An engine's handle that first decodes what was not decoded ahead; see serving.executor.Server."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.warm_up, self.close = handle.warm_up, handle.close

    def read(self, orders: Sequence[Order]) -> list[Page | OcrsvcError]:
        """One page or error for each order; a damaged image fails alone."""
        tasks = [_task_or_error(order) for order in orders]
        good = [place for place, task in enumerate(tasks) if isinstance(task, ReadTask)]
        pages = self._handle.read([task for task in tasks if isinstance(task, ReadTask)]) if good else []
        answers = dict(zip(good, pages, strict=True))
        return [task if isinstance(task, OcrsvcError) else answers[place] for place, task in enumerate(tasks)]


def _task_or_error(order: Order) -> ReadTask | OcrsvcError:
    try:
        return order.prepare()
    except OcrsvcError as error:
        return error
