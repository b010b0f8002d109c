"""Oversized, malformed and stalled bodies on a real socket: the response, and the effect on other clients."""

import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests
from image_support import png
from support import Server, read_to_end, run_server

LIMIT = 100_000
SERVER_ENV = {"OCRSVC_MAX_BODY_BYTES": str(LIMIT)}
PNG = png()


def exchange(server: Server, *pieces: bytes) -> bytes:
    with server.connect() as wire:
        for piece in pieces:
            wire.sendall(piece)
        wire.shutdown(socket.SHUT_WR)
        return read_to_end(wire)


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
def test_a_too_large_body_gets_413_and_the_session_continues(server: Server, send: Callable[[], Any]) -> None:
    with requests.Session() as session:
        refused = session.post(f"{server.url}/v1/ocr", data=send(), timeout=30)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert str(LIMIT) in refused.json()["detail"]
        read = session.post(f"{server.url}/v1/ocr", data=iter([PNG[:20], PNG[20:]]), timeout=30)
        assert (read.status_code, read.json()["pages"][0]["width"]) == (200, 64)


def test_bytes_after_a_refused_body_are_not_a_request(server: Server) -> None:
    smuggled = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    body = smuggled * (3 * LIMIT // len(smuggled))
    answer = exchange(server, head(f"Content-Length: {len(body)}"), body)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("Content-Length: 1000", [PNG]),
        ("Transfer-Encoding: chunked", [b"5\r\nabcde\r\nnonsense\r\n", b"GET / HTTP/1.1\r\n\r\n"]),
    ],
)
def test_malformed_body_returns_400_and_closes(server: Server, header: str, sent: list[bytes]) -> None:
    answer = exchange(server, head(header), *sent)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert (answer.count(b"HTTP/1.1 "), problem(answer)["code"]) == (1, "bad_request")


@pytest.mark.parametrize(("path", "status"), [("//v1/ocr", b"200"), ("/v1//ocr", b"404"), ("/v1/ocr/", b"404")])
def test_leading_slashes_are_ignored_and_no_slash_redirects(server: Server, path: str, status: bytes) -> None:
    answer = exchange(server, head(f"Content-Length: {len(PNG)}", "Connection: close", path=path) + PNG)
    assert answer.split()[1] == status


def stalled_request(server: Server, *headers: str, path: str = "/v1/ocr") -> socket.socket:
    """A connection whose request stalls after 2 of 1000 body bytes."""
    wire = server.connect()
    wire.sendall(head("Content-Length: 1000", *headers, path=path) + b"ab")
    return wire


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/ocr", b'"code":"body_timeout"'),
        ("/api/tr-run/", b'"code": 408'),
        ("/api/trocr", b"\r\nContent-Type: text/plain; charset=UTF-8\r\n"),
        ("/healthz", b""),
        ("/nowhere", b""),
    ],
)
def test_stalled_bodies_block_no_thread_and_get_408(server: Server, path: str, said: bytes) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(stalled_request(server, "X-Request-Timeout: 0.5", path=path)) for _ in range(14)]
        assert requests.get(f"{server.url}/healthz", timeout=30).status_code == 200
        answers = [read_to_end(wire) for wire in wires]
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 ") is bool(said)
        assert b"\r\nConnection: close\r\n" in answer
        assert said in answer


@pytest.fixture(scope="module")
def slow_server() -> Iterator[Server]:
    env = {"OCRSVC_FAKE_LATENCY_S": "1.5", "OCRSVC_ENGINE_THREADS": "1", "OCRSVC_QUEUE_SIZE": "16"}
    with run_server({**env, "OCRSVC_WORKERS": "1", "OCRSVC_CALLER_REQUESTS": "12"}) as running:
        yield running


def post_image(server: Server, stack: ExitStack, ahead: bytes = b"") -> socket.socket:
    wire = stack.enter_context(server.connect())
    wire.sendall(head(f"Content-Length: {len(PNG)}") + PNG + ahead)
    return wire


def test_images_of_disconnected_clients_are_not_read_but_pipelined_ones_are(slow_server: Server) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        wires = [post_image(slow_server, stack) for _ in range(8)]
        closed, reset, half = wires[1:5], wires[5:7], wires[7]
        for wire in closed:
            wire.close()
        for wire in reset:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            wire.close()
        half.shutdown(socket.SHUT_WR)
        ahead = post_image(slow_server, stack, ahead=b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = read_to_end(ahead)
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200"]
        assert read_to_end(half).startswith(b"HTTP/1.1 499 ")
    # Two images take 3 s; nine would take 13.5 s.
    assert time.monotonic() - began < 12
    slow_server.wait_for("dropped: the client has disconnected", count=7)
    assert not [line for line in slow_server.lines if "ERROR" in line or "Traceback" in line]


def test_too_many_requests_of_a_caller_get_429_and_health_checks_succeed(slow_server: Server) -> None:
    with ExitStack() as stack:
        wires = [post_image(slow_server, stack) for _ in range(16)]
        readable = select.select(wires, [], [], 30)[0]
        assert readable[0].recv(65536).startswith(b"HTTP/1.1 429 ")
        assert requests.get(f"{slow_server.url}/healthz", timeout=30).status_code == 200
