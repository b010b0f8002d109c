"""What happens on one HTTP/2 connection: its streams, flow control, cancellation, time limits, and its polite end?

Bytes in, bytes out; no sockets and no threads. All of it runs on the loop's thread.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

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

from ocrsvc.errors import QueueFull, Refused
from ocrsvc.rpc.codes import CallFailed, Code, failure_of
from ocrsvc.rpc.counting import Account
from ocrsvc.rpc.frames import Frames
from ocrsvc.rpc.greeting import open_h2
from ocrsvc.rpc.method import Call, Method, Methods
from ocrsvc.rpc.parsing import parse
from ocrsvc.rpc.stream import Pending, Stream
from ocrsvc.rpc.wire import ENCODINGS, MessageReader, Sent, escaped, frame, timeout_s
from ocrsvc.serving.guard import take_body
from ocrsvc.serving.limits import Budget, Callers, Share

# Messages of one stream that may wait for their turn; then its client is told to wait, by flow control.
_MOST_PENDING: Final = 2
# What a message costs beside its bytes: many may be empty.
_MESSAGE_BYTES: Final = 512
# A call whose answer is not there at its deadline is given up by its own thread first; then by the loop.
_GRACE_S: Final = 0.5
# Beyond this a message is parsed in a pool thread, however quick its answer is.
_QUICK_BYTES: Final = 1 << 14
# How long a stream of requests may be silent while its worker leaves.
_SILENT_S: Final = 2.0
_LONGEST_ID: Final = 128
_ANY_STREAM: Final = 2**31 - 1
_GOODBYE: Final = b"goodbye!"
_DRAIN_PING_S: Final = 2.0
# What one connection may take of the loop before the others have their turn.
_TURN_S: Final = 0.02


class Host(Protocol):
    """What a connection needs of the server that it belongs to."""

    methods: Methods
    most_bytes: int
    limit_s: float
    memory: Budget
    callers: Callers

    def begun(self) -> None:
        """A call has come."""
        ...

    def ended(self, account: Account) -> None:
        """It is over."""
        ...

    def run(self, connection: Connection, stream: Stream, answer: Callable[[], Any]) -> None:
        """Make an answer in a pool thread; `answered` follows, on the loop's thread. Raises QueueFull."""
        ...

    def line_up(self, connection: Connection, stream: Stream) -> None:
        """Call `resume` once a thread is free."""
        ...


