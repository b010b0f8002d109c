"""Non-blocking TLS sockets with the interface of plain sockets, and the handshakes of one event loop.

OpenSSL works on memory buffers, not on the socket: one call decrypts many records, and no received bytes are left in
a buffer of OpenSSL, where a poller would not see them.
"""

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from ocrsvc.connections.certificates import key_of, names_of
from ocrsvc.telemetry.metrics import TLS_HANDSHAKES
from ocrsvc.telemetry.metrics_store import WorkerMetrics

# Memory to reserve for TLS per connection; measured: 49 kB during the handshake, 18 kB after it.
CONNECTION_BYTES: Final = 1 << 16
# The largest TLS record.
RECORD_BYTES: Final = 1 << 14
# Bytes received and decrypted per call; decrypting them takes a few milliseconds if they are 3000 one-byte records.
MAX_RECEIVED_BYTES: Final = 1 << 16
# `send` refuses data once this many encrypted bytes wait for the kernel; the last record may exceed the limit.
MAX_UNSENT_BYTES: Final = 1 << 16
# Longest ClientHello that is accepted; OpenSSL would allocate up to 128 KiB for the length it declares.
HELLO_BYTES: Final = 1 << 14
# Bytes that a client may send in its handshake, certificates included.
HANDSHAKE_BYTES: Final = 1 << 17
# Time for handshakes per iteration of the event loop; a handshake with an RSA key takes a millisecond.
TURN_S: Final = 0.005
_LOG_INTERVAL_S: Final = 10.0
_HANDSHAKE_RECORD: Final = 22
# A handshake message begins with its type and length, after a record header of 5 bytes.
_MESSAGE_HEAD_BYTES: Final = 4
_HELLO_HEAD_BYTES: Final = 5 + _MESSAGE_HEAD_BYTES


class NotTls(OSError):
    """The client does not speak TLS, but most likely plain HTTP."""


