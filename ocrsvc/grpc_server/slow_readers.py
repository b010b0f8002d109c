"""Detects clients that do not read what is sent to them, or read it too slowly."""

from __future__ import annotations

from typing import Final

GRACE_S: Final = 10.0
"""How long a client may leave its answers unread."""

LEAST_BYTES_PER_S: Final = 1000.0
"""At which rate it must read them on average, beyond that time: a byte now and then is no reading."""


class StallDetector:
    """Measures how fast the client reads what one connection, or one stream, has to send."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._taken_bytes = 0

    def note(self, now_s: float, *, left: bool, taken: int = 0) -> None:
        """So many bytes were taken now; whether there are more."""
        if not left:
            self._since_s, self._taken_bytes = None, 0
            return
        self._since_s = now_s if self._since_s is None else self._since_s
        self._taken_bytes += taken

    def is_stalled(self, now_s: float) -> bool:
        """Whether the client has read too little for the time that it had."""
        return self._since_s is not None and now_s - self._since_s > GRACE_S + self._taken_bytes / LEAST_BYTES_PER_S