class Connection:
    """One connection of a client.

    Args:
        host: The server.
        clock: Monotonic seconds.
        caller: Whose calls these are, for the cap of one caller.
    """

    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic, caller: str = "") -> None:
        self._host = host
        self._caller = caller
        self._clock = clock
        self._h2 = open_h2()
        self._streams: dict[int, Stream] = {}
        self._out = bytearray()
        self._frames = Frames()
        self._leaving_s: float | None = None
        self._parting_s: float | None = None
        self._parted = False
        self.began_s = clock()
        self.greeted = False
        self.broken = False
        self._collect()

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._streams)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be said: the goodbye is sent, and every call is answered."""
        return self._parted and not self._streams and not self._out

    @property
    def waiting(self) -> bool:
        """Whether frames that came wait for the connection's next turn."""
        return self._frames.waiting and not self.broken

    def receive(self, data: bytes) -> None:
        """What the client has sent; sets `broken` when it does not speak HTTP/2. One turn, as `go_on`."""
        self._frames.feed(data)
        self.go_on()

    def go_on(self) -> None:
        """One turn: the frames that came are dealt with, as many as there is time for.

        Few bytes may ask for much work, and the other connections must not wait for all of it.
        """
        end_s = self._clock() + _TURN_S
        with self._speaking():
            while piece := self._frames.cut():
                for event in self._h2.receive_data(piece):
                    self._on_event(event)
                if self._clock() > end_s:
                    break

    def take_out(self) -> bytearray:
        """What is to be sent; the caller removes from its front what it has sent."""
        return self._out

    def part(self) -> None:
        """Begin the polite end: new calls are told to go elsewhere, those that are here or under way are answered.

        First a GOAWAY that refuses nothing, because calls may be under way; once the client has seen it (it answers the
        ping), the one that names the last call that was served.
        """
        if self._parting_s is None and not self.broken:
            self._parting_s = self._clock()
            with self._speaking():
                self._send_goaway(_ANY_STREAM)
                self._h2.ping(_GOODBYE)

    def leave(self) -> None:
        """Part, and end the streams that are silent: their worker goes."""
        self._leaving_s = self._clock() if self._leaving_s is None else self._leaving_s
        self.part()

    def resume(self, stream: Stream) -> None:
        """A thread is free for this stream, which has lined up for it."""
        stream.in_line = False
        if self._streams.get(stream.number) is stream:
            with self._speaking():
                self._advance(stream)

    def look(self) -> None:
        """Give up what is over its time."""
        now_s = self._clock()
        with self._speaking():
            for stream in list(self._streams.values()):
                self._look_at(stream, now_s)
            if self._parting_s is not None and not self._parted and now_s - self._parting_s > _DRAIN_PING_S:
                self._finish_parting()

    def answered(self, stream: Stream, outcome: bytes | BaseException) -> None:
        """A message of this stream has its answer, or the error that ends the call."""
        stream.busy, stream.active_s = False, self._clock()
        if self._streams.get(stream.number) is not stream:
            return
        with self._speaking():
            if isinstance(outcome, BaseException):
                self._fail(stream, outcome)
            else:
                self._send_message(stream, outcome)
                self._advance(stream)

    def close(self) -> None:
        """The client has gone: nobody waits any more."""
        for stream in list(self._streams.values()):
            self._forget(stream)

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        """Whatever is said in the block is sent; whatever is wrong with the protocol breaks the connection alone."""
        try:
            yield
        except ProtocolError:
            self.broken = True
        self._collect()

    def _look_at(self, stream: Stream, now_s: float) -> None:
        if stream.unread.is_stalled(now_s):
            self._reset(stream.number, ErrorCodes.CANCEL)
            self._forget(stream)
        elif stream.trailers is not None:
            return
        elif now_s - stream.call.deadline > _GRACE_S:
            self._fail(stream, CallFailed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        elif stream.method.streaming and self._is_silent(stream, now_s):
            self._fail(stream, CallFailed(Code.UNAVAILABLE, "This worker is being replaced; begin a new stream."))

    def _is_silent(self, stream: Stream, now_s: float) -> bool:
        """Whether nothing has happened for a while in a stream whose worker leaves."""
        if self._leaving_s is None or stream.busy or stream.in_line:
            return False
        return now_s - max(self._leaving_s, stream.active_s) > _SILENT_S

    def _on_event(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._on_data(event)
            case RequestReceived():
                self._on_request(event.stream_id, event.headers)
            case StreamEnded():
                self._on_end(event.stream_id)
            case StreamReset():
                if stream := self._streams.get(event.stream_id):
                    self._forget(stream)
            case _:
                self._on_connection_event(event)

    def _on_connection_event(self, event: Event) -> None:
        match event:
            case WindowUpdated() | RemoteSettingsChanged():
                self.greeted = True
                self._flush_all()
            case PingAckReceived():
                if event.ping_data == _GOODBYE and not self._parted:
                    self._finish_parting()
            case ConnectionTerminated():
                self._on_goaway(event)

    def _on_request(self, number: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        if sent.get(":method") != "POST" or not sent.get("content-type", "").startswith("application/grpc"):
            with contextlib.suppress(ProtocolError):
                self._h2.send_headers(number, [(":status", "415")], end_stream=True)
            self._reset(number, ErrorCodes.NO_ERROR)
            return
        encoding = sent.get("grpc-encoding", "identity")
        method = self._host.methods.get(sent.get(":path", ""), _NO_METHOD)
        # A stream of requests may stay open; each of them has the limit of a call.
        limit_s = math.inf if method.streaming else self._host.limit_s
        reader, share, now_s = MessageReader(encoding, self._host.most_bytes), Share(self._host.memory), self._clock()
        account = self._account_of(sent, method)
        stream = Stream(number, method, Call(now_s + limit_s), reader, share, account, active_s=now_s)
        self._streams[number] = stream
        self._host.begun()
        try:
            if "grpc-timeout" in sent:
                stream.call = Call(now_s + min(timeout_s(sent["grpc-timeout"]), limit_s))
            if method is _NO_METHOD:
                raise CallFailed(Code.UNIMPLEMENTED, f"There is no method {sent.get(':path', '')[:200]}.")
            if not method.quick:
                self._host.callers.enter(self._caller)
                stream.caller = self._caller
        except (CallFailed, Refused) as failure:
            self._fail(stream, failure)

    def _account_of(self, sent: dict[str, str], method: Method) -> Account:
        asked_id = sent.get("x-request-id", "")
        known_id = asked_id if len(asked_id) <= _LONGEST_ID and asked_id.isascii() and asked_id.isprintable() else ""
        path = sent.get(":path", "")
        return Account(method.door, path, self._caller, known_id, time.monotonic(), timed=not method.streaming)

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._acknowledge(event.stream_id, event.flow_controlled_length)
            return
        stream.active_s = self._clock()
        stream.unacknowledged += event.flow_controlled_length
        try:
            stream.share.take(len(event.data))
            for sent in stream.reader.feed(event.data):
                if stream.number in self._streams:
                    self._on_message(stream, sent)
        except (CallFailed, Refused) as failure:
            self._fail(stream, failure)
        if len(stream.pending) <= _MOST_PENDING:
            self._acknowledge_all(stream)

    def _on_message(self, stream: Stream, sent: Sent) -> None:
        stream.account.bytes_in += len(sent.data)
        stream.share.take(_MESSAGE_BYTES)
        stream.pending.append(Pending(sent, stream.share.split(sent.size + _MESSAGE_BYTES)))
        if stream.method.streaming:
            self._advance(stream)
        elif len(stream.pending) > 1:
            raise CallFailed(Code.UNIMPLEMENTED, "The request has more than one message.")

    def _on_end(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.ended = True
        if stream.reader.unfinished:
            self._fail(stream, CallFailed(Code.INTERNAL, "The request ends in the middle of a message."))
        elif not stream.method.streaming and not stream.pending:
            self._fail(stream, CallFailed(Code.UNIMPLEMENTED, "The request has no message."))
        else:
            self._advance(stream)

    def _on_goaway(self, event: ConnectionTerminated) -> None:
        """The client parts: it begins no more calls, but waits for the answers to those that it has begun.

        h2 takes the connection for closed here, and would send no answer; RFC 9113 section 6.8 wants them sent.
        """
        if event.error_code != ErrorCodes.NO_ERROR:
            self.broken = True
            return
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN
        self._parted = True

    def _advance(self, stream: Stream) -> None:
        """Answer the next message, or end the call after the last; not before the client has taken the last answer."""
        if stream.busy or stream.in_line or stream.trailers is not None:
            return
        if stream.pending:
            if not stream.out and (stream.method.streaming or stream.ended):
                self._answer_next(stream)
        elif stream.ended:
            self._end(stream, Code.OK, "")

    def _answer_next(self, stream: Stream) -> None:
        pending = stream.pending.popleft()
        call = Call(min(stream.call.deadline, self._clock() + self._host.limit_s), stream.call.gone)
        answer = partial(_answer, stream.method, pending, call, self._host)
        stream.busy = True
        try:
            if stream.method.quick and pending.sent.encoding is None and pending.sent.size <= _QUICK_BYTES:
                self._answer_here(stream, answer)
            else:
                self._host.run(self, stream, answer)
        except QueueFull as refusal:
            stream.busy = False
            self._wait_in_line(stream, pending, refusal)
        if len(stream.pending) <= _MOST_PENDING and not stream.in_line:
            self._acknowledge_all(stream)

    def _wait_in_line(self, stream: Stream, pending: Pending, refusal: QueueFull) -> None:
        """No thread is free: a call is to be sent again, but a stream would lose all that is to follow."""
        stream.pending.appendleft(pending)
        if stream.method.streaming:
            stream.in_line = True
            self._host.line_up(self, stream)
        else:
            self._fail(stream, refusal)

    def _answer_here(self, stream: Stream, answer: Callable[[], Any]) -> None:
        outcome: bytes | BaseException
        try:
            outcome = answer().SerializeToString()
        except Exception as error:  # noqa: BLE001  the edge: whatever goes wrong is this call's own
            outcome = error
        self.answered(stream, outcome)

    def _send_message(self, stream: Stream, message: bytes) -> None:
        stream.account.bytes_out += len(message)
        stream.out.append(memoryview(frame(message)))
        self._flush(stream)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        failure = failure_of(error)
        stream.account.error = error
        more = []
        if isinstance(error, Refused):
            more = [("grpc-retry-pushback-ms", str(error.retry_after_s * 1000))]
        self._end(stream, failure.code, failure.told, more)

    def _end(self, stream: Stream, code: Code, told: str, more: Iterable[tuple[str, str]] = ()) -> None:
        if stream.trailers is None:
            text = [("grpc-message", escaped(told))] if told else []
            stream.trailers = [("grpc-status", str(int(code))), *text, *more]
            stream.account.code = code
            if code is not Code.OK:
                stream.call.gone.set()
                stream.out.clear()
                stream.drop_pending()
            self._flush(stream)

    def _flush_all(self) -> None:
        for stream in list(self._streams.values()):
            if stream.out:
                self._flush(stream)
                self._advance(stream)

    def _flush(self, stream: Stream) -> None:
        """Send what flow control lets through, and the status after everything else."""
        try:
            self._send_pieces(stream)
            if stream.trailers is not None and not stream.out:
                head = [] if stream.begun else _HEADERS
                self._h2.send_headers(stream.number, [*head, *stream.trailers], end_stream=True)
                if not stream.ended:
                    self._reset(stream.number, ErrorCodes.NO_ERROR)
                self._forget(stream)
            stream.unread.note(self._clock(), left=bool(stream.out))
        except ProtocolError:
            # The client has reset the stream; h2 knows it before its event comes here.
            self._forget(stream)

    def _send_pieces(self, stream: Stream) -> None:
        while stream.out:
            room = min(self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            if not stream.begun:
                stream.begun = True
                self._h2.send_headers(stream.number, _HEADERS)
            piece = stream.out.popleft()
            self._h2.send_data(stream.number, piece[:room].tobytes())
            stream.active_s = self._clock()
            stream.unread.note(stream.active_s, left=True, taken=min(room, len(piece)))
            if len(piece) > room:
                stream.out.appendleft(piece[room:])

    def _reset(self, number: int, code: ErrorCodes) -> None:
        """Tell the client to send no more on this stream; it may have ended already."""
        with contextlib.suppress(ProtocolError):
            self._h2.reset_stream(number, code)

    def _forget(self, stream: Stream) -> None:
        stream.call.gone.set()
        if self._streams.pop(stream.number, None) is not None:
            self._host.ended(stream.account)
            if stream.caller is not None:
                self._host.callers.leave(stream.caller)
        self._acknowledge_all(stream)
        stream.drop_pending()

    def _acknowledge_all(self, stream: Stream) -> None:
        size, stream.unacknowledged = stream.unacknowledged, 0
        self._acknowledge(stream.number, size)

    def _acknowledge(self, number: int, size: int) -> None:
        if size:
            with contextlib.suppress(ProtocolError):
                self._h2.acknowledge_received_data(size, number)

    def _finish_parting(self) -> None:
        self._parted = True
        self._send_goaway(self._h2.highest_inbound_stream_id)

    def _send_goaway(self, last_stream: int) -> None:
        """h2's own goodbye closes the connection at once; this one leaves it as it is."""
        self._collect()
        self._out += GoAwayFrame(0, last_stream_id=last_stream, error_code=int(ErrorCodes.NO_ERROR)).serialize()

    def _collect(self) -> None:
        self._out += self._h2.data_to_send()


def _answer(method: Method, pending: Pending, call: Call, host: Host) -> Any:
    """Any thread: open one message, and answer it; its memory is given back. Raises OcrsvcError, CallFailed."""
    try:
        if call.gone.is_set():
            raise CallFailed(Code.CANCELLED, "The client has gone.")
        take_body(pending.sent.data)
        message = parse(method.request, pending.sent.plain(host.most_bytes, pending.share))
        return method.answer(message, call)
    finally:
        pending.share.release()


_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ",".join(("identity", *ENCODINGS))),
]
_NO_METHOD: Final = Method(None, lambda _message, _call: None)
