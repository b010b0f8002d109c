"""A gRPC connection without a socket: servers that answer when the test lets them, and a client."""

import struct
from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, TrailersReceived
from h2.settings import SettingCodes

from ocrsvc.grpc_server.call_metrics import CallMetrics, CallRecord
from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.messages import Answer
from ocrsvc.grpc_server.method import Method
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.grpc_server.server_state import Outcome, ServerState, outcome_of
from ocrsvc.serving.memory_budget import Budget, Callers, SharedLimits
from ocrsvc.telemetry.metrics import IN_FLIGHT
from ocrsvc.telemetry.metrics_store import MetricsStore


def prefixed(message: bytes, packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(message)) + message


EMPTY = prefixed(b"")
REQUEST = Messages("health.proto")["grpc.health.v1.HealthCheckRequest"]


class StubServer(ServerState):
    """The server state that a connection needs; answers calls at once and records refusals."""

    def __init__(self, **options: Any) -> None:
        self.numbers = MetricsStore()
        super().__init__(
            {"/t/Echo": Method(REQUEST, lambda sent, _: sent, **options)},
            threads=1,
            max_bytes=1000,
            limit_s=60.0,
            shared=SharedLimits(Budget(100_000), Callers(2)),
            call_metrics=CallMetrics(self.numbers.common),
        )
        self.arriving = Budget(90_000)
        self.refused: list[str] = []

    @property
    def in_flight(self) -> float:
        return self.numbers.read().get(IN_FLIGHT.of(), [0.0])[0]

    @property
    def has_thread(self) -> bool:
        return True

    def run(self, make: Callable[[], Answer], _record: CallRecord, on_outcome: Callable[[Outcome], None]) -> None:
        on_outcome(outcome_of(make))

    def warn(self, message: str, *values: object, exc_info: bool = False) -> None:  # noqa: ARG002
        self.refused.append(str(values[-1]))


class HoldingServer(StubServer):
    """Holds calls until the test answers them; accepts new calls while fewer than `threads` are held."""

    def __init__(self, threads: int = 1, **options: Any) -> None:
        super().__init__(**{"streaming": True} | options)
        self.threads = threads
        self.ran: list[tuple[Callable[[], Answer], Callable[[Outcome], None]]] = []

    @property
    def has_thread(self) -> bool:
        return len(self.ran) < self.threads

    def run(self, make: Callable[[], Answer], _record: CallRecord, on_outcome: Callable[[Outcome], None]) -> None:
        self.ran.append((make, on_outcome))

    def resume(self) -> None:
        self.queue.popitem()[1]()

    def answer(self) -> None:
        make, on_outcome = self.ran.pop(0)
        on_outcome(outcome_of(make))


class Pair:
    """A connection with a settable clock, and its client."""

    def __init__(self, host: StubServer, window: int = 65535) -> None:
        self.now_s = 0.0
        self.connection = Connection(host, lambda: self.now_s, caller="me")
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.headers: dict[int, dict[str, str]] = {}
        self.answers = 0
        self.move()

    def move(self) -> None:
        self.connection.receive(self.client.data_to_send())
        for event in self.client.receive_data(bytes(self.connection.out)):
            if isinstance(event, ResponseReceived | TrailersReceived):
                headers = self.headers.setdefault(event.stream_id, {})
                headers.update({str(name): str(value) for name, value in event.headers})
            self.answers += isinstance(event, DataReceived)
        del self.connection.out[:]
        self.connection.receive(self.client.data_to_send())

    def at(self, now_s: float) -> None:
        """Set the clock and check the time limits."""
        self.now_s = now_s
        self.connection.check_time_limits()

    def answer(self, host: HoldingServer) -> None:
        host.answer()
        self.move()

    def begin(self, number: int, path: str = "/t/Echo", method: str = "POST", encoding: str = "identity") -> None:
        headers = {":method": method, ":scheme": "http", ":authority": "x", ":path": path}
        headers |= {"content-type": "application/grpc", "te": "trailers", "grpc-encoding": encoding}
        self.client.send_headers(number, list(headers.items()))

    def call(self, number: int, *messages: bytes, end: bool = False, encoding: str = "identity") -> None:
        self.begin(number, encoding=encoding)
        self.client.send_data(number, b"".join(messages), end_stream=end)
        self.move()

    def status(self, number: int) -> str | None:
        return self.headers.get(number, {}).get("grpc-status")
