"""How is the detection model run: by one thread beside other pages, by all of them where a page is alone or large?"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ocrsvc.engines.ppocr import models
from ocrsvc.engines.ppocr.crew import Crew
from ocrsvc.engines.ppocr.detect import COARSE_PX, STRIDE, ProbabilityMap
from ocrsvc.engines.ppocr.session import Running, Session, open_session
from ocrsvc.engines.ppocr.store import Store
from ocrsvc.engines.ppocr.tensors import to_tensor
from ocrsvc.records import Pixels

# Up to that many pixels, in three planes, a run's memory is kept for the next one; see Running.arena_values. A run on
# more takes hundreds of megabytes.
ARENA_VALUES: Final = 3 * 960 * 768
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

    def wait(self, ticket: Ticket) -> None:
        """Return when the turn has come."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_come(ticket))

    def end(self, ticket: Ticket) -> None:
        """The look is done."""
        with self._changed:
            self._under_way -= ticket.size
            self._changed.notify_all()


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

    def __init__(self, narrow: Session, wide: Session | None = None, crew: Crew | None = None) -> None:
        self._narrow = narrow
        self._wide = wide
        self._crew = crew
        self._turns = Turns((crew.hands if crew is not None else 1) * ARENA_VALUES)
        self.device, self.provider, self.precision = narrow.device, narrow.provider, narrow.precision

    def run(self, pixels: Pixels) -> ProbabilityMap:
        """(h, w[, 3]) uint8 in, (h, w) probabilities out; the sides must be multiples of STRIDE."""
        if self._wide is None or self._crew is None:
            return _probabilities(self._narrow, pixels)
        size = 3 * pixels.shape[0] * pixels.shape[1]
        with self._turn(size, self._crew), self._crew.all_hands() as alone:
            return _probabilities(self._wide if alone or size > ARENA_VALUES else self._narrow, pixels)

    @contextmanager
    def _turn(self, size: int, crew: Crew) -> Iterator[None]:
        """A turn; while the page waits for it, another one may use its hand."""
        ticket = self._turns.queue(size)
        if not self._turns.has_come(ticket):
            with crew.hand_laid_down():
                self._turns.wait(ticket)
        try:
            yield
        finally:
            self._turns.end(ticket)

    def warm_up(self) -> None:
        """One run of each session at an ordinary size."""
        page = np.zeros((COARSE_PX // 2 // STRIDE * STRIDE, COARSE_PX), np.uint8)
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
    wide = replace(running, threads=crew.hands, arena_values=WIDE_ARENA_VALUES)
    return Detector(narrow, open_session(models.DETECTION, wide, store), crew)


def _probabilities(session: Session, pixels: Pixels) -> ProbabilityMap:
    """The tensor is made here, because a page that waits for its turn should not hold 12 bytes a pixel."""
    found: ProbabilityMap = session.run(to_tensor(pixels))[0][0, 0]
    return found
