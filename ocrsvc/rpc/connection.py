"""What happens on one HTTP/2 connection: its streams, flow control, cancellation, time limits, and its polite end?

Bytes in, bytes out; no sockets and no threads. All of it runs on the loop's thread.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
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
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from ocrsvc.errors import Refused
from ocrsvc.rpc.codes import CallFailed, Code, failure_of
from ocrsvc.rpc.method import Call, Method, Methods
from ocrsvc.rpc.wire import ENCODINGS, MessageReader, escaped, frame, timeout_s

MAX_STREAMS: Final = 1000
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 16 << 20
MAX_FRAME: Final = 1 << 20
MAX_HEADERS: Final = 1 << 16
# Messages of one stream that may wait for their turn; then its client is told to wait, by flow control.
_MOST_PENDING: Final = 2
# A call whose answer is not there at its deadline is given up by its own thread first; then by the loop.
_GRACE_S: Final = 0.5
# How long a client may take nothing of its answer.
_UNREAD_S: Final = 30.0
# How long a stream of requests may be silent while its worker leaves.
_SILENT_S: Final = 2.0
_ANY_STREAM: Final = 2**31 - 1
_GOODBYE: Final = b"goodbye!"
_DRAIN_PING_S: Final = 2.0


class Host(Protocol):
    """What a connection needs of the server that it belongs to."""

    methods: Methods
    most_bytes: int
    limit_s: float

    def hold(self, size: int) -> bool:
        """Keep so many more bytes of requests in memory, or fewer if negative; False if there are too many."""
        ...

    def run(self, connection: Connection, stream: Stream, answer: Callable[[], Any]) -> None:
        """Make an answer in a pool thread; `answered` follows, on the loop's thread. Raises CallFailed."""
        ...


@dataclass(eq=False, slots=True)
class Stream:
    """One call on its way.

    Attributes:
        pending: Messages that wait for the one before them.
        held: Bytes of it that count as kept in memory.
        unacknowledged: Bytes of it that flow control has not given back to the client.
        active_s: When it was last heard of, or answered.
        busy: Whether a message is being answered.
        ended: Whether the client has sent everything.
        out: Framed answers that flow control does not let through yet.
        trailers: The status, once it is known; sent after `out`.
    """

    number: int
    method: Method
    call: Call
    reader: MessageReader
    pending: deque[bytes] = field(default_factory=deque)
    held: int = 0
    unacknowledged: int = 0
    active_s: float = 0.0
    busy: bool = False
    ended: bool = False
    begun: bool = False
    out: deque[memoryview] = field(default_factory=deque)
    trailers: list[tuple[str, str]] | None = None


