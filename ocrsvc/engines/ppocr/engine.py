"""The default engine: PP-OCRv6 small under ONNX Runtime, in our own pipeline."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from ocrsvc.engines.base import Driving
from ocrsvc.engines.lines import LineReader
from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.detect import COARSE_PX, STRIDE, find_quads
from ocrsvc.engines.ppocr.page import read_page
from ocrsvc.engines.ppocr.recognise import HEIGHT_PX, Recogniser, read_characters
from ocrsvc.engines.ppocr.session import Device, Session, open_session
from ocrsvc.errors import OcrsvcError
from ocrsvc.imaging.geometry import Quad
from ocrsvc.records import EngineInfo, Page, Pixels, ReadTask

MODEL_VERSION = "v6"
WARM_UP_WIDTHS_PX = (64, 320)


@dataclass(frozen=True, slots=True)
class PpocrSettings:
    """What the engine needs to know: the device, and the threads inside one model run (1 leaves cores to other runs)."""

    device: Device = "auto"
    run_threads: int = 1


class PageHandle:
    """Reads pages with a shared detector and a line reader; several may share both."""

    def __init__(self, detector: Session, reader: LineReader) -> None:
        self._detector = detector
        self._reader = reader

    def warm_up(self) -> None:
        """One run of each model at small and ordinary sizes, so that no request pays for their first allocation."""
        self._detector.run(np.zeros((1, 3, STRIDE * 15, COARSE_PX), np.float32))
        self._reader.read([np.full((HEIGHT_PX, width), 255, np.uint8) for width in WARM_UP_WIDTHS_PX])

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Each page by itself; see engines.base.Handle."""
        return [read_page(task, self._find, self._reader) for task in tasks]

    def close(self) -> None:
        """Nothing is owned: the sessions are the engine's."""

    def _find(self, pixels: Pixels) -> list[Quad]:
        return find_quads(pixels, self._detector.run)


class PpocrEngine:
    """The loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    Raises:
        EngineUnavailable: A model is missing, or the device cannot be used.
    """

    driving = Driving(serial_open=False, best_batch=1, wants_gray=False)

    def __init__(self, settings: PpocrSettings) -> None:
        cv2.setNumThreads(1)
        self._detector = open_session(models.load_model(models.DETECTION), settings.device, settings.run_threads)
        recognition = models.load_model(models.RECOGNITION)
        session = open_session(recognition, settings.device, settings.run_threads)
        self._recogniser = Recogniser(session, read_characters(recognition))

    def describe(self) -> EngineInfo:
        """See engines.base.Engine."""
        provider = self._detector.provider
        device = "cpu" if provider == "CPUExecutionProvider" else "cuda"
        return EngineInfo("ppocr", models.NAME, MODEL_VERSION, device, "fp32", provider)

    def open_handle(self) -> PageHandle:
        """See engines.base.Engine."""
        return PageHandle(self._detector, self._recogniser)

    def close(self) -> None:
        """The sessions go with the last reference."""