class TlsSocket:
    """The server side of TLS on an accepted socket, which it owns. For one thread at a time.

    `established` and `refused` are the handshake's outcome; `at_end` means that the client sends no more;
    `client_name` is the name of the API key that belongs to the client's certificate.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.client_name: str | None = None
        self.established = self.refused = self.at_end = False
        self._sock, self._context = sock, context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._hello, self._received_bytes = b"", 0
        self._unsent = memoryview(b"")
        self._is_closing = False
        sock.setblocking(False)
        # Expose these members of the plain socket to code that expects a socket.
        self.family, self.fileno, self.setsockopt = sock.family, sock.fileno, sock.setsockopt

    @property
    def unsent_bytes(self) -> int:
        """Number of encrypted bytes that wait for `flush`."""
        return len(self._unsent) + self._outgoing.pending

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises NotTls, ssl.SSLError, OSError."""
        try:
            data = self._sock.recv(RECORD_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError("the client has closed the connection")
        self._received_bytes += len(data)
        if self._received_bytes > HANDSHAKE_BYTES:
            raise ssl.SSLError("the handshake is too long")
        if self._tls is None:
            self._hello += data
            if not self._has_hello_head():
                return False
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            data, self._hello = self._hello, b""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        finally:
            # After a failure this sends the TLS alert to the client.
            self.flush()
        return self.established

    def _has_hello_head(self) -> bool:
        """Check the first 9 bytes of the ClientHello; False if more are needed. Raises NotTls, ssl.SSLError."""
        if self._hello[0] != _HANDSHAKE_RECORD:
            raise NotTls("the client does not speak TLS")
        if len(self._hello) < _HELLO_HEAD_BYTES:
            return False
        record_bytes, message_bytes = (int.from_bytes(self._hello[at : at + size]) for at, size in ((3, 2), (6, 3)))
        if record_bytes < _MESSAGE_HEAD_BYTES or message_bytes > HELLO_BYTES:
            raise ssl.SSLError("the ClientHello is too long, or its fragments are too small")
        return True

    def certificate(self, now_s: float) -> dict[str, Any]:
        """The client's verified certificate after the handshake, or {}; `now_s` is Unix time. Raises ssl.SSLError."""
        assert self._tls is not None, "only after the handshake"
        certificate: dict[str, Any] = self._tls.getpeercert() or {}
        # When a TLS session is resumed, OpenSSL does not check again whether the client's certificate has expired.
        if self._tls.session_reused and certificate and ssl.cert_time_to_seconds(certificate["notAfter"]) <= now_s:
            raise ssl.SSLError("the certificate of a resumed session has expired")
        return certificate

    def recv(self, max_bytes: int) -> bytes:
        """Receive decrypted bytes; empty at the end. Raises BlockingIOError, OSError."""
        if self._is_closing:
            # Skip decryption: after close_notify the caller discards what it receives.
            return self._sock.recv(max_bytes)
        piece = self._decrypt()
        if piece or self.at_end:
            return piece
        data = self._sock.recv(min(max(max_bytes, RECORD_BYTES), MAX_RECEIVED_BYTES))
        if not data:
            return b""
        self._incoming.write(data)
        piece = self._decrypt()
        if not piece and not self.at_end:
            raise BlockingIOError
        return piece

    def _decrypt(self) -> bytes:
        """Decrypt the complete records received so far."""
        assert self._tls is not None, "only after the handshake"
        pieces = []
        try:
            while self._incoming.pending:
                piece = self._tls.read(RECORD_BYTES)
                if not piece:
                    self.at_end = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        if self._outgoing.pending:
            # Send replies of the TLS protocol, for example to key updates.
            with suppress(BlockingIOError):
                self.flush()
            if self.unsent_bytes > MAX_UNSENT_BYTES:
                raise ssl.SSLError("the client does not read the replies that it requests")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send data; return the number of bytes accepted. Raises BlockingIOError, OSError."""
        return self.sendmsg((data,))

    def sendmsg(
        self, pieces: Sequence[bytes | bytearray | memoryview], _ancillary: object = (), _flags: int = 0
    ) -> int:
        """Like `send`, for several pieces; encrypted bytes that the kernel does not accept wait for `flush`."""
        assert self._tls is not None, "only after the handshake"
        self.flush()
        if sum(map(len, pieces)) <= RECORD_BYTES:
            pieces = (b"".join(pieces),)
        taken_bytes = 0
        with suppress(BlockingIOError):
            for piece in pieces:
                view, at = memoryview(piece), 0
                while at < len(view):
                    if self._outgoing.pending >= MAX_UNSENT_BYTES:
                        self.flush()
                    written = self._tls.write(view[at : at + RECORD_BYTES])
                    at += written
                    taken_bytes += written
            self.flush()
        return taken_bytes

    # gunicorn sends short responses with `sendall`.
    sendall = send

    def send_plain(self, data: bytes) -> None:
        """Send unencrypted bytes to a client that does not speak TLS. Raises OSError."""
        self._is_closing = True
        self._sock.send(data)

    def flush(self) -> None:
        """Send waiting encrypted bytes. Raises OSError, and BlockingIOError if the kernel does not accept all."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def shutdown(self, how: int) -> None:
        """Send close_notify, then shut down TCP. Raises OSError, and BlockingIOError if it must be called again."""
        self._begin_close_notify()
        self.flush()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close immediately; send close_notify if the kernel accepts it."""
        with suppress(OSError):
            self._begin_close_notify()
            self.flush()
        self._sock.close()

    def _begin_close_notify(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._tls is not None and self.established:
            # Ignore a close_notify that has not arrived yet (SSLWantReadError), and a broken connection.
            with suppress(ssl.SSLError):
                self._tls.unwrap()

    def setblocking(self, _flag: object) -> None:
        """Do nothing: the socket never blocks. gunicorn calls this before a request."""

    settimeout = setblocking

    def gettimeout(self) -> float:
        """Return 0, the timeout of a non-blocking `socket.socket`."""
        return 0.0


class Handshakes:
    """Runs the TLS handshakes of one event loop on its thread: limits their time, counts them, and logs failures."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        tls_names: Iterable[str],
        metrics: WorkerMetrics,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._context, self._names = context, tls_names
        self._metrics, self._log = metrics, log
        self._clock, self._wall_clock = clock, wall_clock
        self._left_s = TURN_S
        self._quiet_until_s = -_LOG_INTERVAL_S

    def begin(self, sock: socket.socket) -> TlsSocket:
        """Make a TLS socket for a new connection."""
        return TlsSocket(sock, self._context())

    def begin_turn(self) -> None:
        """Give handshakes a new time budget of TURN_S; the event loop calls this at the start of each iteration."""
        self._left_s = TURN_S

    def advance(self, sock: TlsSocket, client: object) -> bool:
        """Continue a handshake unless TURN_S is used up; return whether it is complete. Raises as `handshake`."""
        if self._left_s <= 0:
            return False
        began_s = self._clock()
        try:
            if not sock.handshake():
                return False
            sock.client_name = key_of(names_of(sock.certificate(self._wall_clock())), self._names)
        except OSError as error:
            self._note_failure(sock, error, client)
            raise
        finally:
            self._left_s -= self._clock() - began_s
        self._metrics.count(TLS_HANDSHAKES, "ok")
        return True

    def note_end(self, sock: TlsSocket) -> None:
        """Count a connection that ended before its handshake was complete."""
        if not sock.established and not sock.refused:
            self._metrics.count(TLS_HANDSHAKES, "unfinished")

    def _note_failure(self, sock: TlsSocket, error: OSError, client: object) -> None:
        if not isinstance(error, NotTls | ssl.SSLError):
            # The client has disconnected; `note_end` counts it.
            return
        sock.refused = True
        self._metrics.count(TLS_HANDSHAKES, "not_tls" if isinstance(error, NotTls) else "refused")
        now_s = self._clock()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or str(error)
            self._log.info("A TLS handshake failed: %s, client %s", str(reason).lower().replace("_", " "), client)
