"""Runs the detection model: on one thread beside other pages, on all threads where a page is alone or large.

A CPU runs a page in exactly its own size. A GPU searches for kernels at every new size, so there the sides are padded
to a coarse grid, the page at the top left: what is found depends on the page alone, as everywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import cv2
import numpy as np

from ocrsvc.engines.ppocr.pipeline.db_postprocess import COARSE_PX, FINE_PX, STRIDE, ProbabilityMap
from ocrsvc.engines.ppocr.pipeline.network_input import to_tensor
from ocrsvc.engines.ppocr.runtime import models
from ocrsvc.engines.ppocr.runtime.model_cache import Store
from ocrsvc.engines.ppocr.runtime.open_model import open_session, open_sessions
from ocrsvc.engines.ppocr.runtime.providers import Profile
from ocrsvc.engines.ppocr.runtime.session import Runner, Running, Session
from ocrsvc.engines.ppocr.runtime.session_pool import share
from ocrsvc.engines.ppocr.runtime.shared_threads import SharedThreads
from ocrsvc.records import Check, Pixels, no_check

# Up to that many pixels, in three planes, a run's memory is kept for the next one; see Running.arena_values. A run on
# more takes hundreds of megabytes.
ARENA_VALUES: Final = 3 * 960 * 768
_CHECK_S: Final = 0.25
WIDE_ARENA_VALUES: Final = 1  # of the session with many threads: nothing is kept


@dataclass(eq=False, slots=True)
class Ticket:
    """A look that wants to be run, or is."""

    size: int


class Turns:
    """Looks that are run together are no larger than the largest single one so far, so that they need no more memory.

    First come, first served. All calls may come from any thread.

    Args:
        least: The size up to which looks are run together whatever came before.
    """

    def __init__(self, least: int) -> None:
        self._largest = least
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._under_way = 0

    def queue(self, size: int) -> Ticket:
        """A ticket for a look of that size, which must come to its turn and be ended."""
        ticket = Ticket(size)
        with self._changed:
            self._waiting.append(ticket)
        return ticket

    def has_come(self, ticket: Ticket) -> bool:
        """Whether the turn has come, and so has begun."""
        with self._changed:
            self._largest = max(self._largest, ticket.size)
            if self._waiting[0] is not ticket or self._under_way + ticket.size > self._largest:
                return False
            self._waiting.popleft()
            self._under_way += ticket.size
            self._changed.notify_all()
            return True

    def wait(self, ticket: Ticket, check: Check = no_check) -> None:
        """Return when the turn has come; what `check` raises meanwhile gives the ticket back."""
        with self._changed:
            try:
                while not self._changed.wait_for(lambda: self.has_come(ticket), _CHECK_S):
                    check()
            except BaseException:
                self._waiting.remove(ticket)
                self._changed.notify_all()
                raise

    def end(self, ticket: Ticket) -> None:
        """The look is done."""
        with self._changed:
            self._under_way -= ticket.size
            self._changed.notify_all()


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
    pages: so there are two sessions, and whether the page is alone decides. Both give the same bits. Looks take turns
    where they would need more memory together than one alone; a large one has all threads, because others wait for it.

    Args:
        narrow: Runs on the calling thread.
        wide: Runs on as many threads as the crew has hands; None where one hand is all there is.
        crew: Knows whether the page is alone.
    """

    def __init__(self, narrow: Runner, wide: Session | None = None, crew: SharedThreads | None = None) -> None:
        self._narrow = narrow
        self._wide = wide
        self._crew = crew
        self._turns = Turns((crew.hands if crew is not None else 1) * ARENA_VALUES)
        self.device, self.provider, self.precision = narrow.device, narrow.provider, narrow.precision

    def run(self, pixels: Pixels, check: Check = no_check) -> ProbabilityMap:
        """(h, w[, 3]) uint8 in, (h, w) probabilities out; the sides must be multiples of STRIDE.

        `check` is called before the model runs, and during the wait for its turn.
        """
        height, width = pixels.shape[:2]
        check()
        if self.device != "cpu":
            return _probabilities(self._narrow, pad(pixels))[:height, :width]
        if self._wide is None or self._crew is None:
            return _probabilities(self._narrow, pixels)
        size = 3 * height * width
        with self._turn(size, self._crew, check), self._crew.all_hands() as alone:
            return _probabilities(self._wide if alone or size > ARENA_VALUES else self._narrow, pixels)

    @contextmanager
    def _turn(self, size: int, crew: SharedThreads, check: Check) -> Iterator[None]:
        """A turn; while the page waits for it, another one may use its hand."""
        ticket = self._turns.queue(size)
        if not self._turns.has_come(ticket):
            with crew.hand_laid_down():
                self._turns.wait(ticket, check)
        try:
            yield
        finally:
            self._turns.end(ticket)

    def padded_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(w, h) at which the model is run for an input of (w, h) pixels; a longer one repeats its own edge."""
        return size if self.device == "cpu" else (side_on_card(size[0]), side_on_card(size[1]))

    def run_arrays(self, array: Any) -> Any:
        """(1, 3, h, w) float32 of `padded_size` in, (1, 1, h, w) probabilities out, both where the session computes."""
        return self._narrow.run_arrays(array)[0]

    def warm_up(self) -> None:
        """One run of each session at an ordinary size; those of a card were warmed when they were opened."""
        for session in (self._narrow, self._wide):
            if session is not None and self.device == "cpu":
                _warm_up(session, ((COARSE_PX // 2 // STRIDE * STRIDE, COARSE_PX),))


def _warm_up(runner: Runner, sizes: Sequence[tuple[int, int]]) -> None:
    """Run all its sessions at these heights and widths. On a card nobody else may use them meanwhile."""
    for height, width in sizes:
        tensor = np.zeros((1, 3, height, width), np.float32)
        for session in runner.sessions:
            session.warm_up(tensor)


def pad(pixels: Pixels) -> Pixels:
    """(h, w[, 3]) uint8 with its sides rounded up by `side_on_card`, the last row and column repeated.

    The network pools over the whole page, so padding moves boxes a little; measured on ten corpus pages, 97 % of the
    corners stay within 3 px with repeated edges, 92 to 95 % with gray, black, white or mirrored ones.
    """
    height, width = pixels.shape[:2]
    below, beside = side_on_card(height) - height, side_on_card(width) - width
    return cast(Pixels, cv2.copyMakeBorder(pixels, 0, below, 0, beside, cv2.BORDER_REPLICATE))


def side_on_card(side: int) -> int:
    """The padded side, in pixels, of one of `side`."""
    return next((size for size in SIDES_PX if size >= side), -(-side // _STRIP_STEP_PX) * _STRIP_STEP_PX)


def open_detector(running: Running, store: Store | None = None, crew: SharedThreads | None = None) -> Detector:
    """Load the detection model. Raises EngineUnavailable.

    Args:
        running: Device and threads of the narrow session.
        store: Keeps the optimised model.
        crew: Whose idle hands a lone page may use; None for none.
    """
    kept = replace(running, arena_values=ARENA_VALUES)
    on_card = replace(running.card, kept_values=3 * COARSE_PX * COARSE_PX, profiles=PROFILES)
    narrow = share(open_sessions(models.DETECTION, replace(kept, card=on_card), store))
    if narrow.device != "cpu":
        _warm_up(narrow, _WARM_PX)
    if crew is None or crew.hands <= running.threads or narrow.device != "cpu":
        return Detector(narrow)
    wide = replace(running, threads=crew.hands, arena_values=WIDE_ARENA_VALUES)
    return Detector(narrow, open_session(models.DETECTION, wide, store), crew)


def _probabilities(session: Runner, pixels: Pixels) -> ProbabilityMap:
    """The tensor is made here, because a page that waits for its turn should not hold 12 bytes a pixel."""
    found: ProbabilityMap = session.run(to_tensor(pixels))[0][0, 0]
    return found
