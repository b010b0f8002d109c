"""What does a client on a real socket see when its body is too large, broken or late, and what does the next one?"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
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


def talk(server: Server, *pieces: bytes) -> bytes:
    """Send raw bytes, piece by piece, and read until the service closes the connection."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as wire:
        for piece in pieces:
            wire.sendall(piece)
        wire.shutdown(socket.SHUT_WR)
        answer = b""
        while got := wire.recv(65536):
            answer += got
        return answer


def head(*headers: str, path: str = "/v1/ocr") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: image/png", *headers, "", ""]
    return "\r\n".join(lines).encode()


def problem(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("size", [LIMIT + 1, 2 * LIMIT, 50_000_000])
def test_a_client_that_sends_too_much_sees_the_413_and_its_session_goes_on(server: Server, size: int) -> None:
    with requests.Session() as session:
        refused = session.post(f"{server.url}/v1/ocr", data=bytes(size), timeout=30)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert str(LIMIT) in refused.json()["detail"]
        read = session.post(f"{server.url}/v1/ocr", data=PNG, timeout=30)
        assert (read.status_code, read.json()["pages"][0]["width"]) == (200, 64)


def test_a_chunked_body_that_is_too_large_is_a_413_too(server: Server) -> None:
    refused = requests.post(f"{server.url}/v1/ocr", data=iter([bytes(50_000)] * 3), timeout=30)
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")


def test_a_chunked_image_is_read(server: Server) -> None:
    read = requests.post(f"{server.url}/v1/ocr", data=iter([PNG[:20], PNG[20:]]), timeout=30)
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


def test_a_body_that_ends_early_is_a_400(server: Server) -> None:
    answer = talk(server, head("Content-Length: 1000"), PNG)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert problem(answer)["code"] == "bad_request"


def test_chunks_that_are_nonsense_are_a_400_and_end_the_connection(server: Server) -> None:
    answer = talk(server, head("Transfer-Encoding: chunked"), b"5\r\nabcde\r\nnonsense\r\n", b"GET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_client_that_promises_too_much_and_sends_nothing_holds_nobody_up(server: Server) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as idle:
        idle.sendall(head(f"Content-Length: {10 * LIMIT}"))
        began = time.monotonic()
        assert requests.post(f"{server.url}/v1/ocr", data=PNG, timeout=30).status_code == 200
        assert time.monotonic() - began < 10


def test_head_and_options_leave_a_connection_usable(server: Server) -> None:
    with requests.Session() as session:
        assert session.head(f"{server.url}/healthz", timeout=30).status_code == 200
        assert session.options(f"{server.url}/v1/ocr", timeout=30).status_code == 200
        assert session.get(f"{server.url}/hi", timeout=30).text == "Hello World!"
