"""gRPC's limits: the memory that calls hold and for how long, slow clients, and health checks under any load."""

import socket
import struct
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest
from grpc_doubles import EMPTY, REQUEST, HoldingServer, Pair, StubServer, prefixed
from grpc_support import ANSWER, MESSAGES, PATIENCE_S, Gate, calling, gated, serving, unary
from hostile_frames import DATA, begin, frame, greeting

from ocrsvc.errors import QueueFull
from ocrsvc.grpc_server import limits as grpc_limits
from ocrsvc.grpc_server.messages import parse
from ocrsvc.grpc_server.method import Call, Method
from ocrsvc.grpc_server.server import connection_to_close
from ocrsvc.serving.memory_budget import Budget, Callers, Share, SharedLimits

HEALTH = "grpc.health.v1.HealthCheck"
NUMBERS = range(1, 40_000, 2)
TEXT = REQUEST(service="x" * 20_000).SerializeToString()


def server_with_memory() -> HoldingServer:
    host = HoldingServer(streaming=False)
    host.max_bytes, host.memory = 1 << 16, Budget(1 << 20)
    return host


def test_answer_memory_is_counted_until_the_client_has_read_it() -> None:
    host = server_with_memory()
    pair = Pair(host, window=0)
    pair.call(1, prefixed(TEXT), end=True)
    host.answer()
    assert len(TEXT) < host.memory.held_bytes < 2 * len(TEXT)
    pair.client.increment_flow_control_window(15_000, 1)
    pair.move()
    pair.move()
    assert len(TEXT) - 15_000 < host.memory.held_bytes < len(TEXT)
    pair.client.increment_flow_control_window(15_000, 1)
    pair.move()
    assert (pair.status(1), host.memory.held_bytes) == ("0", 0)


def test_answer_memory_is_counted_until_the_socket_has_taken_it() -> None:
    host = server_with_memory()
    pair = Pair(host)
    pair.call(1, prefixed(TEXT), end=True)
    host.answer()
    assert len(pair.connection.calls) == 0
    assert host.memory.held_bytes > len(TEXT)
    pair.move()
    assert host.memory.held_bytes == 0


def test_answer_without_memory_is_refused() -> None:
    host = HoldingServer(streaming=False)
    host.max_bytes = 1 << 16
    host.methods = {"/t/Echo": Method(REQUEST, lambda _sent, _call: REQUEST(service="y" * 30_000))}
    pair = Pair(host)
    pair.call(1, EMPTY, end=True)
    assert host.memory.take(60_000)
    pair.answer(host)
    assert (pair.status(1), host.memory.held_bytes) == ("14", 60_000)


def test_memory_is_reserved_before_parsing_a_message() -> None:
    share = Share(Budget(grpc_limits.CONTENT_COPIES * len(TEXT)))
    with pytest.raises(Exception, match="needs more memory"):
        parse(REQUEST, TEXT, share)
    assert share.held_bytes == 0


def test_memory_of_an_image_still_in_the_engine_is_released_once() -> None:
    host = HoldingServer(streaming=False)
    held: list[Share] = []

    def answer(_sent: Any, call: Call) -> Any:
        held.append(call.share.part())
        held[0].take(5000)
        raise QueueFull("Late.")

    host.methods = {"/t/Echo": Method(REQUEST, answer)}
    pair = Pair(host)
    pair.call(1, EMPTY, end=True)
    pair.answer(host)
    assert host.memory.held_bytes == 5000
    held[0].give_back(5000)
    assert host.memory.held_bytes == 0


def test_cancelled_call_leaves_the_thread_queue() -> None:
    pair = Pair(host := HoldingServer(threads=0))
    pair.call(1, EMPTY)
    assert len(host.queue) == 1
    pair.client.reset_stream(1)
    pair.move()
    assert (host.queue, host.memory.held_bytes) == ({}, 0)


