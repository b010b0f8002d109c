"""Decides when a request that takes long is sent to a second service, and how many may be."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from ocrsvc.client.balancing.rules import Rules

LEAST_ANSWERS: Final = 20
"""Answers after which it is known what is long."""

_ANSWERS: Final = 256
_SAVED: Final = 10.0
_SAVED_EACH_SECOND: Final = 0.5
# Sorting for every request would cost more than it tells.
_SORTED_EVERY: Final = 16


class Hedging:
    """What is long, from the latest answers, and how many requests may be sent twice; for any thread.

    Each request saves a share of a second one, and so does each second, for clients with few requests; at most ten are
    saved, so that not everything is asked twice when a service becomes slow.

    Args:
        rules: What is long, and the share.
        clock: Seconds, from any beginning.
    """

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self._share, self._percentile = rules.hedge_share, rules.hedge_percentile
        self._clock, self._saved_s = clock, clock()
        self._lock = threading.Lock()
        self._latest: deque[float] = deque(maxlen=_ANSWERS)
        self._saved = 1.0
        self._noted = 0
        self._delay_s = rules.hedge_first_s

    def begun(self) -> None:
        """One more request is under way."""
        if self._share:
            with self._lock:
                self._saved = min(_SAVED, self._saved + self._share)

    def delay_s(self, parts: int = 1) -> float | None:
        """Seconds after which a request of so many parts is long, as is known now; None where none is sent twice."""
        return self._delay_s * parts if self._share else None

    def note(self, took_s: float, parts: int = 1) -> None:
        """A request was answered, or given up for another that was faster, after so many seconds."""
        if not self._share:
            return
        with self._lock:
            self._latest.append(took_s / parts)
            self._noted += 1
            if self._noted == LEAST_ANSWERS or (self._noted > LEAST_ANSWERS and self._noted % _SORTED_EVERY == 0):
                ranked = sorted(self._latest)
                self._delay_s = ranked[min(len(ranked) - 1, int(len(ranked) * self._percentile))]

    def spend(self) -> bool:
        """Whether one more may be sent twice; it is then counted."""
        if not self._share:
            return False
        with self._lock:
            now_s = self._clock()
            self._saved = min(_SAVED, self._saved + (now_s - self._saved_s) * _SAVED_EACH_SECOND)
            self._saved_s = now_s
            if self._saved < 1:
                return False
            self._saved -= 1
            return True
