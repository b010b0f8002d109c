"""The engine tr_crnn: lines found by ppocr's detector, read by the recognizer of Tr 2.8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.model.version import TITLE
from ocrsvc.engines.ppocr.handle import PageHandle
from ocrsvc.engines.ppocr.pipeline.detector import open_detector
from ocrsvc.engines.ppocr.pipeline.recognizer import Script
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, built_in_part
from ocrsvc.engines.ppocr.runtime.providers import Device
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.engines.tr_crnn.binding import CrnnHandle, CrnnLibrary, Steps
from ocrsvc.errors import EngineFailed
from ocrsvc.results import Check, EngineInfo, Pixels, no_check
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

MARGIN: Final = 0.1
"""Share of its height that a line gets as margin on each side. Over 110 lines cropped from pages of many kinds the
character error rate is 0.016 with it and 0.030 without; 0.05 and 0.2 read like 0.1."""

HEIGHT: Final = 48

MOST_WIDTH_PER_HEIGHT: Final = 64
"""Most widths per height; a longer line is squeezed to it. The time grows with the width: about 15 s at 64."""


class TrCrnnLineReader:
    """Reads lines with a handle of its own: open it, use it and close it in one thread. Raises EngineUnavailable."""

    def __init__(self, library: CrnnLibrary) -> None:
        self._characters = library.characters
        self._handle: CrnnHandle = library.open()

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """See engines.line_recognizer.LineReader: the height to which Tr scales a line itself, in its own shape."""
        return max(HEIGHT // 2, round(along * HEIGHT / max(across, 1.0))), HEIGHT

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """The text of each upright line, (h, w) gray or (h, w, 3) BGR, uint8, not empty. Raises EngineFailed."""
        return [self._read_one(crop, check) for crop in crops]

    def close(self) -> None:
        """Free the model. A second call does nothing."""
        self._handle.close()

    def _read_one(self, crop: Pixels, check: Check) -> LineText:
        check()
        return decode(self._handle.run(prepare(crop)), self._characters)


def prepare(crop: Pixels) -> Pixels:
    """The line as Tr reads it best: gray, contiguous, not too long, in a margin of its background's colour."""
    gray = cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY) if crop.ndim == 3 else crop
    height, width = gray.shape
    if width > MOST_WIDTH_PER_HEIGHT * height:
        gray = cv2.resize(gray, (MOST_WIDTH_PER_HEIGHT * height, height), interpolation=cv2.INTER_AREA)
    margin = max(1, round(MARGIN * height))
    edge = np.concatenate((gray[0], gray[-1], gray[:, 0], gray[:, -1]))
    colour = float(np.median(edge))
    framed = cv2.copyMakeBorder(gray, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=colour)
    return np.ascontiguousarray(framed, np.uint8)


def decode(steps: Steps, characters: str) -> LineText:
    """Steps to text: blanks go, repeats collapse; the confidence is the mean over the steps that are not blank.

    Raises EngineFailed: an index is outside the table.
    """
    indices, not_blank = steps.indices, steps.indices > 0
    if indices.max(initial=0) > len(characters):
        raise EngineFailed(f"Tr named the character {indices.max()} of a table of {len(characters)}.")
    if not not_blank.any():
        return LineText("", 0.0)
    first = not_blank & (indices != np.concatenate(([0], indices[:-1])))
    text = "".join(characters[index - 1] for index in indices[first])
    return LineText(text, float(np.clip(steps.probabilities[not_blank].mean(), 0.0, 1.0)))


class TrCrnnEngine:
    """The loaded library and the detector; each handle opens a recognizer of its own (about 150 MB).

    `device` is where the detector runs; the recognizer knows the CPU only. Raises EngineUnavailable.
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
        scripts = [Script({"greedy": reader, "beam": reader})]
        return PageHandle(self._detector, scripts, SharedThreads(1), reader.close)

    def close(self) -> None:
        """The library stays loaded: it cannot be unloaded safely; the sessions go with the last reference."""


def open_tr_crnn(settings: Settings, plan: ThreadPlan) -> TrCrnnEngine:
    """The engine as the settings and the thread plan want it. Raises EngineUnavailable."""
    return TrCrnnEngine(settings.device, plan.library_threads)
