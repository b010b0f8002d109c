"""A server that answers as a test wants, byte by byte, and policies that reach it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_network

from ocrsvc.connections.policy import OutgoingPolicy

Answer = Callable[[socket.socket, bytes], object]
LOOPBACK = (ip_network("127.0.0.0/8"),)


class ScriptedServer:
    """Listens on a loopback address, and answers each request by a function; it keeps the heads it was sent."""

    def __init__(self, answer: Answer, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.heads: list[bytes] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        # A client that has had enough closes; that is no fault of the server.
        with suppress(OSError), sock:
            sock.settimeout(30)
            wire = sock if self._tls is None else self._tls.wrap_socket(sock, server_side=True)
            with wire:
                head = b""
                while b"\r\n\r\n" not in head and (piece := wire.recv(65536)):
                    head += piece
                self.heads.append(head)
                self._answer(wire, head)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def serving(
    answer: Answer | bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """A server that sends these bytes, or does as the function does."""
    act = answer if callable(answer) else lambda sock, _head: sock.sendall(answer)
    server = ScriptedServer(act, host, tls)
    try:
        yield server
    finally:
        server.close()


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str) -> bytes:
    """A response that leads on."""
    return response(b"", f"Location: {location}", status="302 Found")


def local_policy(*hosts: str) -> OutgoingPolicy:
    """One that allows loopback addresses, and these hosts at any port."""
    allowed = tuple(f"{host}:*" for host in hosts or ("127.0.0.1",))
    return OutgoingPolicy(allowed, LOOPBACK, max_bytes=1 << 20, max_s=60.0)


def open_policy(*hosts: str) -> OutgoingPolicy:
    """One that allows these hosts, and no network that is not public."""
    return replace(local_policy(*(hosts or ("*",))), private=())
