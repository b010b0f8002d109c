"""The state of one call under way, and the memory that it holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.grpc_server.call_metrics import CallRecord
from ocrsvc.grpc_server.message import Answer
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.slow_readers import StallDetector
from ocrsvc.grpc_server.status_codes import CallFailed, Code
from ocrsvc.grpc_server.wire import MessageReader, ReceivedMessage
from ocrsvc.serving.memory_budget import Share

STREAM_BYTES: Final = 1 << 13
"""What a call costs beside its bytes."""

EXEMPT_BYTES: Final = STREAM_BYTES + (1 << 11)
"""What a call may hold that is answered even where no memory is left: a health check, and its few headers."""

# A call whose answer is not there at its deadline is given up by its own thread first; then by the loop.
_GRACE_S: Final = 0.5
# How long a stream of requests may be silent while its worker leaves, and ever.
_SILENT_S: Final = 2.0
_IDLE_S: Final = 300.0


@dataclass(eq=False, slots=True)
class Stream:
    """One call under way.

    Attributes:
        share: Holds its own bytes and those of the messages that were not begun.
        arriving: Holds the latter also in the budget for messages that arrive.
        record: What is counted and logged of it once it is over.
        exempt: Whether it is served without memory being free for it, as long as it is small.
        secret_id: Of the secret that was shown for it; empty where none was.
        caller: Whose call it counts as; None for none.
        unacknowledged: Bytes of its messages that flow control has not given back to the client.
        active_s: When it was last heard of, or answered.
        message_s: When the message began that is not complete.
        busy: Whether a message is being answered.
        is_queued: Whether it waits for a thread.
        ended: Whether the client has sent everything.
        begun: Whether the headers before the first answer have been sent.
        out: Answers that have not left yet.
        stall: Whether the client reads them.
        trailers: The status, once it is known; sent after `out`.
    """

    number: int
    method: Method
    call: Call
    reader: MessageReader
    share: Share
    arriving: Share
    record: CallRecord
    exempt: bool = False
    secret_id: str = ""
    caller: str | None = None
    unacknowledged: int = 0
    active_s: float = 0.0
    message_s: float = 0.0
    busy: bool = False
    is_queued: bool = False
    ended: bool = False
    begun: bool = False
    out: deque[Answer] = field(default_factory=deque)
    stall: StallDetector = field(default_factory=StallDetector)
    trailers: list[tuple[str, str]] | None = None
    _held_bytes: int = 0

    def hold(self, size_bytes: int) -> None:
        """Hold so many bytes more. Raises QueueFull, BodyTooLarge."""
        self._held_bytes += size_bytes
        if not self.exempt:
            self.share.take(size_bytes)
        elif self._held_bytes > EXEMPT_BYTES:
            self.count()

    def count(self) -> None:
        """Count its memory from here on. Raises QueueFull, BodyTooLarge."""
        if self.exempt:
            self.exempt = False
            self.share.take(self._held_bytes)

    def arrive(self, data: bytes) -> None:
        """More of its messages came. Raises QueueFull, BodyTooLarge."""
        if not self.reader.held_bytes:
            self.message_s = self.active_s
        self.arriving.take(len(data))
        self.hold(len(data))
        self.reader.feed(data)

    def take_message(self, now_s: float) -> ReceivedMessage:
        """Begin the next message, which is complete. Raises CallFailed."""
        sent = self.reader.take()
        self.message_s = now_s
        self.record.bytes_in += len(sent.data)
        return sent

    def hand_over(self, sent: ReceivedMessage) -> Share:
        """The share of a message that is begun; its bytes are of no more concern here. Raises as `count`."""
        self.count()
        self._held_bytes -= sent.size
        self.arriving.give_back(sent.size)
        return self.share.split(sent.size)

    def overdue(self, now_s: float, message_limit_s: float, draining_s: float | None) -> CallFailed | None:
        """With what it is to be ended because it has taken too long; None while it has not.

        Args:
            now_s: On the loop's clock.
            message_limit_s: How long a message may take to arrive.
            draining_s: Since when the worker ends, if it does.
        """
        if self.trailers is not None or self.out:
            # Being sent, which nothing cuts off but its rate; meanwhile its client may be unable to send the rest.
            self.message_s = now_s
        elif now_s - self.call.deadline > _GRACE_S:
            return CallFailed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif self.method.streaming and not self.busy and not self.is_queued:
            return self._silent(now_s, message_limit_s, draining_s)
        return None

    def _silent(self, now_s: float, message_limit_s: float, draining_s: float | None) -> CallFailed | None:
        """As `overdue`, for a stream of requests that waits for its client."""
        silent_s = now_s - max(draining_s or 0.0, self.active_s)
        if self.reader.held_bytes and now_s - self.message_s > message_limit_s:
            return CallFailed(Code.DEADLINE_EXCEEDED, "The message did not come in time.")
        if draining_s is not None and silent_s > _SILENT_S:
            return CallFailed(Code.UNAVAILABLE, "This worker is being replaced; begin a new stream.")
        if silent_s > _IDLE_S:
            return CallFailed(Code.UNAVAILABLE, "The stream was silent for long; begin a new one.")
        return None

    def drop(self) -> None:
        """Give back all that it holds; nobody reads its answers."""
        while self.out:
            left = self.out.popleft()
            left.share.give_back(len(left.data))
        self.reader.clear()
        self.arriving.release()
        self.share.release()
