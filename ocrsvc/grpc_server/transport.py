"""The socket of one gRPC connection. Everything here runs on the loop's thread."""

from __future__ import annotations

import random
import selectors
import socket
import time
from typing import Final

from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.sender import FILL_BYTES
from ocrsvc.grpc_server.slow_readers import StallDetector
from ocrsvc.serving.memory_budget import Share
from ocrsvc.tls.handshakes import Handshakes
from ocrsvc.tls.tls_socket import TlsSocket

FIRST_BYTES_S: Final = 10.0
"""How long a connection may take to say that it speaks HTTP/2."""

MAX_AGE_S: Final = 300.0
"""After which a connection is asked to connect anew: channels stay for ever otherwise, and never meet a new worker."""

MAX_UNSENT_BYTES: Final = FILL_BYTES
"""While more is to be sent on a connection, nothing is read from it: what it sends makes yet more."""

RECEIVE_BYTES: Final = 1 << 16

_LINGER_S: Final = 2.0
# What is read and thrown away of a connection that ends, so that its client gets to read why.
_LINGER_BYTES: Final = 1 << 20


class Transport:
    """Moves the bytes of one connection.

    Args:
        sock: The client; a TlsSocket begins with its handshake.
        connection: Its HTTP/2 state.
        share: What the connection holds of the memory, whatever its calls hold; given back with it.
        selector: Reports when the socket is ready.
        others: All transports of the server; this one leaves them when it is closed.
        handshakes: Go on with that of a TlsSocket; None where the server is plain.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        connection: Connection,
        share: Share,
        selector: selectors.BaseSelector,
        others: set[Transport],
        handshakes: Handshakes | None = None,
    ) -> None:
        self.connection = connection
        self._sock = sock
        self._share = share
        self._selector = selector
        self._others = others
        self._handshakes = handshakes
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._in_handshake = self._tls is not None
        self._events = selectors.EVENT_READ
        self._stall = StallDetector()
        self._closing_s: float | None = None
        self._is_shut = False
        self._discarded_bytes = 0
        self._age_s = MAX_AGE_S * random.uniform(0.9, 1.1)  # noqa: S311  no secret: they should not all go together
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, self._events, self._read)

    @property
    def waiting(self) -> bool:
        """Whether there is something to do without the socket: see Connection.waiting."""
        connection = self.connection
        return connection.waiting and self._closing_s is None and len(connection.take_out()) < MAX_UNSENT_BYTES

    @property
    def exempt(self) -> bool:
        """Whether it was accepted though no memory was left for it."""
        return self._share.held_bytes == 0

    def go_on(self) -> None:
        """The connection's next turn, if it has more to do."""
        if self in self._others and self.waiting:
            self.connection.go_on()

    def _read(self, events: int) -> None:
        """The socket is ready; `write` follows in every round."""
        if not events & selectors.EVENT_READ or (self._in_handshake and not self._go_on_with_handshake()):
            return
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop()
        elif self._closing_s is None:
            self.connection.receive(data)
        else:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES:
                self.drop()

    def _go_on_with_handshake(self) -> bool:
        """Whether it is over; what the client has sent behind it is then read."""
        assert self._handshakes is not None, "only with TLS"
        assert self._tls is not None, "only with TLS"
        try:
            if not self._handshakes.go_on(self._tls, self.connection.caller):
                return False
        except OSError:
            # It waits until the client has read why.
            self._in_handshake, self.connection.broken = False, True
            self.connection.take_out().clear()
            return False
        self._in_handshake = False
        self.connection.client_name = self._tls.client_name
        return True

    def write(self) -> None:
        """Send what there is, as far as the client takes it; close what is finished."""
        if self not in self._others or self._in_handshake or not self._send():
            return
        self.connection.send_more()
        out = self.connection.take_out()
        reading = 0 if len(out) >= MAX_UNSENT_BYTES or self.waiting else selectors.EVENT_READ
        self._want(reading | (selectors.EVENT_WRITE if out or self._is_encrypted_unsent else 0))
        if self.connection.broken or self.connection.finished:
            self._begin_close()

    def _send(self) -> bool:
        """Send what the socket takes; whether the connection is still open."""
        out = self.connection.take_out()
        before = len(out)
        try:
            if self._tls is not None:
                self._tls.flush()
            while out:
                sent = self._sock.send(out)
                del out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return False
        self._stall.note(time.monotonic(), left=bool(out) or self._is_encrypted_unsent, taken=before - len(out))
        return True

    @property
    def _is_encrypted_unsent(self) -> bool:
        return self._tls is not None and self._tls.unsent_bytes > 0

    def check_time_limits(self, now_s: float) -> None:
        """End what is over its time limit, and a connection that is too old."""
        connection = self.connection
        first_s = _LINGER_S if self._in_handshake and connection.is_draining else FIRST_BYTES_S
        silent = not connection.handshake_done and now_s - connection.began_s > first_s
        if (
            silent
            or self._stall.is_stalled(now_s)
            or (self._closing_s is not None and now_s - self._closing_s > _LINGER_S)
        ):
            self.drop()
            return
        if now_s - connection.began_s > self._age_s:
            connection.begin_shutdown()
        connection.check_time_limits()

    def close_now(self) -> None:
        """Close at once, with a GOAWAY as far as the socket takes it."""
        self.connection.close_now()
        if self in self._others and self._send():
            self.drop()

    def drop(self) -> None:
        """Close at once."""
        if self in self._others:
            self._others.discard(self)
            if self._handshakes is not None and self._tls is not None:
                self._handshakes.note_end(self._tls)
            self._selector.unregister(self._sock)
            self._sock.close()
            self.connection.close()
            self._share.release()

    def _begin_close(self) -> None:
        """Say that nothing more comes, and wait a moment for the client to close, so that it reads its last answer."""
        if self._closing_s is None:
            self._closing_s = time.monotonic()
            self.connection.close()
        if not self._is_shut:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except BlockingIOError:
                # TLS has a goodbye of its own, which waits for the kernel.
                return
            except OSError:
                pass
            self._is_shut = True

    def _want(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._selector.modify(self._sock, events, self._read)
