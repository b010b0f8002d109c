"""Image files are decoded in the child, beside the engine, so that a decoder's crash costs the image and nothing else.

Runs in the child, in its only thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocrsvc.engines.base import Handle
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.decode import PixelLimits, open_picture
from ocrsvc.imaging.geometry import restore_page
from ocrsvc.orders import Order
from ocrsvc.records import DecodedPage, FileTask, Page, ReadOptions, Task


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
        gray = self.gray and task.options is not None
        order = Order(task.options or ReadOptions(), task.deadline, gray, task.check)
        try:
            task.check()
            order.source = open_picture(task.data, self.limits)
            order.prepare()
            task.check()
        except OcrsvcError as error:
            return [error]
        return [self._look(order) if task.options is None else self._read_image(order)]

    def _look(self, order: Order) -> DecodedPage:
        return DecodedPage(*order.size, 0, (), decode_s=order.decode_s, image=order.prepare().image)

    def _read_image(self, order: Order) -> Page | OcrsvcError:
        [page] = self.handle.read([order.prepare()])
        if isinstance(page, OcrsvcError):
            return page
        page = restore_page(page, order.turned, *order.size)
        return DecodedPage(page.width, page.height, page.angle, page.lines, decode_s=order.decode_s)
