"""A thread's way through a page: the shared detector, and readers of lines that may be its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ocrsvc.engines.lines import LineReader
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detect import find_quads
from ocrsvc.engines.ppocr.detector import Detector
from ocrsvc.engines.ppocr.page import read_page
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.geometry import Quad
from ocrsvc.records import Decoder, Page, Pixels, ReadTask

WARM_UP_LINES_PX = ((64, 32), (320, 32))  # length and height of two lines: a word, and half a page


def nothing_to_close() -> None:
    """For readers of lines that belong to the engine."""


class PageHandle:
    """Reads pages; see engines.base.Handle.

    Args:
        detector: The detection model; shared between handles.
        readers: Reads the lines found, by what the request asks for.
        crew: Is told when a page is being read, so that idle hands may help.
        close_reader: Gives back the readers, if they belong to this handle.
    """

    def __init__(
        self,
        detector: Detector,
        readers: Mapping[Decoder, LineReader],
        crew: Crew,
        close_reader: Callable[[], None] = nothing_to_close,
    ) -> None:
        self._detector = detector
        self._readers = readers
        self._crew = crew
        self.close = close_reader

    def warm_up(self) -> None:
        """One run of each model at ordinary sizes, so that no request pays for their first allocation."""
        self._detector.warm_up()
        reader = self._readers["greedy"]
        sizes = (reader.crop_size(*line) for line in WARM_UP_LINES_PX)
        reader.read([np.full((height, width), 255, np.uint8) for width, height in sizes])

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Each page by itself."""
        return [self._read_one(task) for task in tasks]

    def _read_one(self, task: ReadTask) -> Page:
        with self._crew.page():
            return read_page(task, self._find, self._readers[task.options.decoder])

    def _find(self, pixels: Pixels) -> list[Quad]:
        return find_quads(pixels, self._detector.run)