class Connection:
    """One connection of a client.

    Args:
        host: The server.
        clock: Monotonic seconds.
    """

    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._clock = clock
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._streams: dict[int, Stream] = {}
        self._out = bytearray()
        self._parting_s: float | None = None
        self._parted = False
        self.began_s = clock()
        self.greeted = False
        self.broken = False
        self._greet()

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._streams)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be said: the goodbye is sent, and every call is answered."""
        return self._parted and not self._streams and not self._out

    def receive(self, data: bytes) -> None:
        """What the client has sent; sets `broken` when it does not speak HTTP/2."""
        with self._speaking():
            for event in self._h2.receive_data(data):
                self._on_event(event)

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
        if stream.trailers is not None:
            if now_s - stream.active_s > _UNREAD_S:
                self._reset(stream.number, ErrorCodes.CANCEL)
                self._forget(stream)
        elif now_s - stream.call.deadline > _GRACE_S:
            self._fail(stream, CallFailed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        elif stream.method.streaming and not stream.busy and self._has_parted_s(now_s, stream.active_s) > _SILENT_S:
            self._fail(stream, CallFailed(Code.UNAVAILABLE, "This worker is being replaced; begin a new stream."))

    def _has_parted_s(self, now_s: float, active_s: float) -> float:
        """How long nothing has happened since this connection began to part; 0 if it has not."""
        return now_s - max(self._parting_s, active_s) if self._parting_s is not None else 0.0

    def _greet(self) -> None:
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
            },
        )
        self._h2.max_inbound_frame_size = MAX_FRAME
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._collect()

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
        reader = MessageReader(encoding, self._host.most_bytes)
        now_s = self._clock()
        stream = self._streams[number] = Stream(number, method, Call(now_s + limit_s), reader, active_s=now_s)
        try:
            if "grpc-timeout" in sent:
                stream.call = Call(now_s + min(timeout_s(sent["grpc-timeout"]), limit_s))
            if method is _NO_METHOD:
                raise CallFailed(Code.UNIMPLEMENTED, f"There is no method {sent.get(':path', '')[:200]}.")
        except CallFailed as failure:
            self._fail(stream, failure)

    def _on_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._acknowledge(event.stream_id, event.flow_controlled_length)
            return
        stream.active_s = self._clock()
        stream.unacknowledged += event.flow_controlled_length
        try:
            self._hold(stream, len(event.data))
            stream.pending.extend(stream.reader.feed(event.data))
            if stream.method.streaming:
                self._advance(stream)
        except CallFailed as failure:
            self._fail(stream, failure)
        if len(stream.pending) <= _MOST_PENDING:
            self._acknowledge_all(stream)

    def _on_end(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.ended = True
        if stream.reader.unfinished:
            self._fail(stream, CallFailed(Code.INTERNAL, "The request ends in the middle of a message."))
        elif not stream.method.streaming and len(stream.pending) != 1:
            told = f"The request has {len(stream.pending)} messages instead of 1."
            self._fail(stream, CallFailed(Code.UNIMPLEMENTED, told))
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
        """Answer the next message, or end the call after the last."""
        if stream.busy or stream.trailers is not None:
            return
        if stream.pending:
            if stream.method.streaming or stream.ended:
                self._answer_next(stream)
        elif stream.ended:
            self._end(stream, Code.OK, "")

    def _answer_next(self, stream: Stream) -> None:
        data = stream.pending.popleft()
        self._acknowledge_all(stream)
        call = Call(min(stream.call.deadline, self._clock() + self._host.limit_s), stream.call.gone)
        try:
            message = stream.method.request.FromString(data)
            stream.busy = True
            if stream.method.quick:
                self._answer_here(stream, message, call)
            else:
                self._host.run(self, stream, partial(stream.method.answer, message, call))
        except DecodeError:
            self._fail(stream, CallFailed(Code.INVALID_ARGUMENT, "The message cannot be decoded."))
        except CallFailed as failure:
            self._fail(stream, failure)
        finally:
            if stream.method.streaming:
                self._hold(stream, -min(stream.held, len(data)))

    def _answer_here(self, stream: Stream, message: Any, call: Call) -> None:
        outcome: bytes | BaseException
        try:
            outcome = stream.method.answer(message, call).SerializeToString()
        except Exception as error:  # noqa: BLE001  the edge: whatever goes wrong is this call's own
            outcome = error
        self.answered(stream, outcome)

    def _send_message(self, stream: Stream, message: bytes) -> None:
        stream.out.append(memoryview(frame(message)))
        self._flush(stream)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        failure = failure_of(error)
        more = []
        if isinstance(error, Refused):
            more = [("grpc-retry-pushback-ms", str(error.retry_after_s * 1000))]
        self._end(stream, failure.code, failure.told, more)

    def _end(self, stream: Stream, code: Code, told: str, more: Iterable[tuple[str, str]] = ()) -> None:
        if stream.trailers is None:
            text = [("grpc-message", escaped(told))] if told else []
            stream.trailers = [("grpc-status", str(int(code))), *text, *more]
            if code is not Code.OK:
                stream.call.gone.set()
                stream.out.clear()
            self._flush(stream)

    def _flush_all(self) -> None:
        for stream in list(self._streams.values()):
            if stream.out:
                self._flush(stream)

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
            if len(piece) > room:
                stream.out.appendleft(piece[room:])

    def _reset(self, number: int, code: ErrorCodes) -> None:
        """Tell the client to send no more on this stream; it may have ended already."""
        with contextlib.suppress(ProtocolError):
            self._h2.reset_stream(number, code)

    def _forget(self, stream: Stream) -> None:
        stream.call.gone.set()
        self._streams.pop(stream.number, None)
        self._acknowledge_all(stream)
        self._hold(stream, -stream.held)
        stream.pending.clear()

    def _hold(self, stream: Stream, size: int) -> None:
        stream.held += size
        if not self._host.hold(size) and size > 0:
            raise CallFailed(Code.UNAVAILABLE, "Too many bytes of requests are held already; try again in a moment.")

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


_HEADERS: Final = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ",".join(("identity", *ENCODINGS))),
]
_NO_METHOD: Final = Method(None, lambda _message, _call: None)
