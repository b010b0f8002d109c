"""The default engine: PP-OCRv6 small under ONNX Runtime, in our own pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2

from ocrsvc.engines.base import Driving
from ocrsvc.engines.lines import LineReader
from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detector import open_detector
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.recognise import BeamRecogniser, Recogniser
from ocrsvc.engines.ppocr.session import Device, Running, open_session
from ocrsvc.engines.ppocr.store import Store
from ocrsvc.records import Decoder, EngineInfo


@dataclass(frozen=True, slots=True)
class PpocrSettings:
    """What the engine needs to know.

    Attributes:
        device: Where it computes.
        run_threads: Threads inside one model run (1 leaves cores to others).
        hands: Model runs that may be under way at once: the engine threads of this process.
        store: Folder for optimised models; None keeps none.
    """

    device: Device = "auto"
    run_threads: int = 1
    hands: int = 1
    store: Path | None = None


class PpocrEngine:
    """The loaded models. Handles are cheap and share the sessions, whose runs may overlap.

    Raises:
        EngineUnavailable: A model is missing, or the device cannot be used.
    """

    driving = Driving()

    def __init__(self, settings: PpocrSettings) -> None:
        cv2.setNumThreads(settings.run_threads)
        running, store = Running(settings.device, settings.run_threads), Store(settings.store)
        recognition = open_session(models.RECOGNITION, running, store)
        self._crew = Crew(settings.hands if recognition.device == "cpu" else 1)
        self._detector = open_detector(running, store, self._crew)
        self._readers: dict[Decoder, LineReader] = {
            "greedy": Recogniser(recognition, self._crew),
            "beam": BeamRecogniser(recognition, self._crew),
        }
        self._info = EngineInfo(
            "ppocr", models.NAME, models.version(), self._detector.device, "fp32", self._detector.provider
        )

    def describe(self) -> EngineInfo:
        """See engines.base.Engine."""
        return self._info

    def open_handle(self) -> PageHandle:
        """See engines.base.Engine."""
        return PageHandle(self._detector, self._readers, self._crew)

    def close(self) -> None:
        """End the helpers; the sessions go with the last reference."""
        self._crew.close()
