"""The calls of one HTTP/2 connection: receive messages, answer them one at a time, end each call with a status."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from h2.errors import ErrorCodes
from h2.events import DataReceived
from h2.exceptions import ProtocolError

from ocrsvc.access.local_callers import PROXY_HEADERS
from ocrsvc.errors import OcrsvcError, QueueFull, Refused
from ocrsvc.grpc_server import limits, messages
from ocrsvc.grpc_server.http2 import FrameLimits, Sender
from ocrsvc.grpc_server.messages import Answer, MessageReader, ReceivedMessage
from ocrsvc.grpc_server.method import Call, CallFailed, Code, Method, failure_of
from ocrsvc.grpc_server.server_state import Outcome, ServerState, outcome_of
from ocrsvc.grpc_server.stream import Admission, Stream
from ocrsvc.masking.rules import HEADER, kinds_of_header
from ocrsvc.serving.memory_budget import Budget, Share, network_of
from ocrsvc.telemetry.trace_context import PARENT_HEADER, STATE_HEADER

_MASK: Final = HEADER.lower()
_LISTS: Final = frozenset({PARENT_HEADER, STATE_HEADER, _MASK})
_NO_METHOD: Final = Method(None, lambda _message, _call: None)
# Clients parse the retry delay as a 32-bit number.
_MAX_RETRY_MS: Final = 2**31 - 1
_RETRY: Final = "grpc-retry-pushback-ms"


@dataclass(eq=False)
class Calls:
    """The open calls of one connection."""

    state: ServerState
    sender: Sender
    frame_limits: FrameLimits
    clock: Callable[[], float]
    # A context manager: sends the output that its block has buffered; an error in the block ends the connection.
    exchange: Callable[[], AbstractContextManager[None]]
    # `caller` is the peer's address, `client_name` the name of the API key for its verified TLS certificate.
    caller: str
    client_name: str | None = None

    def __post_init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        # Numbers of calls whose status was sent before their request ended.
        self._half_closed: set[int] = set()
        # When a call last began or was answered.
        self.active_s = self.clock()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def have_answers(self) -> bool:
        """Whether any answer waits to be sent."""
        return any(stream.out for stream in self._streams.values())

    def begin(self, number: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin a call when its headers have arrived. Raises FrameRefused."""
        values = headers_by_name(headers)
        size_bytes = sum(len(name) + len(value) for name, value in headers)
        self.frame_limits.charge(size_bytes // limits.HEADER_BYTES_PER_FRAME)
        if values.get(":method") != "POST" or not values.get("content-type", "").startswith("application/grpc"):
            with contextlib.suppress(ProtocolError):
                self.sender.h2.send_headers(number, [(":status", "415")], end_stream=True)
            self._half_closed.add(number)
            return
        self.active_s = self.clock()
        stream = self._streams[number] = self._open(number, values)
        with self._guarded(stream):
            self._check(stream, values, limits.STREAM_BYTES + size_bytes)

    def receive(self, event: DataReceived) -> None:
        """Buffer received data of a call, and answer a complete message."""
        number, size = event.stream_id, event.flow_controlled_length
        stream = self._streams.get(number)
        if stream is None:
            self.sender.acknowledge(number, size)
            if event.stream_ended is None:
                self._half_closed.discard(number)
                self.sender.reset(number, ErrorCodes.NO_ERROR)
            return
        stream.active_s = self.clock()
        stream.unacknowledged += size
        if stream.trailers is None:
            with self._guarded(stream):
                stream.feed(event.data)
                if not stream.method.streaming and stream.reader.is_ready() and not stream.reader.is_last():
                    raise CallFailed(Code.UNIMPLEMENTED, "The request has more than one message.")
            if stream.method.streaming:
                self._advance(stream)
        self._acknowledge(stream)

    def end(self, number: int) -> None:
        """The client will send no more messages in this call: answer the last one, or end the call."""
        if number in self._half_closed:
            self._half_closed.remove(number)
            self.frame_limits.allow(limits.ANSWER_FRAMES)
        if stream := self._streams.get(number):
            stream.has_ended = True
            if not stream.method.streaming and not stream.reader.data:
                self._fail(stream, CallFailed(Code.UNIMPLEMENTED, "The request has no message."))
            self._advance(stream)

    def reset(self, number: int) -> None:
        """The client has cancelled a call: forget it. Raises FrameRefused if there are too many cancellations."""
        if number in self._half_closed:
            # The server has ended this call already, so its cancellation does not count as wasted work.
            self._half_closed.remove(number)
            return
        if stream := self._streams.get(number):
            self._forget(stream)
        self.frame_limits.charge(limits.RESET_FRAMES)

    def answered(self, stream: Stream, outcome: Outcome) -> None:
        """Send the answer to a message, or end the call with an error."""
        stream.is_busy = False
        self.active_s = stream.active_s = self.clock()
        if self._streams.get(stream.number) is not stream:
            if isinstance(outcome, Answer):
                outcome.share.release()
        elif isinstance(outcome, BaseException):
            self._fail(stream, outcome)
        else:
            stream.record.bytes_out += len(outcome.data) - messages.PREFIX_BYTES
            stream.out.append(outcome)
            self.frame_limits.allow(limits.ANSWER_FRAMES)
            self._flush(stream)

    def send_more(self, number: int = 0) -> None:
        """Send more after the client enlarged the flow control window of a call, or of the connection (number 0)."""
        streams: list[Stream | None] = [self._streams.get(number)] if number else list(self._streams.values())
        for stream in streams:
            if self.sender.h2.outbound_flow_control_window <= 0:
                break
            if stream is not None and (number or stream.out):
                self._flush(stream)

    def check_time_limits(self, now_s: float, draining_s: float | None) -> None:
        """End the calls that exceed a time limit; `draining_s` is when the worker began to drain."""
        while self._half_closed:
            self.sender.reset(self._half_closed.pop(), ErrorCodes.NO_ERROR)
        for stream in list(self._streams.values()):
            if stream.is_stalled(self.sender, now_s):
                self.sender.reset(stream.number, ErrorCodes.CANCEL)
                self._forget(stream)
            elif failure := stream.overdue(now_s, self.state.limit_s, draining_s):
                self._fail(stream, failure)

    def close(self) -> None:
        """Cancel all calls of a disconnected client."""
        for stream in list(self._streams.values()):
            self._forget(stream)

    def _open(self, number: int, values: Mapping[str, str]) -> Stream:
        """Create and count a call, before its key and limits are checked."""
        state, now_s = self.state, self.active_s
        method = state.methods.get(values.get(":path", ""), _NO_METHOD)
        record = state.call_metrics.begin(values, method, self.caller)
        call = Call(
            # A stream may stay open for long; the time limit of a call applies to each of its messages.
            now_s + (math.inf if method.streaming else state.limit_s),
            ledger=record.ledger,
            client_name=self.client_name,
            address=self.caller,
            is_forwarded=not PROXY_HEADERS.isdisjoint(values),
        )
        reader = MessageReader(values.get("grpc-encoding", "identity"), state.max_bytes)
        share, arriving = Share(state.memory), Share(state.arriving)
        is_exempt = method.quick and len(self._streams) < limits.EXEMPT_CALLS
        return Stream(number, method, call, reader, share, arriving, record, is_exempt, now_s)

    def _check(self, stream: Stream, values: Mapping[str, str], size_bytes: int) -> None:
        """Reserve a call's memory, apply its headers, and check its key. Raises CallFailed, OcrsvcError."""
        stream.hold(size_bytes)
        if "grpc-timeout" in values:
            limit_s = min(messages.timeout_s(values["grpc-timeout"]), stream.call.deadline - stream.active_s)
            stream.call = replace(stream.call, deadline=stream.active_s + limit_s)
        caller = self._check_key(stream, values)
        if _MASK in values:
            stream.call = replace(stream.call, mask=kinds_of_header(values[_MASK]))
        if stream.method is _NO_METHOD:
            raise CallFailed(Code.UNIMPLEMENTED, f"Unknown method {values.get(':path', '')[:200]}.")
        if not stream.method.quick:
            self.state.callers.enter(caller)
            stream.caller = caller

    def _check_key(self, stream: Stream, values: Mapping[str, str]) -> str:
        """Check the API key; return the caller to limit: the key's, or the client's network. Raises OcrsvcError."""
        access, method = self.state.access, stream.method
        key = access.check(values, method, self.client_name) if access is not None else None
        if access is None or key is None:
            return network_of(self.caller)
        stream.call = replace(stream.call, key=key.name)
        stream.record.key = key.name
        if not method.quick:
            stream.admit = partial(access.admitted, key.name, access.secret_id(values), method)
        return key.caller

    @contextlib.contextmanager
    def _guarded(self, stream: Stream) -> Iterator[None]:
        """If the block raises CallFailed or OcrsvcError, end only this call and keep the connection open."""
        try:
            yield
        except (CallFailed, OcrsvcError) as failure:
            self._fail(stream, failure)

    def _advance(self, stream: Stream) -> None:
        """If the previous answer was sent completely, answer the next message or end the call."""
        if stream.is_busy or stream.is_queued or stream.trailers is not None or stream.out:
            return
        with self._guarded(stream):
            if stream.reader.is_ready():
                if stream.method.streaming or stream.has_ended:
                    self._answer_next(stream)
            elif stream.has_ended:
                if stream.reader.data:
                    raise CallFailed(Code.INTERNAL, "The request ends inside a message.")
                self._end(stream, Code.OK, "", {})

    def _answer_next(self, stream: Stream) -> None:
        """Answer a message in a pool thread, or on the loop's thread if the message is small and its method quick."""
        state, now_s = self.state, self.clock()
        in_loop = stream.method.quick and stream.reader.is_plain(limits.QUICK_BYTES)
        if not in_loop and not state.has_thread:
            # Refuse a single call, which its client can retry; let a stream wait, because an error would end all of it.
            if not stream.method.streaming:
                raise QueueFull(f"All {state.threads} threads are busy.", "Try again later.")
            stream.is_queued = True
            state.queue[stream] = partial(self._resume, stream)
            return
        message = stream.reader.take()
        stream.message_s = now_s
        stream.record.bytes_in += len(message.data)
        # On the loop's thread, count no memory for the message: the call's own share already includes it.
        memory = Budget(sys.maxsize) if in_loop else state.memory
        share = Share(memory) if in_loop else stream.hand_over(message)
        call = replace(stream.call, deadline=min(stream.call.deadline, now_s + state.limit_s), share=share)
        make = partial(make_answer, stream.method, message, call, memory, stream.admit)
        stream.is_busy = True
        if in_loop:
            self.answered(stream, outcome_of(make))
        else:
            state.run(make, stream.record, partial(self._receive_outcome, stream))
        self._acknowledge(stream)

    def _receive_outcome(self, stream: Stream, outcome: Outcome) -> None:
        with self.exchange():
            self.answered(stream, outcome)

    def _resume(self, stream: Stream) -> None:
        """Continue a queued call when a thread is free."""
        with self.exchange():
            stream.is_queued = False
            if self._streams.get(stream.number) is stream:
                self._advance(stream)

    def _fail(self, stream: Stream, error: BaseException) -> None:
        failure = failure_of(error)
        stream.record.error = error
        retry_ms = str(min(error.retry_after_s * 1000, _MAX_RETRY_MS)) if isinstance(error, Refused) else ""
        self._end(stream, failure.code, failure.message, {_RETRY: retry_ms, **stream.method.error_fields(error)})

    def _end(self, stream: Stream, code: Code, message: str, more: Mapping[str, str]) -> None:
        if stream.trailers is not None:
            return
        fields = {"grpc-status": str(int(code)), "grpc-message": messages.escaped(message), **more}
        stream.trailers = [(name, value) for name, value in fields.items() if value]
        stream.record.code = code
        if stream.has_ended:
            self.frame_limits.allow(limits.ANSWER_FRAMES)
        if code is not Code.OK:
            stream.call.gone.set()
            stream.drop()
        self._flush(stream)

    def _flush(self, stream: Stream) -> None:
        """Send as much as flow control and the socket allow, then answer the next message or forget a finished call."""
        try:
            moved_bytes = stream.send(self.sender, self.clock)
        except ProtocolError:
            self._forget(stream)
            return
        self.frame_limits.allow(moved_bytes // limits.TAKEN_BYTES_PER_FRAME)
        if stream.out and moved_bytes:
            # Move this call to the end, so that `send_more` serves the other calls first.
            self._streams[stream.number] = self._streams.pop(stream.number)
        elif not stream.out and stream.trailers is not None:
            if not stream.has_ended:
                self._half_closed.add(stream.number)
            self._forget(stream)
        self._advance(stream)

    def _forget(self, stream: Stream) -> None:
        stream.call.gone.set()
        if self._streams.pop(stream.number, None) is not None:
            self.state.call_metrics.end(stream.record)
            if stream.caller is not None:
                self.state.callers.leave(stream.caller)
            self.state.queue.pop(stream, None)
        stream.drop()
        self._acknowledge(stream)

    def _acknowledge(self, stream: Stream) -> None:
        """Enlarge the client's window, unless a complete message is already waiting."""
        if not stream.reader.waits:
            size, stream.unacknowledged = stream.unacknowledged, 0
            self.sender.acknowledge(stream.number, size)


def make_answer(method: Method, message: ReceivedMessage, call: Call, memory: Budget, admit: Admission) -> Answer:
    """Answer one message, in any thread; the answer's memory is taken from `memory`. Raises OcrsvcError, CallFailed."""
    # Leaving this block releases `share`, but not the memory of pixels that an engine still uses after a timeout.
    with call.share as share, admit(call) as admitted:
        if call.gone.is_set():
            raise CallFailed(Code.CANCELLED, "The client has disconnected.")
        response = method.answer(message.parse(method.request, share), admitted)
        return messages.pack(response, Share(memory))


def headers_by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers as a dict; repeated headers with list values are joined by commas (RFC 9110 section 5.3)."""
    values: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        values[name] = f"{values[name]},{value}" if name in _LISTS and name in values else value
    return values
