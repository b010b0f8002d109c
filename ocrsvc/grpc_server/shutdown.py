"""The graceful end of one HTTP/2 connection: new calls are sent elsewhere, those that are under way are answered.

First a GOAWAY that refuses nothing, because calls may be under way; once the client has seen it (it answers the ping
behind it), the one that names the last call that is served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h2.connection import ConnectionState, H2Connection

from ocrsvc.grpc_server.sender import Sender

_ANY_STREAM: Final = 2**31 - 1
_PING: Final = b"goodbye!"
_PING_S: Final = 2.0


class Shutdown:
    """Where the graceful end of a connection stands.

    Args:
        h2: Knows the last call.
        sender: Sends the frames.
        clock: Monotonic seconds.

    Attributes:
        draining_s: Since when the worker ends, if it does.
        finished: Whether no more calls begin: the last GOAWAY was sent, or the client has sent its own.
    """

    def __init__(self, h2: H2Connection, sender: Sender, clock: Callable[[], float]) -> None:
        self._h2 = h2
        self._sender = sender
        self._clock = clock
        self._began_s: float | None = None
        self.draining_s: float | None = None
        self.finished = False

    def begin(self) -> None:
        """Send the first GOAWAY, once."""
        if self._began_s is None:
            self._began_s = self._clock()
            self._sender.send_goaway(_ANY_STREAM)
            self._h2.ping(_PING)

    def check(self, now_s: float) -> None:
        """Wait no longer for a client that does not answer the ping."""
        if self._began_s is not None and now_s - self._began_s > _PING_S:
            self._finish()

    def on_ping_answered(self, data: bytes) -> None:
        """The client has answered a ping."""
        if data == _PING:
            self._finish()

    def on_goaway(self) -> None:
        """The client sent GOAWAY: it begins no more calls, but waits for the answers to those that it has begun.

        h2 takes the connection for closed here, and would send no answer; RFC 9113 section 6.8 wants them sent.
        """
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN
        self.finished = True

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            self._sender.send_goaway(self._h2.highest_inbound_stream_id)
