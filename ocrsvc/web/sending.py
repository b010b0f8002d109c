"""How does an answer leave whole, so that a worker that dies has either sent it or not begun?

gunicorn sends the headers, and then the body. A worker that is killed in between leaves half an answer at a proxy,
which cannot ask another worker any more. One system call is cheaper, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]


def in_one_piece(application: Application) -> Application:
    """A WSGI application whose headers wait for the beginning of its body; must be the outermost one.

    Under a server that is not gunicorn nothing changes.
    """

    def run(environ: Environ, start_response: Any) -> Iterable[bytes]:
        body = application(environ, start_response)
        response: Any = getattr(start_response, "__self__", None)
        # Where no body follows nobody would send what is held.
        if getattr(response, "response_length", None) and environ["REQUEST_METHOD"] != "HEAD":
            response.sock = _HoldingSocket(response.sock)
        return body

    return run


class _HoldingSocket:
    """A socket that sends the first piece together with the second."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._held: bytes | None = None

    def sendall(self, data: bytes) -> None:
        """Hold the headers; send what follows."""
        if self._held is None:
            self._held = data
            return
        piece, self._held = self._held + data, b""
        self._wire.sendall(piece)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)
