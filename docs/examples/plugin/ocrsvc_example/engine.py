"""The engine: the QR codes of a page, by OpenCV, as lines of text."""

import math
from collections.abc import Sequence
from typing import cast

import cv2

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.results import Box, EngineInfo, Line, Page, ReadTask
from ocrsvc.system.thread_plan import ThreadPlan
from ocrsvc_example.entries import QrSettings


class QrHandle:
    """One thread's detector; see ocrsvc.engines.contract.Handle."""

    def __init__(self, min_side_px: int) -> None:
        self._min_side_px = min_side_px
        self._detector = cv2.QRCodeDetector()

    def warm_up(self) -> None:
        """Do nothing: the detector loads no model."""

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read each page by itself."""
        return [self._read(task) for task in tasks]

    def close(self) -> None:
        """Do nothing: the detector holds no resources."""

    def _read(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            task.check()
            _found, texts, corners, _codes = self._detector.detectAndDecodeMulti(task.image.pixels)
        except OcrsvcError as error:
            return error
        except cv2.error as error:
            return EngineFailed(f"OpenCV cannot look for QR codes on this page: {error}.")
        boxes = [] if corners is None else [cast(Box, tuple(map(tuple, box))) for box in corners.tolist()]
        # A code that is found but cannot be decoded has no text.
        found = [Line(text, 1.0, box) for text, box in zip(texts, boxes, strict=True) if text]
        lines = [line for line in found if math.dist(*line.box[:2]) >= self._min_side_px]
        return Page(task.image.width, task.image.height, 0, tuple(sorted(lines, key=lambda line: line.box[0][::-1])))


class QrEngine:
    """What the threads share; see ocrsvc.engines.contract.Engine."""

    traits = EngineTraits(wants_gray=True)

    def __init__(self, settings: QrSettings, _plan: ThreadPlan) -> None:
        self._min_side_px = settings.qr_min_side_px

    def describe(self) -> EngineInfo:
        """The version names everything that changes the text, because cached results are found by it."""
        return EngineInfo("qr", "opencv", f"{cv2.__version__} from {self._min_side_px} px", "cpu", "none", "opencv")

    def open_handle(self) -> QrHandle:
        """Open a detector for the calling thread."""
        return QrHandle(self._min_side_px)

    def close(self) -> None:
        """Do nothing: the threads share no resources."""