def test_stream_waiting_for_other_streams_is_not_reset() -> None:
    host = HoldingServer(threads=2, streaming=False)
    host.max_bytes, host.memory, host.arriving = 1 << 20, Budget(1 << 24), Budget(1 << 24)
    large = REQUEST(service="x" * 200_000).SerializeToString()
    pair = Pair(host)
    for number in (1, 3):
        pair.call(number, end=False)
        for at in range(0, len(prefixed(large)), 16_000):
            pair.client.send_data(number, prefixed(large)[at : at + 16_000])
            pair.move()
        pair.client.end_stream(number)
        pair.move()
        host.answer()
    # The first answer fills the connection's window of 65,535 bytes; later increments are used by stream 1 only.
    pair.client.increment_flow_control_window(1 << 20, 3)
    pair.move()
    for _ in range(12):
        pair.now_s += 1.0
        pair.client.increment_flow_control_window(2000)
        pair.client.increment_flow_control_window(2000, 1)
        pair.move()
        pair.connection.check_time_limits()
    assert len(pair.connection.calls) == 2
    pair.connection.close()


def test_too_slow_reader_is_disconnected() -> None:
    host = server_with_memory()
    pair = Pair(host, window=1)
    pair.call(1, prefixed(TEXT), end=True)
    host.answer()
    for _ in range(11):
        pair.now_s += 1.0
        pair.client.increment_flow_control_window(1, 1)
        pair.move()
        pair.connection.check_time_limits()
    pair.move()
    assert (len(pair.connection.calls), host.memory.held_bytes) == (0, 0)


@pytest.mark.parametrize(("sent", "after_s", "status"), [(b"\0\0\0\0\5ab", 61.0, "4"), (b"", 301.0, "14")])
def test_stalled_or_idle_stream_is_ended(sent: bytes, after_s: float, status: str) -> None:
    pair = Pair(HoldingServer())
    pair.call(1, sent)
    pair.at(after_s - 2)
    assert len(pair.connection.calls) == 1
    pair.at(after_s)
    pair.move()
    assert pair.status(1) == status


@pytest.mark.parametrize("rest", [b"\0\0\x08\0\0\0\0\0\1abc", b"\0\0\0\1\0\0\0\0\3"])
def test_unfinished_frame_or_header_block_ends_the_connection(rest: bytes) -> None:
    pair = Pair(host := StubServer())
    pair.connection.receive(rest)
    pair.at(29.0)
    assert not pair.connection.broken
    pair.at(31.0)
    assert pair.connection.broken
    assert host.refused == ["an unfinished frame or header block"]


def test_answer_being_sent_outlives_the_deadline() -> None:
    host = server_with_memory()
    host.limit_s = 5.0
    pair = Pair(host, window=0)
    pair.call(1, prefixed(TEXT), end=True)
    host.answer()
    pair.at(6.0)
    pair.client.increment_flow_control_window(1 << 16, 1)
    pair.move()
    assert pair.status(1) == "0"


@pytest.mark.parametrize("leaving", [False, True])
def test_stream_is_not_idle_while_its_answer_is_sent(*, leaving: bool) -> None:
    host = HoldingServer()
    host.limit_s = 5.0
    pair = Pair(host, window=0)
    pair.call(1, EMPTY, EMPTY, b"\0\0\0\0\5ab")
    if leaving:
        pair.connection.drain()
    host.answer()
    pair.at(6.0)
    # h2's client does not accept GOAWAY while it has calls.
    pair.connection.out.clear()
    for _ in range(2):
        pair.client.increment_flow_control_window(5, 1)
        pair.move()
        if host.ran:
            host.answer()
        pair.connection.check_time_limits()
    pair.move()
    assert (pair.answers, pair.status(1)) == (2, None)
    pair.at(12.0)
    pair.move()
    assert pair.status(1) == "4"


