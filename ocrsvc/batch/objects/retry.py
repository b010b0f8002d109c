"""Requests that are sent again: with growing, random waits, for a bounded time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ocrsvc.batch.objects.faults import has_answer, is_transient, os_error_of

T = TypeVar("T")

_ATTEMPT_S: Final = 60.0
_SLOW_BYTES_PER_S: Final = 32 * 1024


def attempt_s(size: int | None = 0) -> float:
    """How long one request may take that carries so many bytes; None is unknown. A slow line is no fault."""
    return _ATTEMPT_S + (16 * 1024 * 1024 if size is None else size) / _SLOW_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How long a request is sent again.

    Attributes:
        total_s: From the first try of a request to the beginning of its last.
        unheard_s: The same while nothing has ever answered: an address or a network that is wrong.
        first_wait_s, most_wait_s: Between two tries: a random part of a time that doubles.
    """

    total_s: float = 300.0
    unheard_s: float = 20.0
    first_wait_s: float = 0.2
    most_wait_s: float = 10.0


class Retries:
    """Sends requests, again and again if need be; for any thread.

    Args:
        limits: For how long.
        clock: Seconds.
        sleep: Waits so many seconds.

    Attributes:
        repeated: How many requests were sent again.
    """

    def __init__(
        self,
        limits: RetryLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limits = limits or RetryLimits()
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._was_heard = False
        self._random = random.SystemRandom()
        self.repeated = 0

    def send(self, what: str, request: Callable[[], T], total_s: float | None = None) -> T:
        """What the request gives. Raises OSError, which says what was asked.

        Args:
            what: The request, for people.
            request: Sends it once.
            total_s: For how long it is sent again; the limits' where None.
        """
        began, wait_s = self._clock(), self._limits.first_wait_s
        while True:
            try:
                result = request()
            except (TypeError, AttributeError, AssertionError, NameError):
                # A mistake in a program, which is told as it is.
                raise
            except Exception as error:
                self._was_heard = self._was_heard or has_answer(error)
                if not is_transient(error) or self._is_late(began, wait_s, total_s):
                    raise os_error_of(error, what) from error
                with self._lock:
                    self.repeated += 1
            else:
                self._was_heard = True
                return result
            self._sleep(wait_s * self._random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, self._limits.most_wait_s)

    def _is_late(self, began: float, wait_s: float, total_s: float | None) -> bool:
        most_s = self._limits.total_s if total_s is None else total_s
        if not self._was_heard:
            most_s = min(most_s, self._limits.unheard_s)
        return self._clock() - began + wait_s > most_s
