"""One client connection: the request being received on it, and the response being sent."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from ocrsvc.connections.tls_socket import TlsSocket
from ocrsvc.errors import ClientGone
from ocrsvc.http.received_body import Pace, ReceivedBody
from ocrsvc.serving.memory_budget import Budget, Share, network_of
from ocrsvc.worker.request_threads import is_quick

if TYPE_CHECKING:
    from ocrsvc.http.admission import HeadCheck

# Unsent bytes that the kernel may buffer per connection. Enough for an ordinary response, but small: clients that do
# not read can fill this buffer, and no budget counts its memory.
UNSENT_BYTES: Final = 1 << 17
# Bodies up to this size are received before a refusal, because closing and reopening the connection costs more.
SMALL_BODY_BYTES: Final = 1 << 16
_PIECES_AT_ONCE: Final = 64
_FILE_PIECE_BYTES: Final = 1 << 18
_TIMEOUT_HEADER: Final = "X-REQUEST-TIMEOUT"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits that apply while a request is received; all requests share the budget `memory`.

    The reserved threads serve `quick_paths`; a proxy puts the caller's name into the header `caller_header`.
    """

    memory: Budget
    max_body_bytes: int = sys.maxsize
    deadline_s: float = 3600.0
    quick_paths: frozenset[str] = frozenset()
    check_head: HeadCheck | None = None
    caller_header: str = ""


@dataclass(slots=True)
class Head:
    """A parsed request head: gunicorn's request or error, the bytes after it, and the body length (None if chunked)."""

    request: Any = None
    error: BaseException | None = None
    rest: bytes = b""
    body_bytes: int | None = 0
    expects_continue: bool = False


class Connection:
    """The state of one connection, for the event loop."""

    def __init__(self, sock: Any, client: Any, server: Any, parse: Callable[[bytes], Head]) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.sock, self.client, self.server, self._parse = sock, client, server, parse
        self.tls = sock if isinstance(sock, TlsSocket) else None
        # The last complete head; the received part of the next head; bytes received after the current request.
        self.head, self.received, self.ahead = Head(), bytearray(), b""
        # The request's body; None if the head is malformed.
        self.body: ReceivedBody | None = None
        # The caller, for fair sharing of request threads, and whether a reserved thread serves the request.
        self.caller, self.is_quick = "", True
        # Sends the response; bytes that the loop has sent since the request thread finished; rate of these bytes.
        self.sender, self.sent_bytes, self.pace = Sender(sock), 0, Pace(0.0, 0.0)
        # Whether the connection stays open for another request; the request's thread decides.
        self.is_kept = False
        # Monotonic time limits: `limit_s` for a handshake, a head or idle time; `close_s` for the lingering close,
        # which also ends when `close_bytes` bytes were discarded.
        self.limit_s = self.close_s = 0.0
        self.close_bytes = 0

    def receive(self, max_bytes: int) -> bytes | None:
        """Bytes from the client; empty when the client has closed its side, None when nothing has arrived."""
        try:
            return bytes(self.sock.recv(max_bytes))
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def parse_head(self, limits: RequestLimits) -> None:
        """Parse a complete head, and start its body with the bytes that followed the head."""
        self.head = head = self._parse(bytes(self.received))
        self.received, self.is_quick, request = bytearray(), True, head.request
        if request is None:
            return
        self.caller = caller_of(request, self.client, limits.caller_header)
        self.is_quick = head.body_bytes == 0 and is_quick(request.method, request.path, limits.quick_paths)
        end_s = time.monotonic() + _seconds(request, limits.deadline_s)
        share = Share(limits.memory)
        self.body = ReceivedBody(self.sock, request, head.body_bytes, limits.max_body_bytes, share, end_s)
        request.body = self.body
        if self.tls is not None:
            self.body.client_name = self.tls.client_name
        self.ahead = head.rest if head.body_bytes == 0 else self.body.feed(head.rest)
        # A refusal closes the connection, so a small body is received first, unless the client expects 100 Continue.
        is_worth_it = head.expects_continue or (self.body.wanted_bytes or sys.maxsize) > SMALL_BODY_BYTES
        if limits.check_head is not None and is_worth_it and not self.body.settled:
            refusal = limits.check_head(request, self.body.client_name)
            if refusal is not None:
                self.body.fail(refusal)
        if head.expects_continue and not self.body.settled:
            with suppress(OSError):
                self.sock.send(_CONTINUE)

    def note_taken(self, now_s: float) -> None:
        """Count for `pace` the bytes that the client has acknowledged since the last call (from TIOCOUTQ)."""
        with suppress(OSError):
            (buffered_bytes,) = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
            acknowledged_bytes = self.sent_bytes - buffered_bytes - self.pace.moved_bytes
            if acknowledged_bytes > 0:
                self.pace.move(acknowledged_bytes, now_s)

    def forget_request(self) -> None:
        """Free the memory of the request, and discard the rest of its response."""
        self.sender.forget()
        if self.body is not None:
            self.body.discard()
            self.body.share.release()
            self.body = None

    def close(self) -> None:
        """Close the socket now."""
        self.forget_request()
        with suppress(OSError):
            self.sock.close()


