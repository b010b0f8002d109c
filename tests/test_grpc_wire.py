"""gRPC framing, time limits, status messages and connections, without sockets."""

import gzip
import struct
import sys

import pytest
from grpc_doubles import EMPTY, HoldingServer, Pair, StubServer, prefixed
from grpc_support import ORDER
from h2.config import H2Configuration
from h2.connection import H2Connection
from hostile_frames import frame as frame_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from ocrsvc import errors
from ocrsvc.grpc_server.call_metrics import CallMetrics
from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.messages import MessageReader, ReceivedMessage, escaped, parse, timeout_s
from ocrsvc.grpc_server.method import CallFailed, Code, Method, failure_of
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.serving.memory_budget import Budget, Share, unlimited
from ocrsvc.telemetry.metrics import FAILURES, IN_FLIGHT, REFUSED, REQUEST_SECONDS, REQUESTS
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.recent_errors import RecentErrors


def taken(reader: MessageReader, data: bytes) -> list[ReceivedMessage]:
    reader.data += data
    found = []
    while reader.is_ready():
        found.append(reader.take())
    return found


def test_an_incomplete_message_holds_no_bytes_of_earlier_messages() -> None:
    reader = MessageReader("identity", 1 << 20)
    assert len(taken(reader, prefixed(bytes(1 << 20)) + prefixed(b"abc")[:-1])) == 1
    assert sys.getsizeof(reader.data) < 1000


@pytest.mark.parametrize(
    ("encoding", "data", "code"),
    [
        ("identity", struct.pack(">BI", 0, 1001), Code.RESOURCE_EXHAUSTED),
        ("gzip", prefixed(gzip.compress(bytes(1001), mtime=0), 1), Code.RESOURCE_EXHAUSTED),
        ("gzip", prefixed(gzip.compress(b"abc", mtime=0)[:-1], 1), Code.INTERNAL),
        ("gzip", prefixed(b"no gzip at all", 1), Code.INTERNAL),
        ("snappy", prefixed(b"abc", 1), Code.UNIMPLEMENTED),
        ("identity", prefixed(b"abc", 1), Code.UNIMPLEMENTED),
        ("gzip", prefixed(b"abc", 2), Code.UNIMPLEMENTED),
    ],
)
def test_a_malformed_message_fails_its_call(encoding: str, data: bytes, code: Code) -> None:
    with pytest.raises(CallFailed) as caught:
        [sent.decompress(Share(Budget(2000))) for sent in taken(MessageReader(encoding, 1000), data)]
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("text", "seconds"), [("1H", 3600), ("2M", 120), ("3S", 3), ("500m", 0.5), ("99999999u", 99.999999), ("7n", 7e-9)]
)
def test_time_limits_have_units(text: str, seconds: float) -> None:
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "S", "-1S", "1.5S", "123456789S", "1s", "1S "])
def test_a_malformed_time_limit_is_refused(text: str) -> None:
    with pytest.raises(CallFailed):
        timeout_s(text)


@pytest.mark.parametrize(
    ("adapter", "error", "status", "code", "listed"),
    [
        ("grpc_tfserving", None, Code.OK, "ok", []),
        ("grpc_tfserving", errors.QueueFull("-"), Code.UNAVAILABLE, "queue_full", [("refused", 503, "/x")]),
        # The path of an unknown method comes from the caller, so it is not listed.
        ("grpc", CallFailed(Code.UNIMPLEMENTED, "-"), Code.UNIMPLEMENTED, "grpc_unimplemented", [("caller", 0, "")]),
    ],
)
def test_calls_are_counted_by_adapter_and_status_and_failures_listed(
    adapter: str, error: Exception | None, status: Code, code: str, listed: list[object]
) -> None:
    numbers, recent = MetricsStore(), RecentErrors()
    call_metrics = CallMetrics(numbers.common, error_recorder=recent.recorder())
    method = Method(None, lambda sent, _: sent, adapter=adapter)
    record = call_metrics.begin({":path": "/x"}, method, "127.0.0.1")
    assert numbers.read()[IN_FLIGHT.of()][0] == 1
    record.code, record.error = status, error
    call_metrics.end(record)
    found = {key: values for key, values in numbers.read().items() if sum(values)}
    assert found[REQUESTS.of(adapter, status.name, code)][0] == 1
    assert sum(found[REQUEST_SECONDS.of(adapter)][:-1]) == 1
    assert (FAILURES.of(code) in found, REFUSED.of(code) in found) == (error is not None, code == "queue_full")
    assert IN_FLIGHT.of() not in found
    assert [(one.fault, one.status, one.route) for one in recent.read()] == listed


