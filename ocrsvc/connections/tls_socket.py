"""A socket that speaks TLS and never waits: used in place of a plain one, by one thread at a time.

OpenSSL works on memory, not on the socket: one call reads many records, and no bytes that were read stay behind where
no poller would report them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

CONNECTION_BYTES: Final = 1 << 16
"""Memory of TLS for a connection: 49 kB were measured in the middle of a handshake, 18 kB after it."""

RECORD_BYTES: Final = 1 << 14
"""The largest record of TLS."""

MOST_RECEIVED_BYTES: Final = 1 << 16
"""Received and decrypted at once: in records of a single byte these are 3000, and some milliseconds."""

MOST_UNSENT_BYTES: Final = 1 << 16
"""Encrypted bytes that wait for the kernel, and a record more."""

HELLO_BYTES: Final = 1 << 14
"""The longest first message of a client; OpenSSL would allocate up to 128 KiB as announced."""

HANDSHAKE_BYTES: Final = 1 << 17
"""Most bytes of a client until the handshake is over, its certificates included."""

_HANDSHAKE_RECORD: Final = 22
# A record's header (5 bytes), then the kind of the message and its length.
_MESSAGE_HEAD_BYTES: Final = 4
_HELLO_HEAD_BYTES: Final = 5 + _MESSAGE_HEAD_BYTES


class NotTls(OSError):
    """The client speaks something else: plain HTTP, most likely."""


class TlsSocket:
    """The server's side of TLS on an accepted socket, which is closed with this one.

    The handshake is over (`established`) or has failed (`refused`); the client sends no more (`at_end`); its
    certificate stands for the key `client_name`.
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

    @property
    def family(self) -> int:
        """As a socket's."""
        return self._sock.family

    @property
    def unsent_bytes(self) -> int:
        """Encrypted bytes that the kernel has not taken; `flush` sends them."""
        return len(self._unsent) + self._outgoing.pending

    def handshake(self) -> bool:
        """Continue; whether the handshake is over. Raises NotTls, ssl.SSLError if it fails, OSError if it breaks."""
        try:
            data = self._sock.recv(RECORD_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError("the client has gone")
        self._received_bytes += len(data)
        if self._received_bytes > HANDSHAKE_BYTES:
            raise ssl.SSLError("the handshake is too long")
        if self._tls is None:
            self._hello += data
            if not self._is_hello_begun():
                return False
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            data, self._hello = self._hello, b""
        self._incoming.write(data)
        return self._go_on(self._tls)

    def _is_hello_begun(self) -> bool:
        """Look at the first bytes before OpenSSL does; whether there are enough of them. Raises NotTls, SSLError."""
        if self._hello[0] != _HANDSHAKE_RECORD:
            raise NotTls("the client does not speak TLS")
        if len(self._hello) < _HELLO_HEAD_BYTES:
            return False
        record_bytes, message_bytes = (int.from_bytes(self._hello[at : at + size]) for at, size in ((3, 2), (6, 3)))
        if record_bytes < _MESSAGE_HEAD_BYTES or message_bytes > HELLO_BYTES:
            raise ssl.SSLError("the client's first message is too long, or in pieces that are too small")
        return True

    def _go_on(self, tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        finally:
            # When it fails, the reason is for the client.
            self.flush()
        return self.established

    def peer_certificate(self) -> dict[str, Any] | None:
        """The client's verified certificate, as `ssl` gives it; None without one."""
        return self._tls.getpeercert() if self._tls is not None and self.established else None

    @property
    def is_resumed(self) -> bool:
        """Whether the client goes on with a session, of which OpenSSL does not check the certificate again."""
        return self._tls is not None and self._tls.session_reused is True

    def recv(self, max_bytes: int) -> bytes:
        """The next bytes of the client; none at its end. Raises BlockingIOError, OSError if it is broken."""
        if self._is_closing:
            # Thrown away, and so not decrypted.
            return self._sock.recv(max_bytes)
        piece = self._decrypt()
        if piece or self.at_end:
            return piece
        data = self._sock.recv(min(max(max_bytes, RECORD_BYTES), MOST_RECEIVED_BYTES))
        if not data:
            return b""
        self._incoming.write(data)
        piece = self._decrypt()
        if not piece and not self.at_end:
            raise BlockingIOError
        return piece

    def _decrypt(self) -> bytes:
        """The content of complete records."""
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
            self._answer_protocol()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _answer_protocol(self) -> None:
        """Send messages of TLS itself, such as for new keys. Raises OSError."""
        with suppress(BlockingIOError):
            self.flush()
        if self.unsent_bytes > MOST_UNSENT_BYTES:
            raise ssl.SSLError("the client does not take what it asks for")

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt and send; the number of bytes that were taken. Raises BlockingIOError, OSError."""
        return self.sendmsg((data,))

    def sendmsg(
        self, pieces: Sequence[bytes | bytearray | memoryview], _ancillary: object = (), _flags: int = 0
    ) -> int:
        """The same for several pieces; bytes that the kernel has not taken wait for `flush`."""
        assert self._tls is not None, "only after the handshake"
        self.flush()
        if sum(map(len, pieces)) <= RECORD_BYTES:
            pieces = (b"".join(pieces),)
        taken_bytes = 0
        with suppress(BlockingIOError):
            for piece in pieces:
                view, at = memoryview(piece), 0
                while at < len(view):
                    if self._outgoing.pending >= MOST_UNSENT_BYTES:
                        self.flush()
                    written = self._tls.write(view[at : at + RECORD_BYTES])
                    at += written
                    taken_bytes += written
            self.flush()
        return taken_bytes

    def sendall(self, data: bytes) -> None:
        """Send a short answer whole, or not. Raises BlockingIOError, OSError."""
        self.send(data)

    def send_plain(self, data: bytes) -> None:
        """Answer a client that does not speak TLS. Raises OSError."""
        self._is_closing = True
        self._sock.send(data)

    def flush(self) -> None:
        """Send the encrypted bytes. Raises BlockingIOError when the kernel does not take all of them, OSError."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def shutdown(self, how: int) -> None:
        """End sending, in TLS (close_notify) and TCP. Raises BlockingIOError if it is to be called again, OSError."""
        self._say_goodbye()
        self.flush()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close at once; close_notify is sent if the kernel takes it."""
        with suppress(OSError):
            self._say_goodbye()
            self.flush()
        self._sock.close()

    def _say_goodbye(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._tls is not None and self.established:
            # It would go on to wait for the client's goodbye, or the connection is broken.
            with suppress(ssl.SSLError):
                self._tls.unwrap()

    def fileno(self) -> int:
        """As a socket's."""
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """As a socket's."""
        self._sock.setsockopt(level, option, value)

    def setblocking(self, _flag: bool) -> None:  # noqa: FBT001  a socket's signature
        """It never blocks; gunicorn sets this before a request."""

    def gettimeout(self) -> float:
        """As of a socket that never blocks."""
        return 0.0

    def settimeout(self, _value_s: float | None) -> None:
        """As `setblocking`."""
