"""Does an answer leave in one piece, and does nothing else change?"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from support import run_server

from ocrsvc.web.sending import SendingSocket, in_one_piece


class Wire:
    """A socket that remembers each system call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes, _flags: int) -> int:
        self.sent.append(data)
        return len(data)


class Response:
    """gunicorn's response, as far as it matters: headers first, then each piece of the body."""

    def __init__(self, wire: Wire, length: int | None) -> None:
        self.sock: Any = wire
        self.response_length = length

    def start_response(self, _status: str, _headers: list[tuple[str, str]]) -> None:
        pass


def sent(pieces: list[bytes], length: int | None, method: str = "POST") -> list[bytes]:
    """The system calls of one answer."""
    wire = Wire()
    response = Response(wire, length)
    application = in_one_piece(lambda _environ, start_response: start_response("200 OK", []) or pieces)
    body = application({"REQUEST_METHOD": method}, response.start_response)
    response.sock.sendall(b"headers|")
    for piece in body:
        response.sock.sendall(piece)
    return wire.sent


@pytest.mark.parametrize(
    ("pieces", "length", "method", "calls"),
    [
        ([b"body"], 4, "POST", [b"headers|body"]),
        ([b"bo", b"dy"], 4, "GET", [b"headers|bo", b"dy"]),
        ([b"", b"body"], 4, "GET", [b"headers|", b"body"]),
        ([], None, "GET", [b"headers|"]),
        ([], 0, "GET", [b"headers|"]),
        ([], 4, "HEAD", [b"headers|"]),
    ],
)
def test_headers_wait_for_the_body_where_one_follows(
    pieces: list[bytes], length: int | None, method: str, calls: list[bytes]
) -> None:
    assert sent(pieces, length, method) == calls


def test_a_client_that_receives_nothing_does_not_hold_the_thread() -> None:
    here, there = socket.socketpair()
    with here, there:
        sending = SendingSocket(here, holds=False, limit_s=0.05)
        with pytest.raises(BrokenPipeError, match="does not receive"):
            sending.sendall(bytes(64 * 2**20))
        assert here.gettimeout() is None


def test_another_server_is_left_alone() -> None:
    application = in_one_piece(lambda _environ, start_response: start_response("200 OK", []) or [b"body"])
    assert list(application({"REQUEST_METHOD": "GET"}, lambda _status, _headers: None)) == [b"body"]


def test_a_real_connection_goes_on_after_any_kind_of_answer() -> None:
    with run_server({"OCRSVC_WORKERS": "1"}) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as wire:
            for method in ("GET", "HEAD", "OPTIONS", "GET"):
                wire.sendall(f"{method} /healthz HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answer = wire.recv(1 << 16)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert answer.endswith(b"}" if method == "GET" else b"\r\n\r\n")
