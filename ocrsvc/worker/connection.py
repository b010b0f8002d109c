"""One connection of a client, the request on it that is being received, and the answer that is being sent."""

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

UNSENT_BYTES: Final = 1 << 17
"""What the kernel takes of an answer before the network does: an ordinary one whole, and of a large one no megabytes,
which clients that do not read would hold outside of every account."""

SMALL_BODY_BYTES: Final = 1 << 16
"""Up to here a body that is refused is received all the same: a new connection would cost both sides more."""

_PIECES_AT_ONCE: Final = 64
_FILE_PIECE_BYTES: Final = 1 << 18
_RESET: Final = struct.pack("ii", 1, 0)
_TIMEOUT_HEADER: Final = "X-REQUEST-TIMEOUT"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What requests may take before a thread sees them; the memory is for all of them together."""

    memory: Budget
    most_body_bytes: int = sys.maxsize
    deadline_s: float = 3600.0
    # Those that the reserved threads answer.
    quick_paths: frozenset[str] = frozenset()
    # Says why a body is not even received; None where API keys are not wanted.
    check_head: HeadCheck | None = None
    # The field in which the nearest proxy names the caller; empty for none.
    caller_header: str = ""


@dataclass(slots=True)
class Head:
    """A head as gunicorn's parser has read it: its request, or what is wrong with it."""

    request: Any = None
    error: BaseException | None = None
    # What came behind the head.
    rest: bytes = b""
    # Length of the body that it announces; None for chunks.
    body_bytes: int | None = 0
    # Whether the client sends that only after an answer.
    expects_continue: bool = False


class Connection:
    """What the event loop knows of a connection."""

    def __init__(self, sock: Any, client: Any, server: Any, parse: Callable[[bytes], Head]) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self.sock, self.client, self.server, self._parse = sock, client, server, parse
        self.tls = sock if isinstance(sock, TlsSocket) else None
        # The last head that was whole; what has come of the next one; what came behind the request that is answered.
        self.head, self.received, self.ahead = Head(), bytearray(), b""
        # The request's body; None where its head is wrong.
        self.body: ReceivedBody | None = None
        # Takes turns with others for a thread. A quick request needs neither the engine nor time.
        self.caller, self.is_quick = "", True
        # The answer; what has left of it since its thread left it to the loop, and how quickly.
        self.sender, self.sent_bytes, self.pace = Sender(sock), 0, Pace(0.0, 0.0)
        # Whether the next request may come on it, by the request's thread.
        self.is_kept = False
        # When its handshake, its head or its rest is over, monotonic; while it closes: until when, and how much of what
        # is still sent is thrown away.
        self.limit_s = self.close_s = 0.0
        self.close_bytes = 0

    @property
    def unsent(self) -> deque[memoryview]:
        """What the kernel has not taken of the answer; the rest of a file follows it."""
        return self.sender.unsent

    def receive(self, most_bytes: int) -> bytes | None:
        """What the client sent next; empty when it sends no more, None when nothing is there yet."""
        try:
            return bytes(self.sock.recv(most_bytes))
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def parse_head(self, limits: RequestLimits) -> None:
        """The head is whole: make the body that it announces, with what has come of it."""
        self.head = head = self._parse(bytes(self.received))
        self.received, self.is_quick, request = bytearray(), True, head.request
        if request is None:
            return
        self.caller = caller_of(request, self.client, limits.caller_header)
        self.is_quick = head.body_bytes == 0 and is_quick(request.method, request.path, limits.quick_paths)
        end_s = time.monotonic() + _seconds(request, limits.deadline_s)
        share = Share(limits.memory)
        self.body = ReceivedBody(self.sock, request, head.body_bytes, limits.most_body_bytes, share, end_s)
        request.body = self.body
        if self.tls is not None:
            self.body.client_name = self.tls.client_name
        self.ahead = head.rest if head.body_bytes == 0 else self.body.feed(head.rest)
        if limits.check_head is not None and self._is_worth_a_check(self.body):
            refusal = limits.check_head(request, self.body.client_name)
            if refusal is not None:
                self.body.fail(refusal)
        if head.expects_continue and not self.body.settled:
            with suppress(OSError):
                self.sock.send(_CONTINUE)

    def _is_worth_a_check(self, body: ReceivedBody) -> bool:
        """Whether to look at a key before the rest of the body comes; for a small one the connection would be lost."""
        left_bytes = body.wanted_bytes
        is_small = left_bytes is not None and left_bytes <= SMALL_BODY_BYTES
        # A client that asks first sends nothing before the answer.
        return not body.settled and (not is_small or self.head.expects_continue)

    def send_more(self, most_bytes: int) -> None:
        """Send what the kernel takes of the answer, about `most_bytes` at most. Raises OSError."""
        end_bytes = self.sent_bytes + most_bytes
        with suppress(BlockingIOError):
            while self.sender.is_left and self.sent_bytes < end_bytes:
                self.sent_bytes += self.sender.send(most_bytes)

    def note_taken(self, now_s: float) -> None:
        """What has arrived at the client since the last time, whatever waits in the kernel."""
        with suppress(OSError):
            (waiting,) = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
            taken = self.sent_bytes - waiting - self.pace.moved_bytes
            if taken > 0:
                self.pace.move(taken, now_s)

    def cut_off(self) -> None:
        """Have the kernel forget at once what the client has not taken."""
        with suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def forget_request(self) -> None:
        """Its answer has left, or never will: what it held is free again."""
        self.sender.forget()
        if self.body is not None:
            self.body.discard()
            self.body.share.release()
            self.body = None

    def close(self) -> None:
        """Close it at once."""
        self.forget_request()
        with suppress(OSError):
            self.sock.close()


