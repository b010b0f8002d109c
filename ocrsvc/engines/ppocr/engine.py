"""The default engine: PP-OCRv6 small under ONNX Runtime, in our own pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import cv2

from ocrsvc.engines.base import Driving
from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.recognise import Recogniser, read_characters
from ocrsvc.engines.ppocr.session import Device, open_session
from ocrsvc.records import EngineInfo


@dataclass(frozen=True, slots=True)
class PpocrSettings:
    """What the engine needs to know: the device, and the threads inside one model run (1 leaves cores to others)."""

    device: Device = "auto"
    run_threads: int = 1


class PpocrEngine:
    """The loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    Raises:
        EngineUnavailable: A model is missing, or the device cannot be used.
    """

    driving = Driving()

    def __init__(self, settings: PpocrSettings) -> None:
        cv2.setNumThreads(settings.run_threads)
        self._detector = open_session(models.load_model(models.DETECTION), settings.device, settings.run_threads)
        recognition = models.load_model(models.RECOGNITION)
        session = open_session(recognition, settings.device, settings.run_threads)
        self._recogniser = Recogniser(session, read_characters(recognition))
        self._info = EngineInfo(
            "ppocr", models.NAME, models.version(), self._detector.device, "fp32", self._detector.provider
        )

    def describe(self) -> EngineInfo:
        """See engines.base.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """See engines.base.Engine."""
        return PageHandle(self._detector, self._recogniser)

    def close(self) -> None:
        """The sessions go with the last reference."""
