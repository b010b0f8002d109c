"""How does an answer leave whole, so that a worker that dies has either sent it or not begun?

gunicorn sends the headers, and then the body. A worker that is killed in between leaves half an answer at a proxy,
which cannot ask another worker any more. One system call is cheaper, too.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

SEND_S: Final = 60.0
"""How long a client may take to receive an answer; without a limit, clients that read nothing hold every thread."""

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]


def in_one_piece(application: Application) -> Application:
    """A WSGI application whose headers wait for the beginning of its body; must be the outermost one.

    Under a server that is not gunicorn nothing changes.
    """

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        body = application(environ, start_response)
        response: Any = getattr(start_response, "__self__", None)
        if hasattr(response, "sock"):
            # Where no body follows nobody would send what is held.
            has_body = getattr(response, "response_length", None) and environ["REQUEST_METHOD"] != "HEAD"
            response.sock = SendingSocket(response.sock, holds=bool(has_body))
        return body

    return run


class SendingSocket:
    """A socket that sends the first piece together with the second, and each piece within a limit.

    Args:
        wire: A blocking socket.
        holds: Whether the first piece waits for the second.
        limit_s: Seconds for one call of `sendall`, however the client trickles.
    """

    def __init__(self, wire: Any, *, holds: bool, limit_s: float = SEND_S) -> None:
        self._wire = wire
        self._held: bytes | None = None if holds else b""
        self._limit_s = limit_s

    def sendall(self, data: bytes) -> None:
        """Hold the headers; send what follows. Raises BrokenPipeError when the client does not receive it in time."""
        if self._held is None:
            self._held = data
            return
        piece, self._held = self._held + data, b""
        rest = memoryview(piece)[self._send_at_once(piece) :]
        if rest:
            self._send_in_time(rest)

    def _send_at_once(self, piece: bytes) -> int:
        """How much the kernel takes without waiting: nearly always all of it, for the price of one call."""
        if isinstance(self._wire, ssl.SSLSocket):
            return 0
        try:
            return int(self._wire.send(piece, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0

    def _send_in_time(self, rest: memoryview) -> None:
        before_s = self._wire.gettimeout()
        self._wire.settimeout(self._limit_s)
        try:
            self._wire.sendall(rest)
        except TimeoutError as error:
            raise BrokenPipeError(errno.EPIPE, "the client does not receive its answer") from error
        finally:
            self._wire.settimeout(before_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)
