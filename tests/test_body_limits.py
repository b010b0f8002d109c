"""Bodies on a real socket that are too large, broken or late: what their client sees, and what the next one does."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from support import Server, run_server
from web_support import picture

LIMIT = 100_000
PNG = picture()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with run_server({"OCRSVC_MAX_BODY_BYTES": str(LIMIT), "OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "4"}) as running:
        yield running


def connect(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=30)


def whole_answer(wire: socket.socket) -> bytes:
    """What comes until the service closes the connection."""
    answer = b""
    while got := wire.recv(65536):
        answer += got
    return answer


def talk(server: Server, *pieces: bytes) -> bytes:
    """Send raw bytes, piece by piece, and read until the service closes the connection."""
    with connect(server) as wire:
        for piece in pieces:
            wire.sendall(piece)
        wire.shutdown(socket.SHUT_WR)
        return whole_answer(wire)


def head(*headers: str, path: str = "/v1/ocr") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: image/png", *headers, "", ""]
    return "\r\n".join(lines).encode()


def problem(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "send",
    [
        *(lambda size=size: bytes(size) for size in (LIMIT + 1, 2 * LIMIT, 50_000_000)),
        lambda: iter([bytes(50_000)] * 3),
    ],
)
def test_a_client_that_sends_too_much_sees_the_413_and_its_session_goes_on(
    server: Server, send: Callable[[], Any]
) -> None:
    with requests.Session() as session:
        refused = session.post(f"{server.url}/v1/ocr", data=send(), timeout=30)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert str(LIMIT) in refused.json()["detail"]
        read = session.post(f"{server.url}/v1/ocr", data=iter([PNG[:20], PNG[20:]]), timeout=30)
        assert (read.status_code, read.json()["pages"][0]["width"]) == (200, 64)


def test_what_follows_a_refused_body_is_never_taken_for_a_request(server: Server) -> None:
    smuggled = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    body = smuggled * (3 * LIMIT // len(smuggled))
    answer = talk(server, head(f"Content-Length: {len(body)}"), body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_request_that_comes_behind_a_refused_one_on_the_same_connection_is_answered_or_not_at_all(
    server: Server,
) -> None:
    second = head(f"Content-Length: {len(PNG)}", "Connection: close") + PNG
    answer = talk(server, head(f"Content-Length: {LIMIT + 1}"), bytes(LIMIT + 1), second)
    statuses = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert [line.split()[1] for line in statuses] in ([b"413", b"200"], [b"413"])


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("Content-Length: 1000", [PNG]),
        ("Transfer-Encoding: chunked", [b"5\r\nabcde\r\nnonsense\r\n", b"GET / HTTP/1.1\r\n\r\n"]),
    ],
)
def test_a_body_that_is_cut_off_or_nonsense_is_a_400_and_ends_the_connection(
    server: Server, header: str, sent: list[bytes]
) -> None:
    answer = talk(server, head(header), *sent)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert (answer.count(b"HTTP/1.1 "), problem(answer)["code"]) == (1, "bad_request")


def test_a_client_that_promises_too_much_and_sends_nothing_holds_nobody_up(server: Server) -> None:
    with connect(server) as idle:
        idle.sendall(head(f"Content-Length: {10 * LIMIT}"))
        began = time.monotonic()
        assert requests.post(f"{server.url}/v1/ocr", data=PNG, timeout=30).status_code == 200
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(("path", "status"), [("//v1/ocr", b"200"), ("/v1//ocr", b"404"), ("/v1/ocr/", b"404")])
def test_slashes_too_many_are_forgiven_before_a_path_only_and_never_by_a_redirect(
    server: Server, path: str, status: bytes
) -> None:
    answer = talk(server, head(f"Content-Length: {len(PNG)}", "Connection: close", path=path) + PNG)
    assert answer.split()[1] == status


def test_head_and_options_leave_a_connection_usable(server: Server) -> None:
    with requests.Session() as session:
        assert session.head(f"{server.url}/healthz", timeout=30).status_code == 200
        assert session.options(f"{server.url}/v1/ocr", timeout=30).status_code == 200
        assert session.get(f"{server.url}/hi", timeout=30).text == "Hello World!"


def half_body(server: Server, *headers: str, path: str = "/v1/ocr") -> socket.socket:
    """A connection whose request has 2 of 1000 bytes, and then nothing."""
    wire = connect(server)
    wire.sendall(head("Content-Length: 1000", *headers, path=path) + b"ab")
    return wire


@pytest.mark.parametrize("path", ["/v1/ocr", "/api/tr-run/", "/api/trocr", "/healthz", "/nowhere"])
def test_clients_that_stop_in_the_middle_of_a_body_do_not_keep_the_threads(server: Server, path: str) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(half_body(server, "X-Request-Timeout: 0.5", path=path)) for _ in range(14)]
        assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        answers = [whole_answer(wire) for wire in wires]
    assert {b"\r\nConnection: close\r\n" in answer for answer in answers} == {True}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/ocr", b'"code":"body_timeout"'),
        ("/api/tr-run/", b'"code": 408'),
        ("/api/trocr", b"\r\nContent-Type: text/plain; charset=UTF-8\r\n"),
    ],
)
def test_a_body_that_stops_is_a_408_that_ends_the_connection(server: Server, path: str, said: bytes) -> None:
    with half_body(server, "X-Request-Timeout: 0.5", path=path) as wire:
        answer = whole_answer(wire)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert said in answer


@pytest.mark.parametrize(
    ("headers", "piece"),
    [(("Content-Length: 1000",), b"a"), (("Transfer-Encoding: chunked",), b"1\r\na\r\n")],
)
def test_a_byte_at_a_time_gets_round_no_deadline(server: Server, headers: tuple[str, ...], piece: bytes) -> None:
    with connect(server) as wire:
        wire.sendall(head("X-Request-Timeout: 1", *headers))
        stop = time.monotonic() + 30
        while not select.select([wire], [], [], 0.1)[0] and time.monotonic() < stop:
            wire.sendall(piece)
        assert wire.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_slow_but_steady_upload_is_read_and_its_connection_goes_on(server: Server) -> None:
    """The pauses are the client's own; however long the machine stretches them, the deadline is far away."""
    pieces = [PNG[at : at + len(PNG) // 8 + 1] for at in range(0, len(PNG), len(PNG) // 8 + 1)]
    with connect(server) as wire:
        wire.sendall(head(f"Content-Length: {len(PNG)}"))
        for piece in pieces:
            assert not select.select([wire], [], [], 0.05)[0]
            wire.sendall(piece)
        assert wire.recv(65536).startswith(b"HTTP/1.1 200 ")
        wire.sendall(head(f"Content-Length: {len(PNG)}", "Connection: close") + PNG)
        assert whole_answer(wire).startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def slow_server() -> Iterator[Server]:
    env = {"OCRSVC_FAKE_LATENCY_S": "1.5", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_QUEUE_SIZE": "16"}
    with run_server({**env, "OCRSVC_WORKERS": "1", "OCRSVC_CALLER_REQUESTS": "12"}) as running:
        yield running


def asking(server: Server, stack: ExitStack, ahead: bytes = b"") -> socket.socket:
    """A client that has sent one image and waits."""
    wire = stack.enter_context(connect(server))
    wire.sendall(head(f"Content-Length: {len(PNG)}") + PNG + ahead)
    return wire


def test_clients_that_hang_up_cost_the_engine_nothing_and_one_that_sends_ahead_has_not(slow_server: Server) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        wires = [asking(slow_server, stack) for _ in range(8)]
        closed, reset, half = wires[1:5], wires[5:7], wires[7]
        for wire in closed:
            wire.close()
        for wire in reset:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            wire.close()
        half.shutdown(socket.SHUT_WR)
        ahead = asking(slow_server, stack, ahead=b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = whole_answer(ahead)
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200"]
        assert whole_answer(half).startswith(b"HTTP/1.1 499 ")
    # Two images of 1.5 s; nine would take 13.5 s.
    assert time.monotonic() - began < 12
    slow_server.wait_for("dropped: its client has gone", count=7)
    assert not [line for line in slow_server.lines if "ERROR" in line or "Traceback" in line]


def test_a_caller_that_opens_too_many_requests_gets_429_and_health_checks_go_on(slow_server: Server) -> None:
    with ExitStack() as stack:
        wires = [asking(slow_server, stack) for _ in range(16)]
        readable = select.select(wires, [], [], 30)[0]
        assert readable[0].recv(65536).startswith(b"HTTP/1.1 429 ")
        assert requests.get(f"{slow_server.url}/healthz", timeout=30).status_code == 200
