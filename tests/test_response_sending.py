"""Responses leave in one piece, and never wait for their client in a thread."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import requests
from image_support import encoded, noise
from support import read_to_end, run_server
from web_support import picture

from ocrsvc.worker.connection import Sender


@pytest.mark.parametrize(
    ("pieces", "arrives"),
    [([b"head|", b"body"], b"head|body"), ([b"head|", b"bo", b"dy"], b"head|body"), ([b"head|"], b"head|")],
)
def test_the_head_waits_for_the_body_where_one_follows(pieces: list[bytes], arrives: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        sender = Sender(here)
        sender.sendall(pieces[0])
        with pytest.raises(BlockingIOError):
            there.recv(100)
        for piece in pieces[1:]:
            sender.sendall(piece)
        sender.flush()
        assert (there.recv(100), len(sender.unsent)) == (arrives, 0)


def test_what_the_client_does_not_take_is_left_in_order() -> None:
    here, there = socket.socketpair()
    with here, there:
        sender = Sender(here)
        sent = [b"head", bytes(3 * 2**20), b"more", b"end"]
        for piece in sent:
            sender.sendall(piece)
        assert sum(map(len, sender.unsent)) > 0
        left = b"".join(sender.unsent)
        assert b"".join(sent).endswith(left)
        assert left.endswith(b"moreend")


def test_a_client_that_is_gone_is_an_error_at_once() -> None:
    here, there = socket.socketpair()
    there.close()
    with here:
        sender = Sender(here)
        sender.sendall(b"head")
        with pytest.raises(OSError, match="Broken pipe"):
            sender.sendall(b"body")


def test_a_real_connection_goes_on_after_any_kind_of_answer() -> None:
    with run_server({"OCRSVC_WORKERS": "1"}) as server, server.connect() as wire:
        for method in ("GET", "HEAD", "OPTIONS", "GET"):
            wire.sendall(f"{method} /healthz HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = wire.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"}" if method == "GET" else b"\r\n\r\n")


def test_clients_that_do_not_read_hold_no_thread_and_those_that_read_later_get_everything() -> None:
    """A page's picture of many megabytes for each of 12 clients on a worker of two threads."""
    env = {"OCRSVC_WORKERS": "1", "OCRSVC_THREADS": "2"}
    body = encoded(noise(1, 1500, 1500))
    head = b"POST /api/tr-run/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with run_server(env) as server, ExitStack() as stack:
        wires = [stack.enter_context(socket.socket()) for _ in range(12)]
        for wire in wires:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.settimeout(30)
            wire.connect(server.address)
            wire.sendall(head % len(body) + body)
        answered = requests.post(f"{server.url}/v1/ocr", data=picture(), timeout=30)
        assert answered.status_code == 200
        for wire in wires:
            head, _, rest = read_to_end(wire).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert f"Content-Length: {len(rest)}" in head.decode()
