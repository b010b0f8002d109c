"""Logs when the store of the API keys stops answering, when nobody is admitted for it any more, and when it is back."""

from __future__ import annotations

import logging
from typing import Final, Literal

from ocrsvc.errors import KeysUnavailable

LOGGER: Final = logging.getLogger("ocrsvc.access")

_State = Literal["answering", "failing", "closed"]


class OutageLog:
    """Each of the three once for each outage; for the gate's thread.

    Args:
        stale_s: How long the keys in memory stay good.
    """

    def __init__(self, stale_s: float) -> None:
        self._stale_s = stale_s
        self._state: _State = "answering"

    def failed(self, error: Exception, *, is_ready: bool) -> None:
        """The store does not answer.

        Args:
            error: Why; what is no KeysUnavailable is logged with its stack.
            is_ready: Whether the keys in memory are still good.
        """
        state: _State = "failing" if is_ready else "closed"
        if state == self._state:
            return
        self._state = state
        why = error.reason if isinstance(error, KeysUnavailable) else f"An unexpected {type(error).__name__}."
        stack = None if isinstance(error, KeysUnavailable) else error
        if is_ready:
            LOGGER.warning(
                "The keys cannot be read again: %s Those in memory are good for %g s after they were read last.",
                *(why, self._stale_s),
                exc_info=stack,
            )
        else:
            LOGGER.error("Nobody is admitted: %s", why, exc_info=stack)

    def answered(self) -> None:
        """The store answers."""
        if self._state != "answering":
            LOGGER.info("The store of the API keys answers again.")
        self._state = "answering"
