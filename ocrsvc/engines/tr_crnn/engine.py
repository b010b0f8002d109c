"""The engine tr_crnn: lines found by ppocr's detector, read by the recognizer of Tr 2.8."""

from __future__ import annotations

import cv2

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.model.version import TITLE
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import open_detector
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, built_in_part
from ocrsvc.engines.ppocr.runtime.providers import Device
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.engines.tr_crnn.binding import CrnnLibrary
from ocrsvc.engines.tr_crnn.lines import TrCrnnLineReader
from ocrsvc.readings import EngineInfo
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan


class TrCrnnEngine:
    """The loaded library and the detector; each handle opens a recognizer of its own (about 150 MB).

    Args:
        device: Where the detector runs; the recognizer knows the CPU only.
        intra_op_threads: Threads inside one run of the detector.

    Raises:
        EngineUnavailable: Wrong machine, a package is missing, or the device cannot be used.
    """

    traits = EngineTraits(serial_open=True)

    def __init__(self, device: Device, intra_op_threads: int) -> None:
        cv2.setNumThreads(intra_op_threads)
        self._library = CrnnLibrary()
        self._detector = open_detector(built_in_part(DETECTION), SessionConfig(device, intra_op_threads))

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine."""
        model = f"Tr CRNN behind the detector of {TITLE}"
        provider = f"OpenCV inside Tr on the CPU, {self._detector.provider} for detection"
        return EngineInfo("tr_crnn", model, self._library.version, self._detector.device, "fp32", provider)

    def open_handle(self) -> PageHandle:
        """See engines.contract.Engine."""
        reader = TrCrnnLineReader(self._library)
        return PageHandle(self._detector, {"greedy": reader, "beam": reader}, SharedThreads(1), reader.close)

    def close(self) -> None:
        """The library stays loaded: it cannot be unloaded safely; the sessions go with the last reference."""


def open_tr_crnn(settings: Settings, plan: ThreadPlan) -> TrCrnnEngine:
    """The engine as the settings and the thread plan want it. Raises EngineUnavailable."""
    return TrCrnnEngine(settings.device, plan.library_threads)
