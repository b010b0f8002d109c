"""The engine: the QR codes of a page, by OpenCV, as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import cv2

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.results import Box, EngineInfo, Line, Page, Pixels, Point, ReadTask
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc_example.entries import QrSettings


class QrHandle:
    """One thread's detector; see ocrsvc.engines.contract.Handle."""

    def __init__(self, min_side_px: int) -> None:
        self._min_side_px = min_side_px
        self._detector = cv2.QRCodeDetector()

    def warm_up(self) -> None:
        """Nothing is loaded later."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Each page by itself."""
        return [self._answer(task) for task in tasks]

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            task.check()
            lines = sorted(self._lines(task.image.pixels), key=lambda line: (line.box[0][1], line.box[0][0]))
        except OcrsvcError as error:
            return error
        except cv2.error as error:
            return EngineFailed(f"OpenCV cannot look for QR codes on this page: {error}.")
        return Page(task.image.width, task.image.height, 0, tuple(lines))

    def _lines(self, pixels: Pixels) -> Iterator[Line]:
        _found, texts, boxes, _codes = self._detector.detectAndDecodeMulti(pixels)
        for text, corners in zip(texts, () if boxes is None else boxes.tolist(), strict=True):
            # A code that is found and cannot be read has no text.
            if text and math.dist(corners[0], corners[1]) >= self._min_side_px:
                yield Line(text, 1.0, _box(corners))


def _box(corners: Sequence[Sequence[float]]) -> Box:
    """OpenCV's corners: those of the code, clockwise, from where its text begins."""
    a, b, c, d = (_point(*corner) for corner in corners)
    return a, b, c, d


def _point(x: float, y: float) -> Point:
    return x, y


class QrEngine:
    """The engine without its threads; see ocrsvc.engines.contract.Engine."""

    traits = EngineTraits(wants_gray=True)

    def __init__(self, min_side_px: int) -> None:
        self._min_side_px = min_side_px

    def describe(self) -> EngineInfo:
        """The version changes with whatever changes the text: kept results are found by it."""
        return EngineInfo("qr", "opencv", f"{cv2.__version__} from {self._min_side_px} px", "cpu", "none", "opencv")

    def open_handle(self) -> QrHandle:
        """A detector for the calling thread."""
        return QrHandle(self._min_side_px)

    def close(self) -> None:
        """Nothing is held."""


def open_qr(settings: QrSettings, _plan: ThreadPlan) -> QrEngine:
    """The engine as the settings want it; they hold all settings of the service, whatever is declared here."""
    return QrEngine(settings.qr_min_side_px)
