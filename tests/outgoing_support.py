"""A server that sends the exact bytes a test supplies, and outgoing policies that allow it."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

from ocrsvc.connections.policy import OutgoingPolicy

Answer = Callable[[socket.socket, bytes], object]
LOOPBACK = (ip_network("127.0.0.0/8"),)


class ScriptedServer(socketserver.ThreadingTCPServer):
    """Listens on a loopback address, answers each request with a function and records request headers."""

    def __init__(self, answer: Answer, host: str, tls: ssl.SSLContext | None) -> None:
        super().__init__((host, 0), socketserver.BaseRequestHandler)
        self.answer, self.tls = answer, tls
        self.port: int = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.heads: list[bytes] = []

    def finish_request(self, request: Any, _client_address: object) -> None:
        # A client may close the connection early; that is not an error of the server.
        with suppress(OSError):
            request.settimeout(30)
            with request if self.tls is None else self.tls.wrap_socket(request, server_side=True) as wire:
                head = b""
                while b"\r\n\r\n" not in head and (piece := wire.recv(65536)):
                    head += piece
                self.heads.append(head)
                self.answer(wire, head)


@contextmanager
def serving(
    answer: Answer | bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    act = answer if callable(answer) else lambda sock, _head: sock.sendall(answer)
    with ScriptedServer(act, host, tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str) -> bytes:
    return response(b"", f"Location: {location}", status="302 Found")


def local_policy(*hosts: str) -> OutgoingPolicy:
    """Return a policy that allows these hosts on any port, loopback addresses included."""
    allowed = tuple(f"{host}:*" for host in hosts or ("127.0.0.1",))
    return OutgoingPolicy(allowed, LOOPBACK, max_bytes=1 << 20, max_s=60.0)


def open_policy(*hosts: str) -> OutgoingPolicy:
    """Return a policy that allows these hosts, at public addresses only."""
    return replace(local_policy(*(hosts or ("*",))), private=())
