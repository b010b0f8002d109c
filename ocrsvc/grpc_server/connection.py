"""One HTTP/2 connection: its frames, one turn at a time, and its graceful end; calls.py has its calls.

Bytes in, bytes out; no sockets and no threads. All of it runs on the loop's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from ocrsvc.grpc_server.calls import Calls
from ocrsvc.grpc_server.frame_limits import FrameLimits, FrameRefused, check_settings
from ocrsvc.grpc_server.frames import Frames
from ocrsvc.grpc_server.http2_settings import open_h2
from ocrsvc.grpc_server.message import Answer
from ocrsvc.grpc_server.sender import Sender
from ocrsvc.grpc_server.shutdown import Shutdown
from ocrsvc.grpc_server.status_codes import LOGGER
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.telemetry.loggable import loggable_error

if TYPE_CHECKING:
    from ocrsvc.grpc_server.server import RpcServer

# How long a frame or a header block may take from its first byte to its last.
_FRAME_S: Final = 30.0


class Connection:
    """One connection of a client.

    Args:
        server: The server.
        clock: Monotonic seconds.
        caller: Whose calls these are, for the cap of one caller.

    Attributes:
        client_name: The name of the key that the client's TLS certificate stands for; None for none.
    """

    def __init__(self, server: RpcServer, clock: Callable[[], float] = time.monotonic, caller: str = "") -> None:
        self._server = server
        self.caller = caller
        self.client_name: str | None = None
        self._clock = clock
        self._h2 = open_h2()
        self._sender = Sender(self._h2, clock)
        self._limits = FrameLimits(clock)
        self._frames = Frames(self._limits.check)
        self._calls = Calls(self, server, self._sender, self._limits, clock)
        self._shutdown = Shutdown(self._h2, self._sender, clock)
        self.began_s = clock()
        # Since when a frame or a header block waits for its end, if one does.
        self._partial_s = self.began_s
        self.handshake_done = False
        self.broken = False
        self._sender.collect()

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._calls)

    @property
    def active_s(self) -> float:
        """When the last call began, or was answered."""
        return self._calls.active_s

    @property
    def is_draining(self) -> bool:
        """Whether its worker ends."""
        return self._shutdown.draining_s is not None

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent: the last GOAWAY is, and every call is answered."""
        return self._shutdown.finished and not self._calls and not self._sender.out

    @property
    def waiting(self) -> bool:
        """Whether frames that came wait for the connection's next turn."""
        return self._frames.waiting and not self.broken

    def receive(self, data: bytes) -> None:
        """What the client has sent; sets `broken` when it does not speak HTTP/2. One turn, as `go_on`."""
        if not self._is_partial():
            self._partial_s = self._clock()
        self._frames.feed(data)
        self.go_on()

    def go_on(self) -> None:
        """One turn: the frames that came are dealt with, as many as there is time for.

        Few bytes may ask for much work, and the other connections must not wait for all of it.
        """
        end_s = self._clock() + self._server.turn_s
        with self._exchange():
            while piece := self._frames.cut():
                for event in self._h2.receive_data(piece):
                    self._on_event(event)
                now_s = self._clock()
                if not self._limits.in_block:
                    self._partial_s = now_s
                if now_s > end_s or self._sender.full:
                    break

    def send_more(self) -> None:
        """The socket has taken some: answers that waited for it follow."""
        if self._sender.held_back and not self._sender.full:
            self._sender.held_back = False
            with self._exchange():
                self._calls.send_more()

    def take_out(self) -> bytearray:
        """What is to be sent; the caller removes from its front what it has sent."""
        return self._sender.out

    def begin_shutdown(self) -> None:
        """Ask the client to connect anew; its calls under way are answered. See shutdown.py."""
        if not self.broken:
            with self._exchange():
                self._shutdown.begin()

    def drain(self) -> None:
        """Shut down gracefully, and end the streams that are silent: their worker ends."""
        if self._shutdown.draining_s is None:
            self._shutdown.draining_s = self._clock()
        self.begin_shutdown()

    def resume(self, stream: Stream) -> None:
        """A thread is free for this stream, which was queued for it."""
        with self._exchange():
            self._calls.resume(stream)

    def answered(self, stream: Stream, outcome: Answer | BaseException) -> None:
        """A message of this stream has its answer, or the error that ends the call."""
        with self._exchange():
            self._calls.answered(stream, outcome)

    def check_time_limits(self) -> None:
        """End what is over its time limit."""
        now_s = self._clock()
        with self._exchange():
            self._calls.check_time_limits(now_s, self._shutdown.draining_s)
            self._shutdown.check(now_s)
            if self._sender.full:
                # Nothing is read while so much is to be sent: the client cannot end it.
                self._partial_s = now_s
            elif self._is_partial() and now_s - self._partial_s > _FRAME_S:
                raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "a frame or a header block that does not end")

    def close(self) -> None:
        """The client has gone: nobody waits any more."""
        self._calls.close()
        self._frames.clear()
        self._sender.close()

    def close_now(self) -> None:
        """End it at once, whatever is under way: its place is needed."""
        self._abort(ErrorCodes.NO_ERROR)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Send what the block produces; whatever is wrong, the client's fault or ours, breaks this connection alone."""
        try:
            yield
        except ProtocolError:
            self.broken = True
        except FrameRefused as refused:
            self._abort(refused.code)
            self._server.note_refused(self.caller, refused.detail)
        except Exception as error:  # noqa: BLE001  the edge: it must not end the loop that serves all others
            LOGGER.error("A connection failed", exc_info=loggable_error(error))
            self.broken = True
            self.close()
        self._sender.collect()
        if not self._calls.have_answers:
            self._sender.stall.note(self._clock(), left=False)

    def _abort(self, code: ErrorCodes) -> None:
        """Send a last GOAWAY, and free everything that the connection holds."""
        self._sender.send_goaway(self._h2.highest_inbound_stream_id, code)
        self.broken = True
        self.close()

    def _is_partial(self) -> bool:
        """Whether a frame or a header block has begun and not ended."""
        return self._limits.in_block or (self._frames.held_bytes > 0 and not self._frames.waiting)

    def _on_event(self, event: Event) -> None:
        """What h2 has read. Raises FrameRefused."""
        match event:
            case DataReceived():
                self._calls.receive(event)
            case RequestReceived():
                self._calls.begin(event.stream_id, event.headers)
            case StreamEnded():
                self._calls.end(event.stream_id)
            case StreamReset():
                self._calls.reset(event.stream_id)
            case WindowUpdated():
                self.handshake_done = True
                self._calls.send_more(event.stream_id)
            case RemoteSettingsChanged():
                self.handshake_done = True
                check_settings(self._h2)
                self._calls.send_more()
            case PingAckReceived():
                self._shutdown.on_ping_answered(event.ping_data)
            case ConnectionTerminated(error_code=ErrorCodes.NO_ERROR):
                self._shutdown.on_goaway()
            case ConnectionTerminated():
                self.broken = True
