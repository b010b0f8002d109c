"""One open gRPC call: its received messages, its unsent answers, its memory and its time limits."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.grpc_server import limits, messages
from ocrsvc.grpc_server.call_metrics import CallRecord
from ocrsvc.grpc_server.http2 import Sender, StallDetector
from ocrsvc.grpc_server.messages import Answer, MessageReader, ReceivedMessage
from ocrsvc.grpc_server.method import Call, CallFailed, Code, Method
from ocrsvc.serving.memory_budget import Share

_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ",".join(("identity", *messages.ENCODINGS))),
]
_PIECE_BYTES: Final = 1 << 16

Admission = Callable[[Call], AbstractContextManager[Call]]


@dataclass(eq=False, slots=True)
class Stream:
    """One open call. `out` holds the unsent answers; `trailers`, with the status, is sent after them."""

    number: int
    method: Method
    call: Call
    reader: MessageReader
    share: Share
    # Counts incomplete messages against a budget of their own; `share` counts their memory too.
    arriving: Share
    record: CallRecord
    # Whether the call is small enough to be served even if the memory budget is used up.
    is_exempt: bool
    # When the client last sent or received data, or a message was answered.
    active_s: float
    # When the first byte of the incomplete message arrived.
    message_s: float = 0.0
    # Checks and charges the call's API key for each message.
    admit: Admission = nullcontext
    # The caller whose concurrent requests include this call; None for exempt methods.
    caller: str | None = None
    unacknowledged: int = 0
    is_busy: bool = False
    is_queued: bool = False
    has_ended: bool = False
    has_sent_headers: bool = False
    out: deque[Answer] = field(default_factory=deque)
    stall: StallDetector = field(default_factory=StallDetector)
    trailers: list[tuple[str, str]] | None = None
    _held_bytes: int = 0

    def hold(self, size_bytes: int) -> None:
        """Take more memory for this call, from `share` unless it is exempt. Raises QueueFull, BodyTooLarge."""
        self._held_bytes += size_bytes
        if not self.is_exempt:
            self.share.take(size_bytes)
        elif self._held_bytes > limits.EXEMPT_BYTES:
            self._end_exemption()

    def feed(self, data: bytes) -> None:
        """Buffer received bytes. Raises QueueFull, BodyTooLarge."""
        if not self.reader.data:
            self.message_s = self.active_s
        self.arriving.take(len(data))
        self.hold(len(data))
        self.reader.data += data

    def hand_over(self, message: ReceivedMessage) -> Share:
        """Split a share off from the call's memory share to answer a message. Raises QueueFull, BodyTooLarge."""
        self._end_exemption()
        size_bytes = messages.PREFIX_BYTES + len(message.data)
        self._held_bytes -= size_bytes
        self.arriving.give_back(size_bytes)
        return self.share.split(size_bytes)

    def _end_exemption(self) -> None:
        if self.is_exempt:
            self.is_exempt = False
            self.share.take(self._held_bytes)

    def send(self, sender: Sender, clock: Callable[[], float]) -> int:
        """Send as much as flow control and the socket allow, then the status; return the number of bytes sent.

        Raises ProtocolError if the client has reset the stream and h2 has not reported the event yet.
        """
        moved_bytes = self._send_answers(sender)
        now_s = clock()
        if moved_bytes:
            self.active_s = now_s
        self.stall.note(now_s, left=bool(self.out), taken=moved_bytes)
        if self.out:
            sender.stall.note(now_s, left=True, taken=moved_bytes)
        elif self.trailers is not None:
            sender.h2.send_headers(self.number, [*self._headers(), *self.trailers], end_stream=True)
        return moved_bytes

    def _send_answers(self, sender: Sender) -> int:
        h2, moved_bytes = sender.h2, 0
        while self.out:
            if sender.full:
                sender.is_throttled = True
                break
            size_bytes = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size, _PIECE_BYTES)
            if size_bytes <= 0:
                break
            if headers := self._headers():
                h2.send_headers(self.number, headers)
            moved_bytes += sender.send_piece(self.number, self.out[0], size_bytes)
            if not self.out[0].data:
                self.out.popleft()
        return moved_bytes

    def _headers(self) -> list[tuple[str, str]]:
        """The response's initial headers when called first, then an empty list."""
        were_sent, self.has_sent_headers = self.has_sent_headers, True
        return [] if were_sent else [*_HEADERS, *self.record.headers()]

    def is_stalled(self, sender: Sender, now_s: float) -> bool:
        """Whether the client has stopped receiving: this stream's flow control window is full, or no stream advances.

        If other streams advance, this one may only wait for the connection's window or for its turn to send.
        """
        if not self.stall.is_stalled(now_s):
            return False
        stream = sender.h2.streams.get(self.number)
        return stream is None or stream.outbound_flow_control_window <= 0 or sender.stall.is_stalled(now_s)

    def overdue(self, now_s: float, message_limit_s: float, draining_s: float | None) -> CallFailed | None:
        """The error for a call that exceeds a time limit, else None; `draining_s` is when the worker began to drain."""
        silent_s = now_s - max(draining_s or 0.0, self.active_s)
        if self.trailers is not None or self.out:
            # A client may be unable to send while it is answered, so the next message's time limit starts afterwards.
            self.message_s = now_s
        elif now_s - self.call.deadline > limits.DEADLINE_GRACE_S:
            return CallFailed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif not self.method.streaming or self.is_busy or self.is_queued:
            return None
        elif self.reader.data and now_s - self.message_s > message_limit_s:
            return CallFailed(Code.DEADLINE_EXCEEDED, "The message did not arrive in time.")
        elif draining_s is not None and silent_s > limits.DRAINING_IDLE_S:
            return CallFailed(Code.UNAVAILABLE, "This worker is being replaced: open a new stream.")
        elif silent_s > limits.IDLE_S:
            return CallFailed(Code.UNAVAILABLE, "The stream was idle for too long: open a new one.")
        return None

    def drop(self) -> None:
        """Discard the call's unsent answers, and release its memory."""
        while self.out:
            answer = self.out.popleft()
            answer.share.give_back(len(answer.data))
        self.reader.data.clear()
        self.arriving.release()
        self.share.release()
