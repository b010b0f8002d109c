"""Feeds malformed gRPC messages and connections to the services in process, without sockets or threads.

Each malformed connection is new, but all share one host: its services, its memory budget for bodies and its limit of
callers. A well-behaved neighbour on another connection must always be answered.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import TrailersReceived

from bench.decoding import DecodingReader
from bench.malformed_connections import GOAWAY, malformed_connection
from bench.malformed_messages import GoodCall, good_calls, mutate_message
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server.call_metrics import CallMetrics, CallRecord
from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.limits import MAX_UNSENT_BYTES
from ocrsvc.grpc_server.messages import Answer, frame, parse
from ocrsvc.grpc_server.method import Call, CallFailed, Code, Method, failure_of
from ocrsvc.grpc_server.server_state import Outcome, ServerState
from ocrsvc.grpc_services import make_services
from ocrsvc.pipeline.read import Reader
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits, unlimited
from ocrsvc.telemetry.metrics_store import MetricsStore

THREADS = 4
NEIGHBOUR_EVERY = 25
_FRAME_HEAD_BYTES = 9
_AN_AGE_S = 1e6


class CountingMetrics(CallMetrics):
    """Call metrics that also count the calls in flight."""

    under_way = 0

    def begin(self, sent: Mapping[str, str], method: Method, caller: str) -> CallRecord:
        """See CallMetrics."""
        self.under_way += 1
        return super().begin(sent, method, caller)

    def end(self, record: CallRecord) -> None:
        """See CallMetrics."""
        self.under_way -= 1
        super().end(record)


class Host(ServerState):
    """The server side of a connection; it computes answers only when `work` is called."""

    def __init__(self) -> None:
        store = MetricsStore()
        self.counted = CountingMetrics(store.common)
        super().__init__(
            make_services(OcrModel(cast(Reader, DecodingReader()), store, store.common)),
            threads=THREADS,
            max_bytes=1 << 18,
            limit_s=30.0,
            shared=SharedLimits(Budget(1 << 20), Callers(50)),
            call_metrics=self.counted,
        )
        self.arriving = Budget(1 << 19)
        self.now_s = time.monotonic()
        self.tick_s = 0.0
        self._jobs: deque[tuple[Callable[[], Answer], Callable[[Outcome], None]]] = deque()

    @property
    def has_thread(self) -> bool:
        """See ServerState."""
        return len(self._jobs) < THREADS

    def run(self, make: Callable[[], Answer], _record: CallRecord, on_outcome: Callable[[Outcome], None]) -> None:
        """See ServerState."""
        self._jobs.append((make, on_outcome))

    def warn(self, message: str, *values: object, exc_info: bool = False) -> None:
        """See ServerState."""

    def clock(self) -> float:
        """The connections' clock, which advances with every reading, so that a connection's turn can end anywhere."""
        self.now_s += self.tick_s
        return self.now_s

    def work(self) -> None:
        """Answer running and queued calls until none is left."""
        while self._jobs:
            make, on_outcome = self._jobs.popleft()
            while self.queue and len(self._jobs) < THREADS:
                self.queue.pop(next(iter(self.queue)))()
            on_outcome(_outcome(make))


def _outcome(make: Callable[[], Answer]) -> Outcome:
    try:
        return make()
    except (OcrsvcError, CallFailed) as failure:
        return failure


class Neighbour:
    """A well-behaved client on its own connection."""

    def __init__(self, host: Host, call: GoodCall) -> None:
        self._host = host
        self._call = call
        self._connection = Connection(host, host.clock, "neighbour")
        self._client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._client.initiate_connection()

    def check(self) -> None:
        """Make one call. Raises AssertionError unless the answer is correct."""
        number = self._client.get_next_available_stream_id()
        plain = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", self._call.path)]
        self._client.send_headers(number, [*plain, ("content-type", "application/grpc"), ("te", "trailers")])
        self._client.send_data(number, frame(self._call.data), end_stream=True)
        self._connection.receive(self._client.data_to_send())
        self._host.work()
        out = self._connection.out
        events = self._client.receive_data(bytes(out))
        out.clear()
        trailers: list[Any] = [event.headers for event in events if isinstance(event, TrailersReceived)]
        assert [dict(trailer)["grpc-status"] for trailer in trailers] == ["0"], f"the neighbour failed: {trailers}"
        for event in events:
            if size := getattr(event, "flow_controlled_length", 0):
                self._client.acknowledge_received_data(size, number)


class GrpcFuzzer:
    """Sends malformed messages and connections, one after the other.

    Args:
        image: An image file.
    """

    def __init__(self, image: bytes) -> None:
        self._host = Host()
        self._calls = good_calls(self._host.methods, image)
        self._datas = [call.data for call in self._calls]
        self._neighbour = Neighbour(self._host, self._calls[-1])
        self._sent = 0

    def send_message(self, rng: random.Random) -> tuple[str, object]:
        """Send a malformed message; returns the call's status and what was sent. Raises unexpected errors."""
        chosen = rng.choice(self._calls)
        method, data = self._host.methods[chosen.path], mutate_message(chosen.data, self._datas, rng)
        return self._judged(lambda: _called(method, data), (chosen.path, data))

    def send_connection(self, rng: random.Random) -> tuple[str, object]:
        """Run a malformed connection; returns how it ended and what was sent. Raises unexpected errors."""
        pieces = malformed_connection(self._calls, rng)
        return self._judged(lambda: self._converse(pieces, rng), pieces)

    def _judged(self, run: Callable[[], str], sent: object) -> tuple[str, object]:
        try:
            return run(), sent
        except Exception as error:
            error.add_note(f"for {sent!r}"[:20_000])
            raise

    def _converse(self, pieces: Sequence[bytes], rng: random.Random) -> str:
        host, connection = self._host, Connection(self._host, self._host.clock, "malformed")
        outs: list[bytes] = []
        host.tick_s = rng.choice((0.0, 0.0, 0.001, 0.03))
        for piece in pieces:
            if connection.broken or connection.finished or len(connection.out) > MAX_UNSENT_BYTES:
                break
            connection.receive(piece)
            self._between(connection, rng)
            while connection.waiting:
                outs.append(_drained(connection))
                connection.handle_frames()
            if rng.random() < 0.8:
                outs.append(_drained(connection))
        ended = self._end(connection, outs)
        connection.close()
        host.work()
        held = (len(connection.calls), host.memory.held_bytes, len(host.callers), host.counted.under_way)
        assert held == (0, 0, 0, 0), f"still held (calls, bytes, callers, counted calls): {held}"
        host.tick_s = 0.0
        self._sent += 1
        if self._sent % NEIGHBOUR_EVERY == 0:
            self._neighbour.check()
        return ended

    def _between(self, connection: Connection, rng: random.Random) -> None:
        """Randomly let the worker answer, let time pass, or begin a shutdown."""
        if rng.random() < 0.8:
            self._host.work()
        if rng.random() < 0.2:
            self._host.now_s += rng.choice((0.1, 3.0, 100.0))
            connection.check_time_limits()
        if rng.random() < 0.05:
            connection.begin_shutdown()

    def _end(self, connection: Connection, outs: list[bytes]) -> str:
        """End the connection: "GOAWAY" or "closed" if it was broken, otherwise drain it and return "served"."""
        self._host.work()
        outs.append(_drained(connection))
        if connection.broken:
            kinds = _kinds(b"".join(outs))
            return "GOAWAY" if GOAWAY in kinds else "closed"
        connection.drain()
        for _ in range(3):
            self._host.now_s += _AN_AGE_S
            connection.check_time_limits()
            self._host.work()
            outs.append(_drained(connection))
        assert connection.finished or connection.broken, f"{len(connection.calls)} calls block the shutdown"
        _kinds(b"".join(outs))
        return "served"


def _called(method: Any, data: bytes) -> str:
    try:
        message = parse(method.request, data, unlimited())
        method.answer(message, Call(time.monotonic() + 1.0)).SerializeToString()
    except (OcrsvcError, CallFailed) as error:
        failure = failure_of(error)
        if failure.code is Code.INTERNAL:
            raise
        return failure.code.name
    return Code.OK.name


def _drained(connection: Connection) -> bytes:
    out = connection.out
    sent = bytes(out)
    out.clear()
    return sent


def _kinds(sent: bytes) -> set[int]:
    """The types of the frames that were sent. Raises AssertionError if the bytes are not whole frames."""
    at, kinds = 0, set()
    while at < len(sent):
        kinds.add(sent[at + 3])
        at += _FRAME_HEAD_BYTES + int.from_bytes(sent[at : at + 3])
    assert at == len(sent), "the last frame is truncated"
    return kinds
