"""The calls of one HTTP/2 connection: begun, received, answered one message at a time, and ended with a status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes
from h2.events import DataReceived
from h2.exceptions import ProtocolError

from ocrsvc.errors import OcrsvcError, QueueFull, Refused
from ocrsvc.grpc_server.beginning import check_beginning, headers_by_name, open_stream
from ocrsvc.grpc_server.frame_limits import (
    ANSWER_FRAMES,
    HEADER_BYTES_PER_FRAME,
    RESET_FRAMES,
    TAKEN_BYTES_PER_FRAME,
    FrameLimits,
)
from ocrsvc.grpc_server.message import Answer, Job
from ocrsvc.grpc_server.sender import Sender
from ocrsvc.grpc_server.status_codes import CallFailed, Code, failure_of
from ocrsvc.grpc_server.stream import STREAM_BYTES, Stream
from ocrsvc.grpc_server.wire import PREFIX_BYTES, escaped
from ocrsvc.serving.memory_budget import Budget, Share

if TYPE_CHECKING:
    from ocrsvc.grpc_server.connection import Connection
    from ocrsvc.grpc_server.server import RpcServer

# Beyond this a message is parsed in a pool thread, however quick its answer is.
_QUICK_BYTES: Final = 1 << 14
# Calls of a connection that are answered even where no memory is left, if they need neither the engine nor time.
_EXEMPT_CALLS: Final = 4
# Clients read it as a number of 32 bits.
_MOST_RETRY_MS: Final = 2**31 - 1
_RETRY: Final = "grpc-retry-pushback-ms"
_NO_FIELDS: Final[Mapping[str, str]] = {}


class Calls:
    """The calls under way on one connection.

    Args:
        connection: Is told by the server's threads of answers, and of a thread that is free.
        server: Has the methods, the memory and the threads.
        sender: Sends the answers.
        limits: Of the frames that the client may send.
        clock: Monotonic seconds.

    Attributes:
        active_s: When the last call began, or was answered.
    """

    def __init__(
        self,
        connection: Connection,
        server: RpcServer,
        sender: Sender,
        limits: FrameLimits,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._server = server
        self._sender = sender
        self._limits = limits
        self._clock = clock
        self._streams: dict[int, Stream] = {}
        # Those that have their status, and whose requests have not ended.
        self._half_closed: set[int] = set()
        self._unlimited = Budget(sys.maxsize)
        self.active_s = clock()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def have_answers(self) -> bool:
        """Whether an answer waits for its client."""
        return any(stream.out for stream in self._streams.values())

    def begin(self, number: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The client begins a call. Raises FrameRefused."""
        sent = headers_by_name(headers)
        size_bytes = sum(len(name) + len(value) for name, value in headers)
        self._limits.charge(size_bytes // HEADER_BYTES_PER_FRAME)
        if sent.get(":method") != "POST" or not sent.get("content-type", "").startswith("application/grpc"):
            self._sender.refuse(number, "415")
            self._half_closed.add(number)
            return
        now_s = self.active_s = self._clock()
        is_one_of_few = len(self._streams) < _EXEMPT_CALLS
        stream = open_stream(number, sent, self._connection, self._server, now_s, may_be_exempt=is_one_of_few)
        self._streams[number] = stream
        held_bytes = STREAM_BYTES + size_bytes
        self._guarded(stream, lambda: check_beginning(stream, sent, held_bytes, self._connection, self._server))

    def receive(self, event: DataReceived) -> None:
        """More of a message came."""
        number, size = event.stream_id, event.flow_controlled_length
        stream = self._streams.get(number)
        if stream is None:
            self._sender.acknowledge(number, size)
            if event.stream_ended is None:
                self._half_closed.discard(number)
                self._sender.reset(number, ErrorCodes.NO_ERROR)
            return
        stream.active_s = self._clock()
        stream.unacknowledged += size
        if stream.trailers is None:
            self._guarded(stream, lambda: self._take_in(stream, event.data))
        self._acknowledge_wanted(stream)

    def end(self, number: int) -> None:
        """The client has sent everything of a call."""
        if number in self._half_closed:
            self._half_closed.remove(number)
            self._limits.allow(ANSWER_FRAMES)
        if stream := self._streams.get(number):
            stream.ended = True
            if not stream.method.streaming and not stream.reader.held_bytes:
                self._fail(stream, CallFailed(Code.UNIMPLEMENTED, "The request has no message."))
            self._advance(stream)

    def reset(self, number: int) -> None:
        """The client has taken a call back. Raises FrameRefused."""
        if number in self._half_closed:
            # A client that is refused sends no more: it is not charged for a call that was begun for nothing.
            self._half_closed.remove(number)
            return
        if stream := self._streams.get(number):
            self._forget(stream)
        self._limits.charge(RESET_FRAMES)

    def resume(self, stream: Stream) -> None:
        """A thread is free for this call, which was queued for it."""
        stream.is_queued = False
        if self._streams.get(stream.number) is stream:
            self._advance(stream)

    def answered(self, stream: Stream, outcome: Answer | BaseException) -> None:
        """A message of this call has its answer, or the error that ends the call."""
        stream.busy = False
        self.active_s = stream.active_s = self._clock()
        if self._streams.get(stream.number) is not stream:
            if isinstance(outcome, Answer):
                outcome.share.release()
        elif isinstance(outcome, BaseException):
            self._fail(stream, outcome)
        else:
            stream.record.bytes_out += len(outcome.data) - PREFIX_BYTES
            stream.out.append(outcome)
            self._limits.allow(ANSWER_FRAMES)
            self._go_on(stream)

    def send_more(self, number: int = 0) -> None:
        """The client takes more of one call, or (0) of all together."""
        if number:
            waiting = [stream] if (stream := self._streams.get(number)) else []
        else:
            waiting = [stream for stream in self._streams.values() if stream.out]
        for stream in waiting:
            if self._sender.blocked:
                break
            self._go_on(stream)

    def check_time_limits(self, now_s: float, draining_s: float | None) -> None:
        """End what is over its time limit; `draining_s` is since when the worker ends."""
        while self._half_closed:
            self._sender.reset(self._half_closed.pop(), ErrorCodes.NO_ERROR)
        for stream in list(self._streams.values()):
            if self._sender.is_stalled(stream, now_s):
                self._sender.reset(stream.number, ErrorCodes.CANCEL)
                self._forget(stream)
            elif failure := stream.overdue(now_s, self._server.limit_s, draining_s):
                self._fail(stream, failure)

    def close(self) -> None:
        """The client has gone: nobody waits any more."""
        for stream in list(self._streams.values()):
            self._forget(stream)

    def _take_in(self, stream: Stream, data: bytes) -> None:
        """Hold more of a message. Raises CallFailed, OcrsvcError."""
        stream.arrive(data)
        if stream.method.streaming:
            self._advance(stream)
        elif stream.reader.is_ready() and not stream.reader.is_last():
            raise CallFailed(Code.UNIMPLEMENTED, "The request has more than one message.")

    def _guarded(self, stream: Stream, turn: Callable[[], None]) -> None:
        """A turn of a call; what is refused in it ends this call alone."""
        try:
            turn()
        except (CallFailed, OcrsvcError) as failure:
            self._fail(stream, failure)

    def _advance(self, stream: Stream) -> None:
        """Answer the next message, or end the call after the last; not before the client has taken the last answer."""
        if not stream.busy and not stream.is_queued and stream.trailers is None and not stream.out:
            self._guarded(stream, lambda: self._take_next(stream))

    def _take_next(self, stream: Stream) -> None:
        if stream.reader.is_ready():
            if stream.method.streaming or stream.ended:
                self._answer_next(stream)
        elif stream.ended:
            if stream.reader.held_bytes:
                raise CallFailed(Code.INTERNAL, "The request ends in the middle of a message.")
            self._end(stream, Code.OK, "")

    def _answer_next(self, stream: Stream) -> None:
        """Answer a message in the loop, which counts with the call if it is small, or in a thread of the pool."""
        here = stream.method.quick and stream.reader.is_plain(_QUICK_BYTES)
        if not here and not self._server.has_thread:
            self._wait_for_thread(stream)
            return
        sent = stream.take_message(self._clock())
        deadline = min(stream.call.deadline, self._clock() + self._server.limit_s)
        share = Share(self._unlimited) if here else stream.hand_over(sent)
        call = replace(stream.call, deadline=deadline, share=share)
        stream.busy = True
        memory = self._unlimited if here else self._server.memory
        key = stream.record.key
        access = self._server.access if key and not stream.method.quick else None
        job = Job(stream.method, sent, call, self._server.most_bytes, memory, access, key, stream.secret_id)
        if here:
            self.answered(stream, job.outcome())
        else:
            self._server.run(self._connection, stream, job)
        self._acknowledge_wanted(stream)

    def _wait_for_thread(self, stream: Stream) -> None:
        """A call is to be sent again (raises QueueFull), but a stream would lose all that is to follow: it waits."""
        if not stream.method.streaming:
            raise QueueFull(f"All {self._server.threads} threads are busy.", "Try again in a moment.")
        stream.is_queued = True
        self._server.enqueue(self._connection, stream)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        failure = failure_of(error)
        stream.record.error = error
        retry_ms = str(min(error.retry_after_s * 1000, _MOST_RETRY_MS)) if isinstance(error, Refused) else ""
        self._end(stream, failure.code, failure.message, {_RETRY: retry_ms, **stream.method.error_fields(error)})

    def _end(self, stream: Stream, code: Code, message: str, more: Mapping[str, str] = _NO_FIELDS) -> None:
        if stream.trailers is not None:
            return
        fields = {"grpc-status": str(int(code)), "grpc-message": escaped(message), **more}
        stream.trailers = [(name, value) for name, value in fields.items() if value]
        stream.record.code = code
        if stream.ended:
            self._limits.allow(ANSWER_FRAMES)
        if code is not Code.OK:
            stream.call.gone.set()
            stream.drop()
        self._flush(stream)

    def _go_on(self, stream: Stream) -> None:
        self._flush(stream)
        self._advance(stream)

    def _flush(self, stream: Stream) -> None:
        """Send what flow control and the socket let through, and the status after everything else."""
        try:
            moved_bytes = self._sender.send(stream)
        except ProtocolError:
            self._forget(stream)
            return
        self._limits.allow(moved_bytes // TAKEN_BYTES_PER_FRAME)
        if stream.out and moved_bytes:
            # The others are served before it.
            self._streams[stream.number] = self._streams.pop(stream.number)
        elif not stream.out and stream.trailers is not None:
            if not stream.ended:
                self._half_closed.add(stream.number)
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        stream.call.gone.set()
        if self._streams.pop(stream.number, None) is not None:
            self._server.call_metrics.end(stream.record)
            if stream.caller is not None:
                self._server.callers.leave(stream.caller)
            if stream.is_queued:
                self._server.dequeue(stream)
        self._acknowledge(stream)
        stream.drop()

    def _acknowledge_wanted(self, stream: Stream) -> None:
        """Let the client send more, unless a whole message waits already for the one before it."""
        if not stream.reader.waits:
            self._acknowledge(stream)

    def _acknowledge(self, stream: Stream) -> None:
        size, stream.unacknowledged = stream.unacknowledged, 0
        self._sender.acknowledge(stream.number, size)
