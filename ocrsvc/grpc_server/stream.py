"""The state of one call under way, and the memory that it holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.grpc_server.call_metrics import CallRecord
from ocrsvc.grpc_server.message import Answer
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.slow_readers import StallDetector
from ocrsvc.grpc_server.wire import MessageReader, ReceivedMessage
from ocrsvc.serving.memory_budget import Share

STREAM_BYTES: Final = 1 << 13
"""What a call costs beside its bytes."""

EXEMPT_BYTES: Final = STREAM_BYTES + (1 << 11)
"""What a call may hold that is answered even where no memory is left: a health check, and its few headers."""


@dataclass(slots=True)
class Outgoing:
    """An answer, or what is left of it, and the share that holds it."""

    data: memoryview
    share: Share


@dataclass(eq=False, slots=True)
class Stream:
    """One call under way.

    Attributes:
        share: Holds its own bytes and those of the messages that were not begun.
        arriving: Holds the latter also in the budget for messages that arrive.
        record: What is counted and logged of it once it is over.
        exempt: Whether it is served without memory being free for it, as long as it is small.
        caller: Whose call it counts as; None for none.
        pending: The next message, once it is complete.
        unacknowledged: Bytes of it that flow control has not given back to the client.
        active_s: When it was last heard of, or answered.
        message_s: When the message began that is not complete.
        busy: Whether a message is being answered.
        is_queued: Whether it waits for a thread.
        ended: Whether the client has sent everything.
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
    caller: str | None = None
    pending: deque[ReceivedMessage] = field(default_factory=deque)
    unacknowledged: int = 0
    active_s: float = 0.0
    message_s: float = 0.0
    busy: bool = False
    is_queued: bool = False
    ended: bool = False
    begun: bool = False
    out: deque[Outgoing] = field(default_factory=deque)
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
        self.arriving.take(len(data))
        self.hold(len(data))
        self.reader.feed(data)

    def hand_over(self, sent: ReceivedMessage) -> Share:
        """The share of a message that is begun; its bytes are of no more concern here. Raises as `count`."""
        self.count()
        self._held_bytes -= sent.size
        self.arriving.give_back(sent.size)
        return self.share.split(sent.size)

    def put(self, answer: Answer) -> None:
        """An answer is to be sent."""
        self.out.append(Outgoing(memoryview(answer.data), answer.share))

    def drop_out(self) -> None:
        """Drop the answers that nobody reads."""
        while self.out:
            left = self.out.popleft()
            left.share.give_back(len(left.data))

    def drop(self) -> None:
        """Give back all that it holds."""
        self.drop_out()
        self.pending.clear()
        self.reader.clear()
        self.arriving.release()
        self.share.release()
