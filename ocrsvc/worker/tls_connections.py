"""TLS before HTTP: the event loop goes on with the handshakes of new connections, and waits for none.

A client has as long for its handshake as for a head, and then for its first head again.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any, Final

from ocrsvc.connections.handshakes import Handshakes
from ocrsvc.connections.tls_socket import NotTls
from ocrsvc.worker.connection import Connection
from ocrsvc.worker.event_loop import HEAD_S, STOP_LINGER_S, EventLoopWorker

_TEXT: Final = b"This port speaks TLS: ask it by https://.\n"
_NOT_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)
)


class TlsWorker(EventLoopWorker):
    """A worker whose connections begin with TLS, but for those of Unix sockets, if `handshakes` is set.

    Attributes:
        handshakes: Set before it accepts; None where HTTP is plain.
    """

    handshakes: Handshakes | None = None

    def begin_connection(self, sock: socket.socket, client: Any, server: Any) -> None:
        """Wait for the first message of the client's TLS, or for its first head."""
        if self.handshakes is None or sock.family == socket.AF_UNIX:
            super().begin_connection(sock, client, server)
            return
        conn = Connection(self.cfg, self.handshakes.begin(sock), client, server)
        self.nr_conns += 1
        self._guarded(conn, self._begin_handshake)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """As the loop's; the handshakes have the time of one turn."""
        if self.handshakes is not None:
            self.handshakes.begin_turn()
        super().wait_for_and_dispatch_events(timeout=timeout)

    def _begin_handshake(self, conn: Connection) -> None:
        conn.timeout = time.monotonic() + (HEAD_S if self.alive else STOP_LINGER_S)
        self._listen(conn, self._on_handshake)

    def _on_handshake(self, conn: Connection) -> None:
        """More of a handshake is there, or its client has gone."""
        assert self.handshakes is not None, "only with TLS"
        assert conn.tls is not None, "only with TLS"
        try:
            is_over = self.handshakes.go_on(conn.tls, conn.client)
        except NotTls:
            with suppress(OSError):
                conn.tls.send_plain(_NOT_TLS)
            self._begin_close(conn)
        except OSError:
            # It waits until the client has read why.
            self._begin_close(conn)
        else:
            if is_over:
                self._begin_head(conn)

    def _drop(self, conn: Connection) -> None:
        """Close at once."""
        if self.handshakes is not None and conn.tls is not None:
            self.handshakes.note_end(conn.tls)
        super()._drop(conn)
