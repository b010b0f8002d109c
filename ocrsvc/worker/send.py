"""Sends responses: the head with the first piece of the body in one call, and never waiting for the client.

gunicorn sends the head, and then the body. A worker that is killed in between leaves half a response at a proxy, which
cannot ask another worker any more. What the kernel does not take at once is left to the event loop, so that no thread
waits for a client that reads slowly.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any


class Sender:
    """What gunicorn's response takes for its socket; used by the thread of one request.

    Attributes:
        unsent: What the kernel has not taken yet, for the event loop.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._head: bytes | None = None
        self.unsent: deque[memoryview] = deque()

    def sendall(self, data: bytes) -> None:
        """Keep the head until something follows; send, or leave for later, the rest. Raises OSError."""
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, b""
        self._send([head, data] if head else [data])

    def flush(self) -> None:
        """Send a head that nothing follows. Raises OSError."""
        if self._head:
            self.sendall(b"")

    def _send(self, pieces: list[bytes]) -> None:
        sent = 0
        if not self.unsent:
            try:
                sent = self._sock.sendmsg(pieces, [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
        for piece in pieces:
            if sent < len(piece):
                self.unsent.append(memoryview(piece)[sent:])
            sent = max(0, sent - len(piece))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
