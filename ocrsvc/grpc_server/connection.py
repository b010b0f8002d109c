"""The protocol of one HTTP/2 connection, without its socket: handles frames, and shuts down gracefully.

The first GOAWAY of a shutdown still accepts all calls, because some may be in transit. When the client has acknowledged
the ping sent after it, a second GOAWAY names the last call that is served.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from ocrsvc.grpc_server import limits
from ocrsvc.grpc_server.calls import Calls
from ocrsvc.grpc_server.http2 import FrameLimits, FrameRefused, FrameSplitter, Sender, check_settings
from ocrsvc.grpc_server.method import LOGGER
from ocrsvc.grpc_server.server_state import ServerState
from ocrsvc.telemetry.loggable import loggable_error

_ANY_STREAM: Final = 2**31 - 1
_PING: Final = b"goodbye!"


class _Connection(H2Connection):
    # How many closed streams h2 remembers, to accept late frames for them.
    MAX_CLOSED_STREAMS = 2048


class Connection:
    """One client connection; `caller` is the peer's address."""

    def __init__(self, state: ServerState, clock: Callable[[], float] = time.monotonic, caller: str = "") -> None:
        self._state, self._clock, self.caller = state, clock, caller
        self._h2 = _open_h2()
        self._sender = Sender(self._h2)
        # Bytes to send; the transport removes those that the socket has accepted.
        self.out = self._sender.out
        self._limits = FrameLimits(clock)
        self._frames = FrameSplitter(self._limits.check)
        self.calls = Calls(state, self._sender, self._limits, clock, self._exchange, caller)
        self.began_s = clock()
        # When the first byte of the incomplete frame or header block arrived.
        self._partial_s = self.began_s
        # Times of the first GOAWAY, and of the beginning of the worker's drain (`draining_s`); None until then.
        self._goaway_s: float | None = None
        self.draining_s: float | None = None
        # Whether the last GOAWAY was sent, or the client sent one: the client begins no more calls.
        self._is_final = False
        # Whether the client has sent its settings, and whether the connection must be closed at once.
        self.has_settings = self.broken = False
        self._sender.collect()

    @property
    def finished(self) -> bool:
        """Whether the connection can be closed: no call may begin, all calls are answered, and all bytes sent."""
        return self._is_final and not self.calls and not self.out

    @property
    def waiting(self) -> bool:
        """Whether received frames were left for the next call of `handle_frames`."""
        return self._frames.ready_bytes > 0 and not self.broken

    def receive(self, data: bytes) -> None:
        """Add received bytes and call `handle_frames`; sets `broken` if they are not HTTP/2."""
        if not self._is_partial():
            self._partial_s = self._clock()
        self._frames.data += data
        self.handle_frames()

    def handle_frames(self) -> None:
        """Handle received frames for at most `turn_s`, because a few bytes can cause much work; leave the rest."""
        end_s = self._clock() + self._state.turn_s
        with self._exchange():
            while piece := self._frames.split():
                for event in self._h2.receive_data(piece):
                    self._on_event(event)
                now_s = self._clock()
                if not self._limits.in_block:
                    self._partial_s = now_s
                if now_s > end_s or self._sender.full:
                    break

    def send_more(self) -> None:
        """Send answers that had to wait while the output buffer was full."""
        if self._sender.is_throttled and not self._sender.full:
            self._sender.is_throttled = False
            with self._exchange():
                self.calls.send_more()

    def begin_shutdown(self) -> None:
        """Ask the client by a GOAWAY to reconnect; its open calls are still answered."""
        if not self.broken:
            with self._exchange():
                if self._goaway_s is None:
                    self._goaway_s = self._clock()
                    self._sender.send_goaway(_ANY_STREAM)
                    self._h2.ping(_PING)

    def drain(self) -> None:
        """Shut down gracefully and end idle streams, because the worker is being replaced."""
        if self.draining_s is None:
            self.draining_s = self._clock()
        self.begin_shutdown()

    def check_time_limits(self) -> None:
        """End calls and frames that exceed a time limit."""
        now_s = self._clock()
        with self._exchange():
            self.calls.check_time_limits(now_s, self.draining_s)
            if self._goaway_s is not None and now_s - self._goaway_s > limits.GOAWAY_PING_S:
                self._send_last_goaway()
            if self._sender.full:
                # The server reads nothing while the output buffer is full: do not count this against FRAME_S.
                self._partial_s = now_s
            elif self._is_partial() and now_s - self._partial_s > limits.FRAME_S:
                raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "an unfinished frame or header block")

    def close(self) -> None:
        """Cancel the calls of a disconnected client and release all memory."""
        self.calls.close()
        self._frames.data.clear()
        self._sender.release()

    def abort(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """End the connection and its calls at once, with a last GOAWAY."""
        self._sender.send_goaway(self._h2.highest_inbound_stream_id, code)
        self.broken = True
        self.close()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Run a block that handles frames, then send its output; an error in the block ends only this connection."""
        try:
            yield
        except ProtocolError:
            self.broken = True
        except FrameRefused as refused:
            self.abort(refused.code)
            message = "A gRPC connection from %s was ended for %s"
            self._state.warn(message, self.caller or "a unix socket", refused)
        except Exception as error:  # noqa: BLE001  the edge: an error must not end the loop of all connections
            LOGGER.error("A connection failed", exc_info=loggable_error(error))
            self.broken = True
            self.close()
        self._sender.collect()
        if not self.calls.have_answers:
            self._sender.stall.note(self._clock(), left=False)

    def _send_last_goaway(self) -> None:
        if not self._is_final:
            self._is_final = True
            self._sender.send_goaway(self._h2.highest_inbound_stream_id)

    def _is_partial(self) -> bool:
        """Whether a frame or header block is incomplete."""
        return self._limits.in_block or self._frames.is_partial

    def _on_event(self, event: events.Event) -> None:
        """Handle an event of h2. Raises FrameRefused."""
        match event:
            case events.DataReceived():
                self.calls.receive(event)
            case events.RequestReceived():
                self.calls.begin(event.stream_id, event.headers)
            case events.StreamEnded():
                self.calls.end(event.stream_id)
            case events.StreamReset():
                self.calls.reset(event.stream_id)
            case events.WindowUpdated():
                self.has_settings = True
                self.calls.send_more(event.stream_id)
            case events.RemoteSettingsChanged():
                self.has_settings = True
                check_settings(self._h2)
                self.calls.send_more()
            case events.PingAckReceived(ping_data=data) if data == _PING:
                self._send_last_goaway()
            case events.ConnectionTerminated(error_code=ErrorCodes.NO_ERROR):
                # After its GOAWAY the client still expects answers (RFC 9113 section 6.8). Reopen h2's state, because
                # h2 considers the connection closed and would refuse to send them.
                self._h2.state_machine.state = ConnectionState.SERVER_OPEN
                self._is_final = True
            case events.ConnectionTerminated():
                self.broken = True


def _open_h2() -> H2Connection:
    """Make h2's server side of a connection, with our SETTINGS frame ready to send."""
    h2 = _Connection(H2Configuration(client_side=False, header_encoding=None))
    h2.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.STREAM_WINDOW,
            SettingCodes.MAX_FRAME_SIZE: limits.MAX_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.MAX_HEADERS,
        },
    )
    h2.max_inbound_frame_size = limits.MAX_FRAME
    h2.decoder.max_header_list_size = limits.MAX_HEADERS
    h2.initiate_connection()
    h2.increment_flow_control_window(limits.CONNECTION_WINDOW)
    return h2
