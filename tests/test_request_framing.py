"""Requests parse the same however their bytes are split, and slow clients delay no others."""

import logging
import re
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import requests
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from gunicorn.http.parser import RequestParser
from hypothesis import given, settings
from hypothesis import strategies as st
from image_support import encoded, noise, png
from support import Server, read_to_end, run_server

from ocrsvc.plugins import adapters
from ocrsvc.serving.memory_budget import Budget
from ocrsvc.telemetry.worker_table import WorkerTable
from ocrsvc.worker import request_threads
from ocrsvc.worker.connection import Connection, RequestLimits
from ocrsvc.worker.event_loop import HEAD_S, EventLoop
from ocrsvc.worker.gunicorn_internals import head_parser
from ocrsvc.worker.request_threads import LoadSharing, quick_paths

_ANSWER_S = 30.0
_PROMPT_S = 8.0
PNG = png()
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

# Valid requests that a client may send one after another on a connection.
REQUESTS = (
    GET,
    b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nbo\r\n\r\ndy\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 5000 + b"\r\nX-Other: \x80\xff\r\n\r\n",
    b"\r\nGET /after-an-empty-line HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /huge HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b"\r\n" * 10_000,
)
Described = tuple[str, str, list[tuple[str, str]], bytes]


def described(request: Any) -> Described:
    return request.method, request.uri, request.headers, request.body.read()


class Loop(EventLoop):
    """The event loop without its threads: a request goes to `ready` instead of to the thread pool."""

    def __init__(self, config: Config) -> None:
        self.ready: list[Connection] = []
        self.table = WorkerTable()
        self.load = LoadSharing(self.table, 0, config.threads)
        parser, limits = partial(head_parser, config), RequestLimits(Budget(1 << 30))
        super().__init__(config, logging.getLogger("test"), [], self.load, limits, parser, lambda _: True)

    def enqueue(self, conn: Connection) -> None:
        self._stop_listening(conn)
        self.ready.append(conn)
        self.load.count(1)

    def turn(self, timeout_s: float = 0.0) -> None:
        super().turn(timeout_s)

    def close(self) -> None:
        for conn in [*self.polled, *self.kept, *self.ready]:
            conn.close()
        self._poller.close()
        self.threads.shutdown(wait=True)

    def parse(self, conn: Connection) -> Described:
        if conn.head.error is not None:
            raise conn.head.error
        return described(conn.head.request)


def kept() -> Future[bool]:
    done: Future[bool] = Future()
    done.set_result(True)
    return done


@contextmanager
def loop_with_a_client() -> Iterator[tuple[Loop, socket.socket]]:
    loop = Loop(Config())
    with closing(loop), socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setblocking(False)
        with client:
            loop.accept(listener)
            yield loop, client


def send_piece(loop: Loop, client: socket.socket, piece: bytes) -> None:
    """Send a piece and run the loop once; over loopback, the piece has arrived when `sendall` returns."""
    client.sendall(piece)
    loop.turn()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(REQUESTS[:5]), min_size=1, max_size=4), st.data())
