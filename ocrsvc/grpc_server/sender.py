"""Moves responses from the streams of one connection to its socket, no more at a time than the socket takes soon.

What has been moved still counts as the response's memory until the socket has taken it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from ocrsvc.grpc_server.slow_readers import StallDetector
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.grpc_server.wire import ENCODINGS
from ocrsvc.serving.memory_budget import Share

FILL_BYTES: Final = 1 << 18
"""Once so much waits for the socket, answers wait in their streams."""

_PIECE_BYTES: Final = 1 << 16
_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ",".join(("identity", *ENCODINGS))),
]


class Sender:
    """The outgoing side of one connection.

    Args:
        h2: Frames what is sent.
        clock: Monotonic seconds.

    Attributes:
        out: What the socket is to take; who has sent some removes it from the front.
        held_back: Whether answers wait for the socket, rather than for their client.
        stall: Whether the client takes anything at all.
    """

    def __init__(self, h2: H2Connection, clock: Callable[[], float]) -> None:
        self._h2 = h2
        self._clock = clock
        self._moved: deque[tuple[int, Share]] = deque()
        self._moved_bytes = 0
        self.out = bytearray()
        self.held_back = False
        self.stall = StallDetector()

    def collect(self) -> None:
        """Take what h2 has to send, and give back the memory of what the socket has taken."""
        self.out += self._h2.data_to_send()
        while self._moved and self._moved_bytes - self._moved[0][0] >= len(self.out):
            self._give_back()

    @property
    def full(self) -> bool:
        """Whether the socket has enough to take."""
        return len(self.out) >= FILL_BYTES

    @property
    def blocked(self) -> bool:
        """Whether the client lets no more through on any stream."""
        return self._h2.outbound_flow_control_window <= 0

    def send(self, stream: Stream) -> int:
        """Move what flow control and the socket let through, and the status after everything else.

        Returns:
            The bytes that were moved.

        Raises:
            ProtocolError: The client has reset the stream; h2 knows it before its event comes.
        """
        moved_bytes = self._move_answers(stream)
        now_s = self._clock()
        stream.stall.note(now_s, left=bool(stream.out), taken=moved_bytes)
        if stream.out:
            self.stall.note(now_s, left=True, taken=moved_bytes)
        elif stream.trailers is not None:
            self._h2.send_headers(stream.number, [*self._head(stream), *stream.trailers], end_stream=True)
        return moved_bytes

    def is_stalled(self, stream: Stream, now_s: float) -> bool:
        """Whether the client does not read this stream's answers: its window is closed, or it takes nothing at all.

        While it takes others, a stream may wait for the connection's window, or for its turn.
        """
        if not stream.stall.is_stalled(now_s):
            return False
        own = self._h2.streams.get(stream.number)
        return own is None or own.outbound_flow_control_window <= 0 or self.stall.is_stalled(now_s)

    def refuse(self, number: int, status: str) -> None:
        """Answer what is no call with a status of HTTP."""
        with contextlib.suppress(ProtocolError):
            self._h2.send_headers(number, [(":status", status)], end_stream=True)

    def reset(self, number: int, code: ErrorCodes) -> None:
        """Tell the client to send no more on this stream; it may have ended already."""
        with contextlib.suppress(ProtocolError):
            self._h2.reset_stream(number, code)

    def acknowledge(self, number: int, size: int) -> None:
        """Let the client send so many bytes more."""
        if size:
            with contextlib.suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, number)

    def send_goaway(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """h2's own GOAWAY closes the connection at once; this one leaves it open."""
        self.collect()
        self.out += GoAwayFrame(0, last_stream_id=last_stream, error_code=int(code)).serialize()

    def close(self) -> None:
        """The client has gone."""
        while self._moved:
            self._give_back()

    def _head(self, stream: Stream) -> list[tuple[str, str]]:
        """What comes before everything else of a stream, once."""
        begun, stream.begun = stream.begun, True
        return [] if begun else [*_HEADERS, *stream.record.headers()]

    def _move_answers(self, stream: Stream) -> int:
        moved_bytes = 0
        while stream.out:
            if self.full:
                self.held_back = True
                break
            window_bytes = min(self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size)
            if window_bytes <= 0:
                break
            if head := self._head(stream):
                self._h2.send_headers(stream.number, head)
            moved_bytes += self._move(stream, min(window_bytes, _PIECE_BYTES))
        if moved_bytes:
            stream.active_s = self._clock()
        return moved_bytes

    def _move(self, stream: Stream, window_bytes: int) -> int:
        """Move a piece of the first answer; its size."""
        first = stream.out[0]
        piece, rest = first.data[:window_bytes], first.data[window_bytes:]
        self._h2.send_data(stream.number, piece.tobytes())
        self.out += self._h2.data_to_send()
        self._moved.append((len(piece), first.share))
        self._moved_bytes += len(piece)
        if rest:
            first.data = rest
        else:
            stream.out.popleft()
        return len(piece)

    def _give_back(self) -> None:
        size_bytes, share = self._moved.popleft()
        self._moved_bytes -= size_bytes
        share.give_back(size_bytes)
