"""A page reader that notes when the lines were found last, so that finding and reading them are told apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr.pipeline.line_field import LastMask
from ocrsvc.engines.ppocr.pipeline.page import PageReader
from ocrsvc.engines.ppocr.pipeline.unwarp import OpenPage
from ocrsvc.imaging.outline import Outline
from ocrsvc.records import EngineTimes, Page, ReadTask


@dataclass(slots=True)
class PageClock:
    """When one page was begun, and when its lines were found last: on a flattened page they are found twice."""

    began_s: float = field(default_factory=time.monotonic)
    found_s: float = 0.0

    def noting(self, open_page: OpenPage) -> OpenPage:
        """The same, whose readers note when they have found lines."""

        def open_noted(task: ReadTask, last_mask: LastMask | None) -> PageReader:
            return TimedPageReader(open_page(task, last_mask), self)

        return open_noted

    def timed(self, page: Page) -> Page:
        """The page, which is read now, with its times."""
        return replace(page, times=EngineTimes(self.began_s, self.found_s or self.began_s, time.monotonic()))


@dataclass(frozen=True, slots=True)
class TimedPageReader:
    """See page.PageReader."""

    reader: PageReader
    clock: PageClock

    @property
    def in_batches(self) -> bool:
        """As of the reader."""
        return self.reader.in_batches

    def find(self) -> list[Outline]:
        """As the reader does."""
        found = self.reader.find()
        self.clock.found_s = time.monotonic()
        return found

    def read(self, outlines: Sequence[Outline]) -> list[LineText]:
        """As the reader does."""
        return self.reader.read(outlines)