def test_requests_parse_the_same_wherever_they_are_split(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    expected_parser = RequestParser(Config(), [whole], ("127.0.0.1", 1))
    expected = [described(next(expected_parser)) for _ in sent]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    seen: list[Described] = []
    with loop_with_a_client() as (loop, client):
        for piece in pieces:
            send_piece(loop, client, piece)
            loop.turn()
            while loop.ready:
                conn = loop.ready.pop()
                seen.append(loop.parse(conn))
                loop.finish(conn, kept())
                loop.turn()
    assert seen == expected


@pytest.mark.parametrize(
    "sent", [b"\n", b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nHost: x\n", b"\r\n\n", b"GET / HTTP/1.1\r\nHost: x\r\n\n"]
)
def test_an_invalid_head_goes_to_the_parser_at_once(sent: bytes) -> None:
    with loop_with_a_client() as (loop, client):
        for at in range(len(sent)):
            assert not loop.ready
            send_piece(loop, client, sent[at : at + 1])
        assert len(loop.ready) == 1
        # A parser that needed more bytes would raise BlockingIOError instead.
        with pytest.raises(ParseException):
            loop.parse(loop.ready[0])


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_client_that_disconnects_during_its_head_is_removed(sent: bytes) -> None:
    with loop_with_a_client() as (loop, client):
        send_piece(loop, client, sent)
        client.shutdown(socket.SHUT_WR)
        loop.turn()
        assert (loop.connections, len(loop.polled)) == (0, 0)


def read_answer(wire: socket.socket) -> bytes:
    """Read the answer to GET, whose body ends with a brace."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += wire.recv(65536)
    return answer


def seconds_of_a_request(server: Server) -> float:
    began_s = time.monotonic()
    assert requests.get(f"{server.url}/healthz", timeout=_ANSWER_S).status_code == 200
    return time.monotonic() - began_s


def test_slow_clients_delay_no_others_and_are_disconnected(server: Server) -> None:
    """200 partial heads, some on kept connections, and one body that arrives slowly, on a worker with four threads."""
    with ExitStack() as stack:
        began_s = time.monotonic()
        crawling = stack.enter_context(server.connect())
        crawling.sendall(b"POST /v1/ocr HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        wires = [stack.enter_context(server.connect()) for _ in range(200)]
        for number, wire in enumerate(wires):
            if number % 4 == 0:
                wire.sendall(GET)
                answer = read_answer(wire)
                assert answer.startswith(b"HTTP/1.1 200 ")
                if b"connection: close" in answer.lower():
                    # A worker whose threads are all busy may close a kept connection.
                    wires[number] = stack.enter_context(server.connect())
            wires[number].sendall(GET[: 1 + number % (len(GET) - 1)])
        sent_s = time.monotonic()
        longest_s = seconds_of_a_request(server)
        while time.monotonic() - began_s < HEAD_S - 1:
            crawling.sendall(b"x")
            cut = select.select([crawling, *wires], [], [], 0.2)[0]
            assert not cut or time.monotonic() - began_s > HEAD_S - 1
            longest_s = max(longest_s, seconds_of_a_request(server))
        assert longest_s < _PROMPT_S
        assert read_to_end(crawling).startswith(b"HTTP/1.1 408 ")
        assert {read_to_end(wire)[:13] for wire in wires} == {b"HTTP/1.1 408 "}
        assert began_s + HEAD_S - 1 < time.monotonic() < sent_s + HEAD_S + 20


def test_health_is_answered_while_every_thread_waits_for_the_engine() -> None:
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "3", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_FAKE_LATENCY_S": "50"}
    post = b"POST /v1/ocr HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(PNG) + PNG
    with run_server(env) as server, ExitStack() as stack:
        wires = [stack.enter_context(server.connect()) for _ in range(8)]
        for wire in wires:
            wire.sendall(post)
        for path in ("/healthz", "/readyz", "/metrics", "/ops/workers"):
            began_s = time.monotonic()
            assert requests.get(server.url + path, timeout=_ANSWER_S).status_code == 200
            assert time.monotonic() - began_s < _PROMPT_S
        assert not select.select(wires, [], [], 0)[0]


QUICK = ("HEAD /healthz", "GET //%68ealthz?a=b", "GET /ops/workers", "GET /static/page.js", "GET /v2/health/ready")
SLOW = ("POST /healthz", "GET /ops/keys", "GET /unknown", "GET //v1/status/poll/ID?w=1", "GET /%76%31/status/poll/ID")


@pytest.mark.parametrize(
    ("sent", "is_quick"),
    [
        *((f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), line in QUICK) for line in (*QUICK, *SLOW)),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", False),
        (b"GET /v1/jobs HTTP/1.1\r\n\r\n", True),
    ],
)
def test_reserved_threads_run_only_quick_requests(sent: bytes, *, is_quick: bool) -> None:
    with loop_with_a_client() as (loop, client):
        loop.limits = RequestLimits(Budget(1 << 20), quick_paths=quick_paths(adapters()))
        send_piece(loop, client, sent)
        assert loop.ready[0].is_quick is is_quick


def test_slow_reader_is_disconnected() -> None:
    with loop_with_a_client() as (loop, client):
        send_piece(loop, client, GET)
        conn = loop.ready.pop()
        conn.sender.unsent.append(memoryview(bytes(64 << 20)))
        loop.finish(conn, kept())
        loop.turn()
        assert conn in loop.polled
        # Move the start back a day: the bytes in the kernel's buffers are then too few.
        conn.pace.began_s -= 86_400
        loop.check_limits(conn, time.monotonic())
        assert (loop.connections, len(loop.polled), len(conn.sender.unsent)) == (0, 0, 0)


def test_slow_steady_reader_gets_the_whole_response() -> None:
    with loop_with_a_client() as (loop, client):
        send_piece(loop, client, GET)
        conn = loop.ready.pop()
        conn.sender.unsent.append(memoryview(bytes(8 << 20)))
        loop.finish(conn, kept())
        taken, now_s, end_s = 0, time.monotonic(), time.monotonic() + _ANSWER_S
        while taken < 8 << 20 and time.monotonic() < end_s:
            loop.turn()
            with suppress(BlockingIOError):
                got = len(client.recv(25_000, socket.MSG_DONTWAIT))
                # Advance the clock as if the client read 25 kB/s.
                taken, now_s = taken + got, now_s + got / 25_000
            if conn.sender.unsent:
                loop.check_limits(conn, now_s)
        assert (taken, loop.connections) == (8 << 20, 1)


def test_request_memory_is_released_after_the_response() -> None:
    with loop_with_a_client() as (loop, client):
        loop.limits = RequestLimits(Budget(1 << 30))
        send_piece(loop, client, REQUESTS[1])
        conn = loop.ready.pop()
        loop.parse(conn)
        assert conn.body is not None
        conn.body.share.take(32 << 20)
        conn.sender.unsent.append(memoryview(bytes(32 << 20)))
        loop.finish(conn, kept())
        assert loop.limits.memory.held_bytes >= 32 << 20
        left = 32 << 20
        while left:
            loop.turn()
            left -= len(client.recv(1 << 20))
        loop.turn()
        assert (loop.limits.memory.held_bytes, loop.connections) == (0, 1)


@pytest.mark.parametrize("error", [SystemExit(0), RuntimeError("can't start new thread")])
def test_partly_started_pool_leaves_no_thread(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[ThreadPoolExecutor] = []

    class Pool(ThreadPoolExecutor):
        def submit(self, *args: Any, **more: Any) -> Any:
            pools.append(self)
            # The SIGINT handler raises SystemExit in the same way while a worker boots.
            if len(pools) == 3:
                raise error
            return super().submit(*args, **more)

    monkeypatch.setattr(request_threads, "ThreadPoolExecutor", Pool)
    with pytest.raises(type(error)):
        request_threads.start_pool(4, "test")
    pools[0].shutdown(wait=True)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    post = b"POST /v1/ocr HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(PNG)
    with server.connect() as wire:
        wire.sendall(GET + GET + post[:30])
        answer = b""
        while answer.count(b'"ok"') < 2:
            answer += wire.recv(65536)
        assert seconds_of_a_request(server) < _PROMPT_S
        wire.sendall(post[30:] + PNG)
        answer += read_to_end(wire)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200"] * 3


def test_100_continue_is_sent(server: Server) -> None:
    head = b"POST /v1/ocr HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(PNG)
    with server.connect() as wire:
        wire.sendall(head[:40])
        seconds_of_a_request(server)
        wire.sendall(head[40:])
        assert wire.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.sendall(PNG)
        assert wire.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_partial_heads_are_closed_when_all_connections_are_in_use() -> None:
    args = ("--worker-connections", "20")
    with run_server({"OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "4"}, args) as server, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(server.connect()).sendall(b"GET / HTTP/1.1\r\n")
        assert seconds_of_a_request(server) < HEAD_S / 2


def test_worker_accepts_at_most_its_connections() -> None:
    loop = Loop(Config())
    loop._cfg.set("worker_connections", 7)
    with closing(loop), socket.create_server(("127.0.0.1", 0), backlog=9) as listener, ExitStack() as clients:
        listener.setblocking(False)
        for _ in range(9):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        loop.accept(listener)
        assert loop.connections == 7


def test_a_stopping_worker_answers_requests_whose_heads_still_arrive() -> None:
    with run_server({"OCRSVC_WORKERS": "1"}) as server, ExitStack() as stack:
        fresh, used, silent, watch = (stack.enter_context(server.connect()) for _ in range(4))
        used.sendall(GET)
        assert read_answer(used).startswith(b"HTTP/1.1 200 ")
        for wire in (fresh, used):
            wire.sendall(GET[:20])
        seconds_of_a_request(server)
        server.process.terminate()
        answer = b""
        while b"\r\nConnection: close\r\n" not in answer:
            watch.sendall(GET)
            answer = read_answer(watch)
        for wire, rest in ((fresh, GET[20:]), (used, GET[20:]), (silent, GET)):
            wire.sendall(rest)
            answer = read_to_end(wire)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            assert b"\r\nConnection: close\r\n" in answer


def test_connection_stays_usable_after_any_response(server: Server) -> None:
    with server.connect() as wire:
        for method in ("GET", "HEAD", "OPTIONS", "GET"):
            wire.sendall(f"{method} /healthz HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = wire.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"}" if method == "GET" else b"\r\n\r\n")


def test_slow_readers_block_no_thread_and_get_everything(server: Server) -> None:
    """Each of 12 clients requests a picture of several megabytes from a worker with four threads."""
    body = encoded(noise(1, 1500, 1500))
    head = b"POST /api/tr-run/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with ExitStack() as stack:
        wires = [stack.enter_context(socket.socket()) for _ in range(12)]
        for wire in wires:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.settimeout(30)
            wire.connect(server.address)
            wire.sendall(head % len(body) + body)
        answered = requests.post(f"{server.url}/v1/ocr", data=PNG, timeout=30)
        assert answered.status_code == 200
        for wire in wires:
            head, _, rest = read_to_end(wire).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert f"Content-Length: {len(rest)}" in head.decode()
