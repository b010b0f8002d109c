"""A server that stands in for a service: it answers POSTs as a test says, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message

from support import QuietHandler, http_server

Reply = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@contextmanager
def replying(reply: Callable[[Message, bytes], Reply | None]) -> Iterator[str]:
    """The address of a server that answers these headers and this body so; None breaks the connection."""
    lock = threading.Lock()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                answer = reply(self.headers, body)
            if answer is None:
                self.close_connection = True
                return
            self.answer(answer[0], answer[2], answer[1])

    with http_server(Handler) as url:
        yield url
