"""One HTTP/2 connection: its streams, flow control, cancellation, time limits, and its graceful end.

Bytes in, bytes out; no sockets and no threads. All of it runs on the loop's thread.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from h2.connection import ConnectionState
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
from hyperframe.frame import GoAwayFrame

from ocrsvc.errors import OcrsvcError, QueueFull, Refused
from ocrsvc.grpc_server.call_metrics import CallRecord
from ocrsvc.grpc_server.frame_limits import (
    ANSWER_FRAMES,
    HEADER_BYTES_PER_FRAME,
    RESET_FRAMES,
    TAKEN_BYTES_PER_FRAME,
    FrameLimits,
    FrameRefused,
    check_settings,
)
from ocrsvc.grpc_server.frames import Frames
from ocrsvc.grpc_server.host import ServerInterface
from ocrsvc.grpc_server.http2_settings import open_h2
from ocrsvc.grpc_server.message import Answer, Job
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.sender import Sender
from ocrsvc.grpc_server.status_codes import CallFailed, Code, failure_of
from ocrsvc.grpc_server.stream import STREAM_BYTES, Stream
from ocrsvc.grpc_server.wire import ENCODINGS, PREFIX_BYTES, MessageReader, ReceivedMessage, escaped, timeout_s
from ocrsvc.serving.memory_budget import Budget, Share, network_of

# A call whose answer is not there at its deadline is given up by its own thread first; then by the loop.
_GRACE_S: Final = 0.5
# Beyond this a message is parsed in a pool thread, however quick its answer is.
_QUICK_BYTES: Final = 1 << 14
# Calls of a connection that are answered even where no memory is left, if they need neither the engine nor time.
_EXEMPT_CALLS: Final = 4
# How long a stream of requests may be silent while its worker leaves, and ever.
_SILENT_S: Final = 2.0
_IDLE_S: Final = 300.0
# How long a frame or a header block may take from its first byte to its last.
_FRAME_S: Final = 30.0
_LONGEST_ID: Final = 128
_LONGEST_PATH: Final = 256
_ANY_STREAM: Final = 2**31 - 1
_SHUTDOWN_PING: Final = b"goodbye!"
_DRAIN_PING_S: Final = 2.0


class Connection:
    """One connection of a client.

    Args:
        server: The server.
        clock: Monotonic seconds.
        caller: Whose calls these are, for the cap of one caller.
    """

    def __init__(self, server: ServerInterface, clock: Callable[[], float] = time.monotonic, caller: str = "") -> None:
        self._server = server
        self.caller = caller
        self._clock = clock
        self._h2 = open_h2()
        self._streams: dict[int, Stream] = {}
        # Calls that have their status, and whose requests have not ended.
        self._half_closed: set[int] = set()
        self._unlimited = Budget(sys.maxsize)
        self._sender = Sender(self._h2, _HEADERS, clock)
        self._limits = FrameLimits(clock)
        self._frames = Frames(self._limits.check)
        # Since when a frame or a header block waits for its end, if one does.
        self._partial_s = clock()
        self._draining_s: float | None = None
        self._shutdown_s: float | None = None
        self._goaway_sent = False
        self.began_s = clock()
        self.active_s = self.began_s
        self.handshake_done = False
        self.broken = False
        self._sender.collect()

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._streams)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent: the last GOAWAY is, and every call is answered."""
        return self._goaway_sent and not self._streams and not self._sender.out

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
                self._flush_all()

    def take_out(self) -> bytearray:
        """What is to be sent; the caller removes from its front what it has sent."""
        return self._sender.out

    def begin_shutdown(self) -> None:
        """Begin a graceful shutdown: new calls are sent elsewhere, those that are here or under way are answered.

        First a GOAWAY that refuses nothing, because calls may be under way; once the client has seen it (it answers the
        ping), the one that names the last call that was served.
        """
        if self._shutdown_s is None and not self.broken:
            self._shutdown_s = self._clock()
            with self._exchange():
                self._send_goaway(_ANY_STREAM)
                self._h2.ping(_SHUTDOWN_PING)

    def drain(self) -> None:
        """Shut down gracefully, and end the streams that are silent: their worker ends."""
        self._draining_s = self._clock() if self._draining_s is None else self._draining_s
        self.begin_shutdown()

    def resume(self, stream: Stream) -> None:
        """A thread is free for this stream, which was queued for it."""
        stream.is_queued = False
        if self._streams.get(stream.number) is stream:
            with self._exchange():
                self._advance(stream)

    def check_time_limits(self) -> None:
        """End what is over its time limit."""
        now_s = self._clock()
        with self._exchange():
            while self._half_closed:
                self._reset(self._half_closed.pop(), ErrorCodes.NO_ERROR)
            for stream in list(self._streams.values()):
                self._check_stream(stream, now_s)
            if self._shutdown_s is not None and not self._goaway_sent and now_s - self._shutdown_s > _DRAIN_PING_S:
                self._finish_shutdown()
            if self._sender.full:
                # Nothing is read while so much is to be sent: the client cannot end it.
                self._partial_s = now_s
            elif self._is_partial() and now_s - self._partial_s > _FRAME_S:
                raise FrameRefused(ErrorCodes.ENHANCE_YOUR_CALM, "a frame or a header block that does not end")

    def answered(self, stream: Stream, outcome: Answer | BaseException) -> None:
        """A message of this stream has its answer, or the error that ends the call."""
        stream.busy, stream.active_s = False, self._clock()
        self.active_s = stream.active_s
        if self._streams.get(stream.number) is not stream:
            if isinstance(outcome, Answer):
                outcome.share.release()
            return
        with self._exchange():
            if isinstance(outcome, BaseException):
                self._fail(stream, outcome)
            else:
                self._send_message(stream, outcome)
                self._advance(stream)

    def close(self) -> None:
        """The client has gone: nobody waits any more."""
        for stream in list(self._streams.values()):
            self._forget(stream)
        self._frames.clear()
        self._sender.close()

    def close_now(self) -> None:
        """End it at once, whatever is under way: its place is needed."""
        self._abort(ErrorCodes.NO_ERROR)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Send what the block produces; whatever is wrong with the protocol breaks this connection alone."""
        try:
            yield
        except ProtocolError:
            self.broken = True
        except FrameRefused as refused:
            self._abort(refused.code)
            self._server.note_refused(self.caller, refused.detail)
        self._sender.collect()
        if not any(stream.out for stream in self._streams.values()):
            self._sender.stall.note(self._clock(), left=False)

    def _abort(self, code: ErrorCodes) -> None:
        """Send a last GOAWAY, and free everything that the connection holds."""
        self._send_goaway(self._h2.highest_inbound_stream_id, code)
        self.broken = True
        self.close()

    def _is_partial(self) -> bool:
        """Whether a frame or a header block has begun and not ended."""
        return self._limits.in_block or (self._frames.held_bytes > 0 and not self._frames.waiting)

    def _check_stream(self, stream: Stream, now_s: float) -> None:
        if self._is_stalled(stream, now_s):
            self._reset(stream.number, ErrorCodes.CANCEL)
            self._forget(stream)
        elif stream.trailers is not None or stream.out:
            # Being sent, which nothing cuts off but its rate; meanwhile its client may be unable to send the rest.
            stream.message_s = now_s
        elif now_s - stream.call.deadline > _GRACE_S:
            self._fail(stream, CallFailed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        elif stream.method.streaming and not stream.busy and not stream.is_queued:
            self._check_silent_stream(stream, now_s)

    def _is_stalled(self, stream: Stream, now_s: float) -> bool:
        """Whether the client does not read this stream's answers: its window is closed, or it takes nothing at all.

        While it takes others, a stream may wait for the connection's window, or for its turn.
        """
        if not stream.stall.is_stalled(now_s):
            return False
        own = self._h2.streams.get(stream.number)
        return own is None or own.outbound_flow_control_window <= 0 or self._sender.stall.is_stalled(now_s)

    def _check_silent_stream(self, stream: Stream, now_s: float) -> None:
        """A stream of requests that waits for its client."""
        silent_s = now_s - max(self._draining_s or 0.0, stream.active_s)
        if stream.reader.held_bytes and now_s - stream.message_s > self._server.limit_s:
            self._fail(stream, CallFailed(Code.DEADLINE_EXCEEDED, "The message did not come in time."))
        elif self._draining_s is not None and silent_s > _SILENT_S:
            self._fail(stream, CallFailed(Code.UNAVAILABLE, "This worker is being replaced; begin a new stream."))
        elif silent_s > _IDLE_S:
            self._fail(stream, CallFailed(Code.UNAVAILABLE, "The stream was silent for long; begin a new one."))

    def _on_event(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._on_data(event)
            case RequestReceived():
                self._on_request(event.stream_id, event.headers)
            case StreamEnded():
                self._on_end(event.stream_id)
            case StreamReset():
                self._on_reset(event.stream_id)
            case _:
                self._on_connection_event(event)

    def _on_connection_event(self, event: Event) -> None:
        match event:
            case WindowUpdated():
                self._on_window(event.stream_id)
            case RemoteSettingsChanged():
                self.handshake_done = True
                check_settings(self._h2)
                self._flush_all()
            case PingAckReceived():
                if event.ping_data == _SHUTDOWN_PING and not self._goaway_sent:
                    self._finish_shutdown()
            case ConnectionTerminated():
                self._on_goaway(event)

    def _on_request(self, number: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        size_bytes = sum(len(name) + len(value) for name, value in headers)
        self._limits.charge(size_bytes // HEADER_BYTES_PER_FRAME)
        if sent.get(":method") != "POST" or not sent.get("content-type", "").startswith("application/grpc"):
            with contextlib.suppress(ProtocolError):
                self._h2.send_headers(number, [(":status", "415")], end_stream=True)
            self._half_closed.add(number)
            return
        method = self._server.methods.get(sent.get(":path", ""), _NO_METHOD)
        stream = self._begin(number, sent, method)
        try:
            stream.hold(STREAM_BYTES + size_bytes)
            if "grpc-timeout" in sent:
                limit_s = min(timeout_s(sent["grpc-timeout"]), stream.call.deadline - stream.active_s)
                stream.call = Call(stream.active_s + limit_s, stream.call.gone)
            if method is _NO_METHOD:
                raise CallFailed(Code.UNIMPLEMENTED, f"There is no method {sent.get(':path', '')[:200]}.")
            if not method.quick:
                caller = network_of(self.caller)
                self._server.callers.enter(caller)
                stream.caller = caller
        except (CallFailed, OcrsvcError) as failure:
            self._fail(stream, failure)

    def _begin(self, number: int, sent: dict[str, str], method: Method) -> Stream:
        now_s = self.active_s = self._clock()
        # A stream of requests may stay open; each of them has the limit of a call.
        limit_s = math.inf if method.streaming else self._server.limit_s
        stream = Stream(
            number,
            method,
            Call(now_s + limit_s),
            MessageReader(sent.get("grpc-encoding", "identity"), self._server.most_bytes),
            Share(self._server.memory),
            Share(self._server.arriving),
            self._account_of(sent, method),
            exempt=method.quick and len(self._streams) < _EXEMPT_CALLS,
            active_s=now_s,
        )
        self._streams[number] = stream
        self._server.call_began()
        return stream

    def _account_of(self, sent: dict[str, str], method: Method) -> CallRecord:
        asked_id = sent.get("x-request-id", "")
        known_id = asked_id if len(asked_id) <= _LONGEST_ID and asked_id.isascii() and asked_id.isprintable() else ""
        path = sent.get(":path", "")[:_LONGEST_PATH]
        return CallRecord(method.adapter, path, self.caller, known_id, time.monotonic(), timed=not method.streaming)

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._acknowledge(event.stream_id, event.flow_controlled_length)
            if event.stream_ended is None:
                self._half_closed.discard(event.stream_id)
                self._reset(event.stream_id, ErrorCodes.NO_ERROR)
            return
        stream.active_s = self._clock()
        stream.unacknowledged += event.flow_controlled_length
        if stream.trailers is None:
            self._guarded(stream, lambda: self._on_bytes(stream, event.data))
        self._acknowledge_wanted(stream)

    def _on_bytes(self, stream: Stream, data: bytes) -> None:
        if not stream.reader.held_bytes:
            stream.message_s = stream.active_s
        stream.arrive(data)
        if stream.method.streaming:
            self._advance(stream)
            return
        while stream.reader.is_ready():
            if stream.pending:
                raise CallFailed(Code.UNIMPLEMENTED, "The request has more than one message.")
            stream.pending.append(stream.reader.take())

    def _on_end(self, number: int) -> None:
        if number in self._half_closed:
            self._half_closed.remove(number)
            self._limits.allow(ANSWER_FRAMES)
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.ended = True
        if not stream.method.streaming and not stream.pending and not stream.reader.held_bytes:
            self._fail(stream, CallFailed(Code.UNIMPLEMENTED, "The request has no message."))
        elif not stream.method.streaming and stream.reader.held_bytes:
            self._fail(stream, _unfinished())
        else:
            self._advance(stream)

    def _on_reset(self, number: int) -> None:
        if number in self._half_closed:
            # A client that is refused sends no more: it is not charged for a call that was begun for nothing.
            self._half_closed.remove(number)
            return
        if stream := self._streams.get(number):
            self._forget(stream)
        self._limits.charge(RESET_FRAMES)

    def _guarded(self, stream: Stream, turn: Callable[[], None]) -> None:
        """A turn of a stream; what is refused in it ends this call alone."""
        try:
            turn()
        except (CallFailed, OcrsvcError) as failure:
            self._fail(stream, failure)

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        """The client sent GOAWAY: it begins no more calls, but waits for the answers to those that it has begun.

        h2 takes the connection for closed here, and would send no answer; RFC 9113 section 6.8 wants them sent.
        """
        if event.error_code != ErrorCodes.NO_ERROR:
            self.broken = True
            return
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN
        self._goaway_sent = True

    def _advance(self, stream: Stream) -> None:
        """Answer the next message, or end the call after the last; not before the client has taken the last answer."""
        if not stream.busy and not stream.is_queued and stream.trailers is None and not stream.out:
            self._guarded(stream, lambda: self._take_next(stream))

    def _take_next(self, stream: Stream) -> None:
        if not stream.pending and stream.reader.is_ready():
            stream.pending.append(stream.reader.take())
            stream.message_s = self._clock()
        if stream.pending:
            if stream.method.streaming or stream.ended:
                self._answer_next(stream)
        elif stream.ended:
            if stream.reader.held_bytes:
                raise _unfinished()
            self._end(stream, Code.OK, "")

    def _answer_next(self, stream: Stream) -> None:
        sent = stream.pending[0]
        here = stream.method.quick and sent.encoding is None and sent.size <= _QUICK_BYTES
        if not here and not self._has_thread(stream):
            return
        stream.pending.popleft()
        stream.record.bytes_in += len(sent.data)
        deadline = min(stream.call.deadline, self._clock() + self._server.limit_s)
        if here:
            stream.busy = True
            self._answer_here(stream, sent, Call(deadline, stream.call.gone))
        else:
            call = Call(deadline, stream.call.gone, stream.hand_over(sent))
            stream.busy = True
            self._server.run(self, stream, Job(stream.method, sent, call, self._server.most_bytes, self._server.memory))
        self._acknowledge_wanted(stream)

    def _has_thread(self, stream: Stream) -> bool:
        """Whether a thread is free; if not, a call is to be sent again, but a stream would lose all that is to follow.

        Raises:
            QueueFull: For a call.
        """
        try:
            self._server.check_thread()
        except QueueFull:
            if not stream.method.streaming:
                raise
            stream.is_queued = True
            self._server.enqueue(self, stream)
        return not stream.is_queued

    def _answer_here(self, stream: Stream, sent: ReceivedMessage, call: Call) -> None:
        """In the loop: small, and counted with the stream."""
        outcome: Answer | BaseException
        try:
            outcome = Job(stream.method, sent, call, self._server.most_bytes, self._unlimited)()
        except Exception as error:  # noqa: BLE001  the edge: whatever goes wrong is this call's own
            outcome = error
        self.answered(stream, outcome)

    def _send_message(self, stream: Stream, answer: Answer) -> None:
        stream.record.bytes_out += len(answer.data) - PREFIX_BYTES
        stream.put(answer)
        self._limits.allow(ANSWER_FRAMES)
        self._flush(stream)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        failure = failure_of(error)
        stream.record.error = error
        more = []
        if isinstance(error, Refused):
            more = [("grpc-retry-pushback-ms", str(error.retry_after_s * 1000))]
        self._end(stream, failure.code, failure.message, more)

    def _end(self, stream: Stream, code: Code, message: str, more: Iterable[tuple[str, str]] = ()) -> None:
        if stream.trailers is None:
            text = [("grpc-message", escaped(message))] if message else []
            stream.trailers = [("grpc-status", str(int(code))), *text, *more]
            stream.record.code = code
            if stream.ended:
                self._limits.allow(ANSWER_FRAMES)
            if code is not Code.OK:
                stream.call.gone.set()
                stream.drop()
            self._flush(stream)

    def _on_window(self, number: int) -> None:
        """The client takes more of one stream, or (0) of all together."""
        self.handshake_done = True
        if not number:
            self._flush_all()
        elif stream := self._streams.get(number):
            self._flush(stream)
            self._advance(stream)

    def _flush_all(self) -> None:
        for stream in list(self._streams.values()):
            if self._h2.outbound_flow_control_window <= 0:
                break
            if stream.out:
                self._flush(stream)
                self._advance(stream)

    def _flush(self, stream: Stream) -> None:
        """Send what flow control and the socket let through, and the status after everything else."""
        try:
            moved_bytes = self._sender.send(stream)
            self._limits.allow(moved_bytes // TAKEN_BYTES_PER_FRAME)
            if stream.out:
                self._note_stall(stream, moved_bytes)
            elif stream.trailers is not None:
                head = [] if stream.begun else _HEADERS
                self._h2.send_headers(stream.number, [*head, *stream.trailers], end_stream=True)
                if not stream.ended:
                    self._half_closed.add(stream.number)
                self._forget(stream)
            else:
                stream.stall.note(self._clock(), left=False)
        except ProtocolError:
            # The client has reset the stream; h2 knows it before its event comes here.
            self._forget(stream)

    def _note_stall(self, stream: Stream, moved_bytes: int) -> None:
        now_s = self._clock()
        stream.stall.note(now_s, left=True, taken=moved_bytes)
        self._sender.stall.note(now_s, left=True, taken=moved_bytes)
        if moved_bytes and stream.number in self._streams:
            # The others are served before it.
            self._streams[stream.number] = self._streams.pop(stream.number)

    def _reset(self, number: int, code: ErrorCodes) -> None:
        """Tell the client to send no more on this stream; it may have ended already."""
        with contextlib.suppress(ProtocolError):
            self._h2.reset_stream(number, code)

    def _forget(self, stream: Stream) -> None:
        stream.call.gone.set()
        if self._streams.pop(stream.number, None) is not None:
            self._server.call_ended(stream.record)
            if stream.caller is not None:
                self._server.callers.leave(stream.caller)
            if stream.is_queued:
                self._server.dequeue(stream)
        self._acknowledge_all(stream)
        stream.drop()

    def _acknowledge_wanted(self, stream: Stream) -> None:
        """Let the client send more, unless a whole message waits already for the one before it."""
        if not stream.pending and not stream.reader.waits:
            self._acknowledge_all(stream)

    def _acknowledge_all(self, stream: Stream) -> None:
        size, stream.unacknowledged = stream.unacknowledged, 0
        self._acknowledge(stream.number, size)

    def _acknowledge(self, number: int, size: int) -> None:
        if size:
            with contextlib.suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, number)

    def _finish_shutdown(self) -> None:
        self._goaway_sent = True
        self._send_goaway(self._h2.highest_inbound_stream_id)

    def _send_goaway(self, last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """h2's own GOAWAY closes the connection at once; this one leaves it open."""
        self._sender.collect()
        self._sender.out += GoAwayFrame(0, last_stream_id=last_stream, error_code=int(code)).serialize()


def _unfinished() -> CallFailed:
    return CallFailed(Code.INTERNAL, "The request ends in the middle of a message.")


_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ",".join(("identity", *ENCODINGS))),
]
_NO_METHOD: Final = Method(None, lambda _message, _call: None)
