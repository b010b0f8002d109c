"""The engine of any line recognizer: ppocr's detector and page pipeline, with lines read by the recognizer."""

import contextlib

import cv2

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.line_recognizer import LineRecognizer, OwnedLineReader
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.engines.ppocr.engine import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import Detector, open_detector
from ocrsvc.engines.ppocr.pipeline.recognizer import Script
from ocrsvc.engines.ppocr.pipeline.unwarp import find_grid
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache, default_folder
from ocrsvc.engines.ppocr.runtime.model_parts import detection_part
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.plugins import recognizers, resolve
from ocrsvc.results import EngineInfo
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


class LineEngine:
    """The detector of the model `title`, and a recognizer that opens a reader per handle.

    `latin` reads Latin words for a recognizer that knows no Latin letters.
    """

    def __init__(
        self,
        name: str,
        recognizer: LineRecognizer,
        latin: LineRecognizer | None,
        detector: Detector,
        title: str,
    ) -> None:
        self._recognizer, self._latin, self._detector = recognizer, latin, detector
        info = recognizer.info
        self.traits = EngineTraits(serial_open=info.serial_open)
        model = f"{info.model} behind the detector of {title}"
        provider = f"{info.provider}, {detector.provider} for detection"
        self._info = EngineInfo(name, model, info.version, detector.device, "fp32", provider)

    def describe(self) -> EngineInfo:
        """Return the engine's name, model, version and device."""
        return self._info

    def open_handle(self) -> PageHandle:
        """Open a handle for the calling thread, with readers of its own. Raises EngineUnavailable."""
        info = self._recognizer.info
        with contextlib.ExitStack() as closing:
            reader: OwnedLineReader = self._recognizer.open_reader()
            closing.callback(reader.close)
            latin = self._latin.open_reader() if self._latin is not None else None
            scripts = [Script({"greedy": reader, "beam": reader}, info.languages, info.direction)]
            close = closing.pop_all().close
        return PageHandle(self._detector, scripts, SharedThreads(1), close, find_grid=find_grid, latin=latin)

    def close(self) -> None:
        """Do nothing: libraries cannot be unloaded safely, and sessions are freed when they are unused."""


def open_line_engine(settings: Settings, plan: ThreadPlan, model: ModelVersion | None = None) -> LineEngine:
    """Open the engine of the recognizer that OCRSVC_ENGINE or the model names. Raises EngineUnavailable, BadModel."""
    recognizer: LineRecognizer = resolve(recognizers()[settings.engine].opener)(settings, model)
    latin = None if recognizer.info.reads_latin else resolve(recognizers()["ppocr"].opener)(settings, None)
    cv2.setNumThreads(plan.library_threads)
    part = detection_part(model)
    cache = ModelCache(settings.model_cache or default_folder(), part.version.key)
    detector = open_detector(part, SessionConfig(settings.device, plan.library_threads), cache)
    title = part.version.description.title or part.version.name
    return LineEngine(settings.engine, recognizer, latin, detector, title)