class Sender:
    """Sends one response without blocking; gunicorn's Response uses it as its socket.

    The head is sent with the first piece of the body: a proxy that had received only the head of a killed worker's
    response could not retry. The event loop sends the pieces in `unsent`, and then the rest of a file.
    """

    def __init__(self, sock: Any) -> None:
        self._sock, self._tls = sock, sock if isinstance(sock, TlsSocket) else None
        self._head: bytes | None = None
        self.unsent: deque[memoryview] = deque()
        # If the response's body is a file: its descriptor, and the begin and end of the part not read yet.
        self._file, self._at, self._end = -1, 0, 0

    @property
    def is_left(self) -> bool:
        """Whether the kernel has not accepted all of the response yet."""
        return self._left_bytes > 0 or self._at < self._end

    @property
    def _left_bytes(self) -> int:
        return sum(map(len, self.unsent)) + (0 if self._tls is None else self._tls.unsent_bytes)

    def sendall(self, data: bytes | memoryview) -> None:
        """Keep the head until data follows; send both, and queue what the kernel does not accept. Raises OSError."""
        if self._head is None:
            self._head = bytes(data)
            return
        head, self._head = self._head, b""
        self.unsent.extend(memoryview(piece) for piece in (head, data) if piece)
        with suppress(BlockingIOError):
            self.send()

    def sendfile(self, file: BinaryIO, offset: int, count: int) -> None:
        """Send a file's first piece; the event loop sends the others. Raises OSError."""
        self._file, self._at, self._end = os.dup(file.fileno()), offset, offset + count
        self.sendall(self._read_file())

    def _read_file(self) -> memoryview:
        piece = os.pread(self._file, min(self._end - self._at, _FILE_PIECE_BYTES), self._at)
        if not piece:
            raise OSError("The file of a response was truncated.")
        self._at += len(piece)
        return memoryview(piece)

    def flush(self) -> None:
        """Send the head of a response without a body. Raises OSError."""
        if self._head:
            self.sendall(b"")

    def push(self, limit_s: float) -> int:
        """Send pieces of a streamed response for at most `limit_s`; return the unsent bytes. Raises ClientGone."""
        end_s = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        try:
            while self._left_bytes and poll.poll(max(0.0, 1000 * (end_s - time.monotonic()))):
                with suppress(BlockingIOError):
                    self.send()
        except OSError as error:
            raise ClientGone("The client closed its connection before the end of the response.") from error
        return self._left_bytes

    def send(self, max_bytes: int = sys.maxsize) -> int:
        """Send what the kernel accepts; of a long first piece at most `max_bytes`. Raises BlockingIOError, OSError."""
        if not self.unsent and self._at < self._end:
            self.unsent.append(self._read_file())
        pieces = list(islice(self.unsent, _PIECES_AT_ONCE))
        if not pieces:
            if self._tls is not None:
                self._tls.flush()
            return 0
        if len(pieces[0]) > max_bytes:
            pieces = [pieces[0][:max_bytes]]
        sent = left_bytes = int(self._sock.sendmsg(pieces, [], socket.MSG_DONTWAIT))
        while left_bytes:
            piece = self.unsent.popleft()
            if left_bytes < len(piece):
                self.unsent.appendleft(piece[left_bytes:])
            left_bytes -= min(left_bytes, len(piece))
        return sent

    def forget(self) -> None:
        """Discard the response's unsent data, and close its file."""
        self.unsent.clear()
        if self._file >= 0:
            os.close(self._file)
        self._file = self._at = self._end = -1


def caller_of(request: Any, client: Any, header: str) -> str:
    """The caller's name from `header`, or its address, as in `http.request.Request.caller`; empty on a Unix socket."""
    values = [value for name, value in request.headers if name == header.upper()] if header else []
    named: str = values[-1].rpartition(",")[2].strip() if values else ""
    return named or (network_of(client[0]) if isinstance(client, tuple) else "")


def _seconds(request: Any, deadline_s: float) -> float:
    """Time limit of the body: `deadline_s`, or the client's limit if shorter. Invalid limits are ignored here."""
    for name, value in request.headers:
        if name == _TIMEOUT_HEADER:
            with suppress(ValueError):
                return min(deadline_s, max(0.0, float(value[:40])))
    return deadline_s
