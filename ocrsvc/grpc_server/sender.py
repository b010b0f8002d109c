"""Moves responses from the streams of one connection to its socket, no more at a time than the socket takes soon.

What has been moved still counts as the response's memory until the socket has taken it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection

from ocrsvc.grpc_server.slow_readers import StallDetector
from ocrsvc.grpc_server.stream import Outgoing, Stream
from ocrsvc.serving.memory_budget import Share

FILL_BYTES: Final = 1 << 18
"""Once so much waits for the socket, answers wait in their streams."""

_PIECE_BYTES: Final = 1 << 16


class Sender:
    """The outgoing side of one connection.

    Args:
        h2: Frames what is sent.
        headers: Those before the first answer of a stream.
        clock: Monotonic seconds.

    Attributes:
        out: What the socket is to take; who has sent some removes it from the front.
        held_back: Whether answers wait for the socket.
        stall: Whether the client takes anything at all.
    """

    def __init__(self, h2: H2Connection, headers: list[tuple[str, str]], clock: Callable[[], float]) -> None:
        self._h2 = h2
        self._headers = headers
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

    def send(self, stream: Stream) -> int:
        """Move what flow control and the socket let through; the bytes that were moved. Raises ProtocolError."""
        moved_bytes = 0
        while stream.out:
            if self.full:
                self.held_back = True
                break
            window_bytes = min(self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size)
            if window_bytes <= 0:
                break
            if not stream.begun:
                stream.begun = True
                self._h2.send_headers(stream.number, self._headers)
            moved_bytes += self._move(stream, min(window_bytes, _PIECE_BYTES))
        if moved_bytes:
            stream.active_s = self._clock()
        return moved_bytes

    def close(self) -> None:
        """The client has gone."""
        while self._moved:
            self._give_back()

    def _give_back(self) -> None:
        size_bytes, share = self._moved.popleft()
        self._moved_bytes -= size_bytes
        share.give_back(size_bytes)

    def _move(self, stream: Stream, window_bytes: int) -> int:
        """Move a piece of the first answer; its size."""
        first: Outgoing = stream.out[0]
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
