"""A thread's way through a page: the shared detector, and a reader of lines that may be its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ocrsvc.engines.lines import LineReader
from ocrsvc.engines.ppocr.detect import COARSE_PX, STRIDE, find_quads
from ocrsvc.engines.ppocr.page import read_page
from ocrsvc.engines.ppocr.session import Session
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.geometry import Quad
from ocrsvc.records import Page, Pixels, ReadTask

WARM_UP_LINES_PX = ((64, 32), (320, 32))  # length and height of two lines: a word, and half a page


def nothing_to_close() -> None:
    """For readers of lines that belong to the engine."""


class PageHandle:
    """Reads pages; see engines.base.Handle.

    Args:
        detector: The detection model; shared between handles.
        reader: Reads the lines found.
        close_reader: Gives back the reader, if it belongs to this handle.
    """

    def __init__(
        self, detector: Session, reader: LineReader, close_reader: Callable[[], None] = nothing_to_close
    ) -> None:
        self._detector = detector
        self._reader = reader
        self.close = close_reader

    def warm_up(self) -> None:
        """One run of each model at ordinary sizes, so that no request pays for their first allocation."""
        self._detector.run(np.zeros((1, 3, COARSE_PX // 2 // STRIDE * STRIDE, COARSE_PX), np.float32))
        sizes = (self._reader.crop_size(*line) for line in WARM_UP_LINES_PX)
        self._reader.read([np.full((height, width), 255, np.uint8) for width, height in sizes])

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Each page by itself."""
        return [read_page(task, self._find, self._reader) for task in tasks]

    def _find(self, pixels: Pixels) -> list[Quad]:
        return find_quads(pixels, self._detector.run)
