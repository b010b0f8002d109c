"""Decides whether a failed try is repeated, and after how long. Pure: values in, value out."""

from __future__ import annotations

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


def too_late(timeout_s: float, last: OcrsvcError | None = None) -> DeadlineExceeded:
    """The error when no answer came in time, with what the last try said."""
    said = f" The last try ended with: {last.detail}" if last else ""
    return DeadlineExceeded(f"No answer came within {timeout_s:g} seconds.{said}", "Allow more time, or try later.")