def test_status_text_is_percent_encoded_and_hides_internal_errors() -> None:
    assert escaped("50 % of 图\n") == "50 %25 of %E5%9B%BE%0A"
    assert "secret" not in failure_of(ZeroDivisionError("secret")).message


FRAMES = st.builds(
    frame_bytes,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    st.binary(max_size=20),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAMES, max_size=6), st.lists(st.binary(max_size=12), max_size=3), st.booleans())
def test_closed_connection_holds_no_memory(frames: list[bytes], bodies: list[bytes], shuts_down: bool) -> None:
    host = StubServer()
    connection, client = Connection(host), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/t/Echo")]
    for number, body in enumerate(bodies):
        client.send_headers(2 * number + 1, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        client.send_data(2 * number + 1, body, end_stream=number != 1)
    connection.receive(client.data_to_send())
    if shuts_down:
        connection.begin_shutdown()
    for sent in frames:
        if not connection.broken:
            connection.receive(sent)
    connection.check_time_limits()
    connection.close()
    assert (len(connection.calls), host.memory.held_bytes, len(host.callers), host.in_flight) == (0, 0, 0, 0)


def test_decompression_respects_the_memory_limit() -> None:
    host = HoldingServer(streaming=False)
    host.max_bytes, host.memory = 1 << 20, Budget(1 << 18)
    pair = Pair(host)
    pair.call(1, prefixed(gzip.compress(bytes(1 << 19)), 1), end=True, encoding="gzip")
    assert host.memory.held_bytes < 10_000
    pair.answer(host)
    assert (pair.status(1), "grpc-retry-pushback-ms" in pair.headers[1]) == ("8", False)
    assert host.memory.held_bytes == 0
    host.memory = Budget(4 << 20)
    assert host.memory.take((4 << 20) - 100_000)
    pair.call(3, prefixed(gzip.compress(bytes(1 << 19)), 1), end=True, encoding="gzip")
    pair.answer(host)
    assert (pair.status(3), pair.headers[3]["grpc-retry-pushback-ms"]) == ("14", "1000")
    assert host.memory.held_bytes == (4 << 20) - 100_000


def test_waiting_messages_are_held_as_received_bytes() -> None:
    pair = Pair(host := HoldingServer())
    pair.call(1, *[EMPTY] * 1000)
    assert pair.status(1) is None
    assert 5_000 < host.memory.held_bytes < 15_000
    for _ in range(6):
        pair.client.send_data(1, EMPTY * 3000)
    pair.move()
    assert pair.status(1) == "8"
    host.answer()
    assert (host.memory.held_bytes, host.arriving.held_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("inference.ModelInferRequest", b"\x2a\x00" * 10_001),
        ("inference.ModelInferRequest", b"\x2a" + b"\xa4\x9c\x01" + b"\x1a\xa0\x9c\x01" + bytes(20_000)),
        ("baidu.paddle_serving.pipeline_serving.Request", b"\x0a\x00" * 10_001),
        ("grpc.health.v1.HealthCheckRequest", b"\x78\x01" * 10_001),
    ],
)
def test_a_message_with_too_many_fields_is_not_parsed(name: str, data: bytes) -> None:
    with pytest.raises(CallFailed) as caught:
        parse(Messages(*ORDER)[name], data, unlimited())
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_the_next_message_waits_until_the_last_answer_is_taken() -> None:
    pair = Pair(host := HoldingServer(), window=0)
    pair.call(1, EMPTY, EMPTY)
    pair.answer(host)
    assert (host.ran, pair.answers) == ([], 0)
    pair.client.increment_flow_control_window(100, 1)
    pair.move()
    assert (len(host.ran), pair.answers) == (1, 1)
    pair.connection.close()


def test_a_stream_waits_for_a_thread_and_a_call_is_asked_to_retry() -> None:
    pair = Pair(host := HoldingServer(threads=0))
    pair.call(1, EMPTY)
    assert (pair.status(1), len(host.queue)) == (None, 1)
    host.threads = 1
    host.resume()
    pair.answer(host)
    assert pair.answers == 1
    pair.connection.close()
    single = Pair(HoldingServer(threads=0, streaming=False))
    single.call(1, EMPTY, end=True)
    assert (single.status(1), single.headers[1]["grpc-retry-pushback-ms"]) == ("14", "1000")


def test_an_idle_stream_outlives_its_connections_age_but_not_its_worker() -> None:
    pair = Pair(HoldingServer())
    pair.call(1, b"")
    pair.connection.begin_shutdown()
    pair.at(100.0)
    assert len(pair.connection.calls) == 1
    pair.connection.drain()
    pair.at(103.0)
    assert len(pair.connection.calls) == 0
