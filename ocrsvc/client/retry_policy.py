"""Decides whether a failed try is repeated, and after how long."""

from __future__ import annotations

import random
import time
from typing import Final

from ocrsvc.errors import DeadlineExceeded, OcrsvcError, Refused, Unreachable

BROKEN_TRIES: Final = 5
"""Tries after which a connection that breaks is given up; a refusal is retried until the deadline."""

FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 5.0


def wait_s(error: OcrsvcError, broken: int, left_s: float, chance: float) -> float | None:
    """Seconds until the next try; None when the error stands.

    Args:
        error: What the last try ended with.
        broken: How many tries have ended with a broken connection so far.
        left_s: Seconds until the deadline.
        chance: A random number in [0, 1), so that clients that failed together do not retry together.
    """
    if isinstance(error, Refused):
        # A service that says "at once" must not be asked in a busy loop.
        wait = max(FIRST_WAIT_S, error.retry_after_s) * (1 + chance / 4)
    elif isinstance(error, Unreachable) and broken < BROKEN_TRIES:
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (broken - 1)) * (0.5 + chance / 2)
    else:
        return None
    return wait if wait < left_s else None


def no_answer_in_time(timeout_s: float, last: OcrsvcError | None) -> DeadlineExceeded:
    """The error of a request whose time is over, with what its last try ended with."""
    said = f" The last try ended with: {last.detail}" if last else ""
    return DeadlineExceeded(f"No answer came within {timeout_s:g} seconds.{said}", "Allow more time, or try later.")


class Tries:
    """The tries for one image: how much time is left, and how long to wait before the next."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._broken = 0
        self._last: OcrsvcError | None = None

    def left_s(self) -> float:
        """Seconds until the deadline; raises DeadlineExceeded when there are none."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise no_answer_in_time(self._timeout_s, self._last)
        return left_s

    def pause_s(self, error: OcrsvcError) -> float:
        """Seconds until the next try after this error; raises the error when it stands."""
        self._broken += isinstance(error, Unreachable)
        self._last = error
        pause_s = wait_s(error, self._broken, self._deadline - time.monotonic(), random.random())  # noqa: S311  no secret
        if pause_s is None:
            raise error
        return pause_s