class FilePart:
    """The rest of a file that is the body of an answer, read in pieces as the client takes them."""

    def __init__(self, descriptor: int, at: int, count: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._at, self.left_bytes = at, count

    def read(self) -> memoryview:
        """The next piece. Raises OSError, also where the file has become shorter."""
        piece = os.pread(self._descriptor, min(self.left_bytes, _FILE_PIECE_BYTES), self._at)
        if not piece:
            raise OSError("The file of an answer is shorter than it was.")
        self._at += len(piece)
        self.left_bytes -= len(piece)
        return memoryview(piece)

    def close(self) -> None:
        """Close the descriptor, which is its own. Called once."""
        os.close(self._descriptor)


class Sender:
    """Sends one answer, and never waits for a client: gunicorn's response takes it for its socket.

    The head goes with the first piece of the body: a worker that is killed in between would leave half an answer at a
    proxy, which could not ask another worker. The event loop sends `unsent` and the rest of `file`.
    """

    def __init__(self, sock: Any) -> None:
        self._sock, self._tls = sock, sock if isinstance(sock, TlsSocket) else None
        self._head: bytes | None = None
        self.unsent: deque[memoryview] = deque()
        self.file: FilePart | None = None

    @property
    def is_left(self) -> bool:
        """Whether the kernel has not taken all of it."""
        return self._left_bytes > 0 or (self.file is not None and self.file.left_bytes > 0)

    @property
    def _left_bytes(self) -> int:
        return sum(map(len, self.unsent)) + (0 if self._tls is None else self._tls.unsent_bytes)

    def sendall(self, data: bytes | memoryview) -> None:
        """Keep the head until something follows; send, or leave for later, the rest. Raises OSError."""
        if self._head is None:
            self._head = bytes(data)
            return
        head, self._head = self._head, b""
        self.unsent.extend(memoryview(piece) for piece in (head, data) if piece)
        with suppress(BlockingIOError):
            self.send()

    def sendfile(self, file: BinaryIO, offset: int, count: int) -> None:
        """Send a file's first piece, and leave the rest to the event loop. Raises OSError."""
        self.file = FilePart(file.fileno(), offset, count)
        self.sendall(self.file.read())

    def flush(self) -> None:
        """Send a head that nothing follows. Raises OSError."""
        if self._head:
            self.sendall(b"")

    def push(self, limit_s: float) -> int:
        """Send what is left, and wait for the client for `limit_s` at most; the bytes still left. Raises ClientGone.

        For an answer in pieces, between which much time passes: what stays here leaves with the next piece.
        """
        end_s = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        try:
            while self._left_bytes and poll.poll(max(0.0, 1000 * (end_s - time.monotonic()))):
                with suppress(BlockingIOError):
                    self.send()
        except OSError as error:
            raise ClientGone("The client closed its connection before the end of its answer.") from error
        return self._left_bytes

    def send(self, most_bytes: int = sys.maxsize) -> int:
        """Send what the kernel takes in one call, `most_bytes` of a long piece at most; how many bytes it took.

        Raises BlockingIOError when it takes nothing now, OSError.
        """
        if not self.unsent and self.file is not None and self.file.left_bytes:
            self.unsent.append(self.file.read())
        pieces = list(islice(self.unsent, _PIECES_AT_ONCE))
        if not pieces:
            if self._tls is not None:
                self._tls.flush()
            return 0
        if len(pieces[0]) > most_bytes:
            pieces = [pieces[0][:most_bytes]]
        sent = left_bytes = int(self._sock.sendmsg(pieces, [], socket.MSG_DONTWAIT))
        while left_bytes:
            piece = self.unsent.popleft()
            if left_bytes < len(piece):
                self.unsent.appendleft(piece[left_bytes:])
            left_bytes -= min(left_bytes, len(piece))
        return sent

    def forget(self) -> None:
        """Its answer has left, or never will."""
        self.unsent.clear()
        if self.file is not None:
            self.file.close()
            self.file = None


def caller_of(request: Any, client: Any, header: str) -> str:
    """The caller, as `http.request.Request.caller` has it without API keys; empty over a Unix socket."""
    sent = [value for name, value in request.headers if name == header.upper()] if header else []
    named: str = sent[-1].rpartition(",")[2].strip() if sent else ""
    return named or (network_of(client[0]) if isinstance(client, tuple) else "")


def _seconds(request: Any, deadline_s: float) -> float:
    """Seconds that the body may take: the client's, if that is less. The application reports what is no number."""
    for name, value in request.headers:
        if name == _TIMEOUT_HEADER:
            with suppress(ValueError):
                return min(deadline_s, max(0.0, float(value[:40])))
    return deadline_s
