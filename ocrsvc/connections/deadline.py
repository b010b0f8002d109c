"""How long a connection may take in all, and what ends it before: whatever waits, waits in small steps."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ocrsvc.errors import DeadlineExceeded, UrlUnavailable

T = TypeVar("T")

_STEP_S: Final = 0.25


class Deadline:
    """The end of one exchange, its redirects included; for the thread that waits.

    Args:
        limit_s: Seconds that the caller has from now on.
        most_s: Seconds that one exchange may take, whoever asks.
        check: Called in between; raises what ends the exchange, as when nobody waits for it any more.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        limit_s: float,
        most_s: float,
        check: Callable[[], object] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check, self._clock = check, clock
        self._end_s = clock() + min(limit_s, most_s)
        self._is_callers = limit_s <= most_s

    def step_s(self) -> float:
        """How long may be waited now at once. Raises what `check` raises, DeadlineExceeded and UrlUnavailable."""
        self._check()
        left_s = self._end_s - self._clock()
        if left_s > 0:
            return min(left_s, _STEP_S)
        if self._is_callers:
            raise DeadlineExceeded(
                "The deadline passed while the URL was fetched.", "Give the request more time, or send the file itself."
            )
        raise UrlUnavailable("The URL could not be fetched in time.", "Send the file itself, or try again later.")

    def repeat(self, wire: socket.socket, act: Callable[[], T]) -> T:
        """What a call gives that waits for a socket. Raises as `step_s`, and OSError."""
        while True:
            wire.settimeout(self.step_s())
            try:
                return act()
            except TimeoutError:
                continue

    def wait_until_writable(self, wire: socket.socket) -> None:
        """For a connection that is being made. Raises as `step_s`."""
        poll = select.poll()
        poll.register(wire, select.POLLOUT)
        while not poll.poll(1000 * self.step_s()):
            pass
