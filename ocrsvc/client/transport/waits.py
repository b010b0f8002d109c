"""What an exchange needs from whoever runs it: to wait for sockets, or to have a function called that may block."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ocrsvc.client.balancing.changes import Seen

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a socket is ready.

    Attributes:
        fd: File descriptor of the socket.
        events: select.POLLIN or select.POLLOUT.
        limit_s: Seconds that this wait may take, if not the whole time of the request.
    """

    fd: int
    events: int
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function that may block, such as a look-up of a name; what it returns, or raises, comes back."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class WaitForAny:
    """Wait for any of several sockets, or a time; the file descriptors that are ready come back, perhaps none.

    Attributes:
        waits: The sockets; none is a pause.
        seconds: At most.
        change: What ends a pause sooner.
    """

    waits: tuple[Wait, ...]
    seconds: float
    change: Seen | None = None


class Expired(Exception):
    """Thrown into an exchange whose wait has taken as long as it may."""


Exchange = Generator[Wait | Call, Any, T]
"""Yields what it needs, returns its result."""

Steps = Generator[WaitForAny | Call, Any, T]
"""The same for a whole request, which may have several exchanges under way."""
