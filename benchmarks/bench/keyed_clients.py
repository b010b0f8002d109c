"""Clients with one API key each, so that a key has at most one request in flight."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bench.service import Service

LIMIT_S = 30.0
_PAUSE_S = 0.02
_HEAD_END = b"\r\n\r\n"


@dataclass
class Tally:
    """What one client received.

    Attributes:
        answered: Complete answers with status 200.
        refused: Other answers, which carry no page.
        broken: Requests that may have been sent but got no answer.
    """

    answered: int = 0
    refused: int = 0
    broken: int = 0


class KeyedClient:
    """A client on one kept-alive connection, which it reopens when it breaks. Used by one thread."""

    def __init__(self, service: Service, image: bytes, secret: str | None) -> None:
        self._address = (service.host, service.port)
        key = f"Authorization: Bearer {secret}\r\n" if secret else ""
        head = f"POST /v1/ocr HTTP/1.1\r\nHost: {service.host}\r\nContent-Type: image/png\r\n{key}"
        self._request = f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image
        self._wire: socket.socket | None = None
        self.tally = Tally()

    def send(self) -> None:
        """Send one request and count its answer."""
        if self._wire is None and not self._connect():
            return
        status = self._exchange()
        if status is None:
            self.tally.broken += 1
        elif status == 200:
            self.tally.answered += 1
        else:
            self.tally.refused += 1

    def close(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    def _connect(self) -> bool:
        try:
            self._wire = socket.create_connection(self._address, timeout=LIMIT_S)
        except OSError:
            time.sleep(_PAUSE_S)
            return False
        return True

    def _exchange(self) -> int | None:
        """The status of the answer; None when the connection broke."""
        assert self._wire is not None
        try:
            self._wire.sendall(self._request)
            head, _, body = self._receive(lambda data: _HEAD_END in data).partition(_HEAD_END)
            fields = head.lower()
            wanted = int(fields.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(body) < wanted:
                self._receive(lambda data: len(data) >= wanted - len(body))
        except (OSError, ValueError):
            self.close()
            return None
        if b"connection: close" in fields:
            self.close()
        return int(head[9:12])

    def _receive(self, is_enough: Callable[[bytes], bool]) -> bytes:
        assert self._wire is not None
        data = b""
        while not is_enough(data):
            piece = self._wire.recv(65_536)
            if not piece:
                raise ConnectionError
            data += piece
        return data


def send_all(clients: Sequence[KeyedClient], requests: int, watch: Callable[[int], object] = bool) -> None:
    """Run all clients until they have received `requests` answers with status 200 in total.

    Args:
        clients: Each runs in its own thread.
        requests: Number of answers to wait for.
        watch: Called repeatedly on this thread with the number of answers so far.
    """
    done = threading.Event()

    def keep_sending(client: KeyedClient) -> None:
        while not done.is_set():
            client.send()
        client.close()

    threads = [threading.Thread(target=keep_sending, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    with suppress(KeyboardInterrupt):
        while (answered := sum(client.tally.answered for client in clients)) < requests:
            watch(answered)
            time.sleep(_PAUSE_S)
    done.set()
    for thread in threads:
        thread.join()