@pytest.mark.parametrize(("method", "path"), [("POST", "/t/None"), ("POST", "/t/Echo"), ("GET", "/")])
def test_calls_that_fail_do_not_end_the_connection(monkeypatch: pytest.MonkeyPatch, method: str, path: str) -> None:
    monkeypatch.setattr(grpc_limits, "BURST_FRAMES", 100)
    pair = Pair(host := HoldingServer(threads=0, streaming=False))
    for number in range(1, 301, 2):
        pair.begin(number, path, method)
        pair.move()
        pair.client.send_data(number, EMPTY, end_stream=True)
        pair.move()
    assert (pair.connection.broken, host.in_flight, host.refused) == (False, 0, [])
    assert {headers.get("grpc-status", "415") for headers in pair.headers.values()} <= {"12", "14", "415"}


def test_resets_of_refused_calls_count_as_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_limits, "BURST_FRAMES", 100)
    pair = Pair(host := StubServer())
    for number in range(1, 301, 2):
        if not pair.connection.broken:
            pair.begin(number, "/t/None")
            pair.client.reset_stream(number)
            pair.move()
    assert host.refused == ["a flood of frames"]


def live(channel: grpc.Channel) -> int:
    return int(unary(channel, "/t/Live", HEALTH + "Response")(MESSAGES[ANSWER](), timeout=5.0).status)


def test_health_is_answered_while_all_threads_are_busy() -> None:
    with gated(threads=2) as (gate, channel):
        calls = [unary(channel, "/t/Echo", ANSWER).future(MESSAGES[ANSWER]()) for _ in range(2)]
        assert all(gate.began.acquire(timeout=PATIENCE_S) for _ in calls)
        assert live(channel) == 1
        gate.open.set()
        assert all(call.result() is not None for call in calls)


def test_health_is_answered_while_no_memory_is_left() -> None:
    limits = SharedLimits(Budget(1 << 20), Callers(0))
    assert limits.memory.take(1 << 20)
    with gated(max_bytes=1 << 19, shared=limits) as (_, channel):
        assert live(channel) == 1
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, "/t/Echo", ANSWER)(MESSAGES[ANSWER](), timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert limits.memory.held_bytes == 1 << 20


@pytest.mark.parametrize("busy", [False, True])
def test_health_is_answered_with_any_number_of_connections(monkeypatch: pytest.MonkeyPatch, *, busy: bool) -> None:
    monkeypatch.setattr(grpc_limits, "MAX_CONNECTIONS", 5)
    gate, listener = Gate(), socket.create_server(("127.0.0.1", 0))
    gate.open.set()
    where = listener.getsockname()[1]
    with serving(gate.method(), listener):
        silent = [socket.create_connection(("127.0.0.1", where)) for _ in range(8)]
        for sock in silent:
            sock.sendall(greeting() + (begin(1, "/t/Echo") + frame(DATA, 0, 1, EMPTY) if busy else b""))
        with calling(where) as channel:
            assert live(channel) == 1
        for sock in silent:
            sock.close()


def test_the_idlest_connection_of_the_busiest_address_is_closed_for_a_new_one() -> None:
    def transport(caller: str, calls: int, active_s: float) -> Any:
        held = MagicMock(active_s=active_s, **{"__len__.return_value": calls})
        return SimpleNamespace(connection=SimpleNamespace(calls=held, caller=caller))

    few, busy = transport("few", 0, 1.0), transport("many", 1, 2.0)
    idle, idler = transport("many", 0, 4.0), transport("many", 0, 3.0)

    assert connection_to_close([few, busy, idle, idler]) is idler
    assert connection_to_close([few, busy, transport("many", 2, 3.0)]) is busy
    assert connection_to_close([few, idle]) is few


def test_requests_of_a_client_that_reads_no_answers_are_not_read() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    one = frame(DATA, 1, 1, EMPTY)
    calls = b"".join(begin(number, "/t/Live") + one[:5] + struct.pack(">I", number) + one[9:] for number in NUMBERS)
    with serving(Gate().method(), listener), socket.socket() as sock:
        for side in (sock, listener):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        sock.connect(listener.getsockname())
        sock.settimeout(0.5)
        sock.sendall(greeting())
        # More bytes than the sockets' and the server's buffers hold.
        with pytest.raises(TimeoutError):
            sock.sendall(calls)
