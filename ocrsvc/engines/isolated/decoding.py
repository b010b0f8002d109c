"""Decodes image files in the child, beside the engine, so that a decoder's crash costs that image only.

Runs in the child, in its only thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ocrsvc.engines.contract import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels, open_encoded_image
from ocrsvc.imaging.engine_input import EngineInput
from ocrsvc.records import DecodedPage, FileTask, Image, Page, ReadOptions, ReadTask, Task


@dataclass(frozen=True, slots=True)
class FileReader:
    """An engine's handle that takes files as well.

    Attributes:
        handle: Reads what is decoded.
        limits: What the header of a file may declare.
        gray: The engine needs no colour.
    """

    handle: Handle
    limits: PixelLimits
    gray: bool

    def read(self, tasks: Sequence[Task]) -> list[Page | OcrsvcError]:
        """One answer for each task; a file at a time, so that no more than one image is in memory."""
        return [answer for task in tasks for answer in self._read_one(task)]

    def _read_one(self, task: Task) -> list[Page | OcrsvcError]:
        if not isinstance(task, FileTask):
            return self.handle.read([task])
        began = time.perf_counter()
        try:
            task.check()
            image = decode_pixels(
                open_encoded_image(task.data, self.limits), gray=self.gray and task.options is not None
            )
            task.check()
        except OcrsvcError as error:
            return [error]
        decode_s = time.perf_counter() - began
        if task.options is None:
            return [DecodedPage.of(Page(image.width, image.height, 0, ()), decode_s, image)]
        return [self._read_image(image, task, task.options, decode_s)]

    def _read_image(self, image: Image, task: FileTask, options: ReadOptions, decode_s: float) -> Page | OcrsvcError:
        view = EngineInput(options)
        try:
            seen = view.apply(image)
        except OcrsvcError as error:
            return error
        [page] = self.handle.read([ReadTask(seen, view.left, task.deadline, task.check)])
        return page if isinstance(page, OcrsvcError) else DecodedPage.of(view.restore(page), decode_s)
