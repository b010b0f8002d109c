"""How is the detection model run: by one thread beside other pages, by all of them for a page that is alone?

A CPU runs a page in exactly its own size. A card searches for kernels at every new size, so there the sides are padded
to a coarse grid, the page at the top left: what is found depends on the page alone, as everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detect import COARSE_PX, FINE_PX, STRIDE
from ocrsvc.engines.ppocr.lanes import share
from ocrsvc.engines.ppocr.providers import Profile
from ocrsvc.engines.ppocr.session import Runner, Running, Session, Tensor, open_session, open_sessions
from ocrsvc.engines.ppocr.store import Store

# Up to that many pixels, in three planes, a run's memory is kept for the next one; see Running.arena_values.
ARENA_VALUES: Final = 3 * 960 * 768

SIDES_PX: Final = (160, 320, 480, 640, 800, 960, 1280, 1600, 2048)
"""Sides to which a page is padded on a card."""

# Beyond those only strips go, whose long side has no end.
_STRIP_STEP_PX: Final = 1024

PROFILES: Final = (
    Profile((1, 3, 160, 160), (1, 3, 960, 800), (1, 3, COARSE_PX, COARSE_PX)),
    Profile((1, 3, 160, 160), (1, 3, 1600, 1280), (1, 3, FINE_PX, FINE_PX)),
)
"""The first looks at all pages, and the second looks at most; CUDA runs what TensorRT is not built for."""

_WARM_PX: Final = (
    *((height, width) for height in SIDES_PX for width in SIDES_PX if max(height, width) in (640, 960)),
    *((1280, 960), (960, 1280), (1600, 1280), (1280, 1600), (2048, 1600), (1600, 2048), (2048, 2048)),
)
"""The sides of the first looks, and of second looks at pages of the usual forms."""


class Detector:
    """The detection model; safe to share between threads.

    A session with two threads takes 0.6 of the time for a lone page, and 1.13 of the processor time for each of several
    pages: so there are two sessions, and whether the page is alone decides. Both give the same bits.

    Args:
        narrow: Runs on the calling thread.
        wide: Runs on as many threads as the crew has hands; None where one hand is all there is.
        crew: Knows whether the page is alone.
    """

    def __init__(self, narrow: Runner, wide: Session | None = None, crew: Crew | None = None) -> None:
        self._narrow = narrow
        self._wide = wide
        self._crew = crew
        self.device, self.provider, self.precision = narrow.device, narrow.provider, narrow.precision

    def run(self, tensor: Tensor) -> Tensor:
        """(1, 3, h, w) float32 in, (1, 1, h, w) probabilities out."""
        if self.device != "cpu":
            height, width = tensor.shape[2:]
            return _probabilities(self._narrow, pad(tensor))[:, :, :height, :width]
        if self._wide is None or self._crew is None:
            return _probabilities(self._narrow, tensor)
        with self._crew.all_hands() as alone:
            return _probabilities(self._wide if alone else self._narrow, tensor)

    def warm_up(self) -> None:
        """One run of each session at an ordinary size; on a card at each that is usual."""
        sizes = _WARM_PX if self.device != "cpu" else ((COARSE_PX // 2 // STRIDE * STRIDE, COARSE_PX),)
        sessions = (*self._narrow.sessions, *(self._wide.sessions if self._wide is not None else ()))
        for height, width in sizes:
            tensor = np.zeros((1, 3, height, width), np.float32)
            for session in sessions:
                session.warm_up(tensor)


def pad(tensor: Tensor) -> Tensor:
    """(1, 3, h, w) float32 with its sides rounded up by `side_on_card`, the last row and column repeated.

    The network pools over the whole page, so padding moves boxes a little; measured on ten corpus pages, 97 % of the
    corners stay within 3 px with repeated edges, 92 to 95 % with gray, black, white or mirrored ones.
    """
    height, width = tensor.shape[2:]
    sides = (0, side_on_card(height) - height), (0, side_on_card(width) - width)
    return np.pad(tensor, ((0, 0), (0, 0), *sides), mode="edge")


def side_on_card(side: int) -> int:
    """The padded side, in pixels, of one of `side`."""
    return next((size for size in SIDES_PX if size >= side), -(-side // _STRIP_STEP_PX) * _STRIP_STEP_PX)


def open_detector(running: Running, store: Store | None = None, crew: Crew | None = None) -> Detector:
    """Load the detection model. Raises EngineUnavailable.

    Args:
        running: Device and threads of the narrow session.
        store: Keeps the optimised model.
        crew: Whose idle hands a lone page may use; None for none.
    """
    kept = replace(running, arena_values=ARENA_VALUES)
    on_card = replace(running.card, kept_values=3 * COARSE_PX * COARSE_PX, profiles=PROFILES)
    narrow = share(open_sessions(models.DETECTION, replace(kept, card=on_card), store))
    if crew is None or crew.hands <= running.threads or narrow.device != "cpu":
        return Detector(narrow)
    return Detector(narrow, open_session(models.DETECTION, replace(running, threads=crew.hands), store), crew)


def _probabilities(session: Runner, tensor: Tensor) -> Tensor:
    found: Tensor = session.run(tensor)[0]
    return found
