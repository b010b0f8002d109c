"""Image files are decoded in the child, beside the engine, so that a decoder's crash costs the image and nothing else.

Runs in the child, in its only thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ocrsvc.engines.base import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.decode import PixelLimits, decode
from ocrsvc.imaging.geometry import fixed_turn, make_task, restore_page
from ocrsvc.records import DecodedPage, FileTask, Image, Page, ReadOptions, Task


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
        began_s = time.perf_counter()
        try:
            task.check()
            image = decode(task.data, self.limits, gray=self.gray and task.options is not None)
            task.check()
        except OcrsvcError as error:
            return [error]
        if task.options is None:
            return [DecodedPage(image.width, image.height, 0, (), decode_s=time.perf_counter() - began_s, image=image)]
        return [self._read_image(image, task, task.options, began_s)]

    def _read_image(self, image: Image, file: FileTask, options: ReadOptions, began_s: float) -> Page | OcrsvcError:
        task = make_task(image, options, file.deadline, file.check)
        decode_s = time.perf_counter() - began_s
        [page] = self.handle.read([task])
        if isinstance(page, OcrsvcError):
            return page
        restored = restore_page(page, fixed_turn(options), image.width, image.height)
        return DecodedPage(restored.width, restored.height, restored.angle, restored.lines, decode_s=decode_s)
