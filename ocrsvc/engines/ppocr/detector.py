"""How is the detection model run: by one thread beside other pages, by all of them for a page that is alone?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detect import COARSE_PX, STRIDE
from ocrsvc.engines.ppocr.session import Running, Session, Tensor, open_session
from ocrsvc.engines.ppocr.store import Store

# Up to that many pixels, in three planes, a run's memory is kept for the next one; see Running.arena_values.
ARENA_VALUES: Final = 3 * 960 * 768


class Detector:
    """The detection model; safe to share between threads.

    A session with two threads takes 0.6 of the time for a lone page, and 1.13 of the processor time for each of several
    pages: so there are two sessions, and whether the page is alone decides. Both give the same bits.

    Args:
        narrow: Runs on the calling thread.
        wide: Runs on as many threads as the crew has hands; None where one hand is all there is.
        crew: Knows whether the page is alone.
    """

    def __init__(self, narrow: Session, wide: Session | None = None, crew: Crew | None = None) -> None:
        self._narrow = narrow
        self._wide = wide
        self._crew = crew
        self.device, self.provider = narrow.device, narrow.provider

    def run(self, tensor: Tensor) -> Tensor:
        """(1, 3, h, w) float32 in, (1, 1, h, w) probabilities out."""
        if self._wide is None or self._crew is None:
            return _probabilities(self._narrow, tensor)
        with self._crew.all_hands() as alone:
            return _probabilities(self._wide if alone else self._narrow, tensor)

    def padded_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(w, h) at which the model is run for an input of (w, h) pixels."""
        return size

    def run_arrays(self, array: Any) -> Any:
        """The same where the session computes: an array of the card in, one of the card out."""
        return self._narrow.run_arrays(array)[0]

    def warm_up(self) -> None:
        """One run of each session at an ordinary size."""
        page = np.zeros((1, 3, COARSE_PX // 2 // STRIDE * STRIDE, COARSE_PX), np.float32)
        for session in (self._narrow, self._wide):
            if session is not None:
                _probabilities(session, page)


def open_detector(running: Running, store: Store | None = None, crew: Crew | None = None) -> Detector:
    """Load the detection model. Raises EngineUnavailable.

    Args:
        running: Device and threads of the narrow session.
        store: Keeps the optimised model.
        crew: Whose idle hands a lone page may use; None for none.
    """
    narrow = open_session(models.DETECTION, replace(running, arena_values=ARENA_VALUES), store)
    if crew is None or crew.hands <= running.threads or narrow.device != "cpu":
        return Detector(narrow)
    return Detector(narrow, open_session(models.DETECTION, replace(running, threads=crew.hands), store), crew)


def _probabilities(session: Session, tensor: Tensor) -> Tensor:
    found: Tensor = session.run(tensor)[0]
    return found
