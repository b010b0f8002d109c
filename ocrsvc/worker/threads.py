"""How does a worker's event loop treat its connections? gunicorn's gthread without the three flaws that were measured.

Closing never waits on the loop: the lingering close (RFC 9112 section 9.6) is a state of the connection in the poller.
A connection waits in the poller too, not in a pool thread, until the head of its request (request line and headers) is
there, and is cut at a limit. A worker accepts only while it has a free pool thread, and leaves connections to a less
busy sibling: what is not accepted stays in the kernel's queue, where any worker may take it.

Everything here runs on the loop's thread, except `balance` and what gunicorn itself calls in the pool.
"""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gunicorn.http2 import negotiation
from gunicorn.workers import gthread

if TYPE_CHECKING:
    from ocrsvc.worker.scoreboard import Board, Slot

HEAD_S: Final = 10.0
"""How long the head of a request may take to arrive: the first one counts from the connection on, so that silent
connections are closed too, later ones from their first byte on."""

HASTE_S: Final = 1.0
"""The same while a worker holds as many connections as it may: those that wait for a head make room."""

HEAD_BYTES: Final = 1 << 16
"""The longest head; a longer one is answered 431. Below it gunicorn's own limits hold."""

STOP_LINGER_S: Final = 5.0
"""How long a stopping worker keeps idle connections open, for a request that may be under way, at most.

Well below the 10 s after which container runtimes kill what they have asked to stop."""

# Accepting fails for as long as descriptors are missing: tried again so often, told so often.
_PAUSE_S: Final = 0.1
_COMPLAIN_S: Final = 10.0
_CLOSE_S: Final = 2.0
# A client that still sends is listened to for a while, so that the reset does not cost it our answer.
_CLOSE_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 1 << 16
# What follows the head should stay in the kernel: what is received here is copied several times by the parser.
_HEAD_PIECE_BYTES: Final = 8192
# The end of a head, or a line that ends as no line of a head may: the parser refuses that at once.
_HEAD_END: Final = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_HEAD_END_BYTES: Final = 4
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# How long an idle sibling has the first go at new connections; then they are taken all the same.
_COURTESY_S: Final = 0.02


def is_busier(own: int, others: Iterable[int], engine_threads: int) -> bool:
    """Whether a worker has requests that wait for its engine while a sibling has clearly fewer in flight.

    Args:
        own: Its requests in flight.
        others: Those of each sibling that accepts.
        engine_threads: Requests that it can work on at once.
    """
    return own > engine_threads and own - min(others, default=own) >= max(2, own // 8)


@dataclass(slots=True)
class _Closing:
    """A connection of which our side is closed already."""

    deadline_s: float
    left_bytes: int = _CLOSE_BYTES


class FairThreadWorker(gthread.ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gthread whose loop never waits, and which shares with its siblings through the scoreboard.

    Attributes:
        board, place: The scoreboard and this worker's slot in it; None outside of our arbiter's hooks.
        engine_threads: Requests that the engine works on at once.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.board: Board | None = None
        self.place = 0
        self.engine_threads: int = self.cfg.threads
        self._in_flight = 0
        self._beside = 0
        self._counting = threading.Lock()
        self._closing: dict[gthread.TConn, _Closing] = {}
        self._heads: dict[gthread.TConn, bytearray] = {}
        self._courtesy_end_s = 0.0
        self._silent_until_s = 0.0

    @property
    def slot(self) -> Slot:
        """This worker's slot in the scoreboard."""
        assert self.board is not None, "the hooks give each worker its slot before the fork"
        return self.board.slot(self.place)

    def init_process(self) -> None:
        """Worker, after the fork: serve until it is told to stop."""
        gthread.STOP_KEEPALIVE_LINGER = min(float(self.cfg.keepalive), STOP_LINGER_S)
        super().init_process()

    def accept(self, listener: Any) -> None:
        """Take one connection, and wait for the head of its first request in the poller."""
        if self._starts_courtesy():
            return
        try:
            sock, client = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_accepting(error)
            return
        conn = gthread.TConn(self.cfg, sock, client, listener.getsockname())
        self.nr_conns += 1
        if self._can_read_heads(conn):
            self._begin_head(conn)
        else:
            self._wait_for_head(conn, self.on_pending_socket_readable)

    def _pause_accepting(self, error: OSError) -> None:
        """No descriptors, no memory: what waits stays in the kernel's queue for a moment, and the rest is served on."""
        now_s = time.monotonic()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + _COMPLAIN_S
            self.log.error("No connection can be accepted: %s. Raise the limit of open files (ulimit -n).", error)
        self._courtesy_end_s = now_s + _PAUSE_S
        self.set_accept_enabled(enabled=False)

    def _make_room(self, now_s: float) -> None:
        """With as many connections as there may be, those that are kept and idle make room for others."""
        while self.keepalived_conns and self.nr_conns >= self.worker_connections:
            conn = self.keepalived_conns[0]
            if conn.timeout - self.cfg.keepalive + HASTE_S > now_s:
                return
            self.keepalived_conns.popleft()
            self.poller.unregister(conn.sock)
            self._drop(conn)

    def on_client_socket_readable(self, conn: Any, client: socket.socket) -> None:
        """A kept connection begins its next request, or ends."""
        if not self._can_read_heads(conn):
            super().on_client_socket_readable(conn, client)
            return
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._begin_head(conn)

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001  gunicorn's signature
        """Accept connections or leave them in the kernel's queue; the main loop asks for them again on each turn."""
        able = self._in_flight < self.cfg.threads and time.monotonic() >= self._courtesy_end_s
        super().set_accept_enabled(enabled and able)

    def enqueue_req(self, conn: Any) -> None:
        """Give a readable connection to a pool thread."""
        self._count(1)
        super().enqueue_req(conn)

    def finish_request(self, conn: Any, done: Future[object]) -> None:
        """Keep the connection, or begin to close it."""
        self._count(-1)
        if done.cancelled() or done.exception() is not None or not done.result():
            self._begin_close(conn)
        elif self._can_read_heads(conn) and (ahead := conn.parser.unreader.take_buffered()):
            # A client that does not wait for its answers: the rest of its next request may be a while.
            conn.sock.setblocking(False)
            self._begin_head(conn, ahead)
        else:
            super().finish_request(conn, done)

    def murder_pending(self) -> None:
        """End heads and silent connections whose time is over, and those that were told goodbye long enough."""
        now_s = time.monotonic()
        over_s = now_s + (HEAD_S - HASTE_S if self.nr_conns >= self.worker_connections else 0)
        while self.pending_conns and self.pending_conns[0].timeout <= over_s:
            conn = self.pending_conns.popleft()
            self.poller.unregister(conn.sock)
            if self._heads.get(conn):
                self._refuse(conn, _TOO_LATE)
            else:
                self._drop(conn)
        for conn in [conn for conn, closing in self._closing.items() if closing.deadline_s <= now_s]:
            self._end_close(conn)
        self._make_room(now_s)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """As gunicorn's, but not longer than until something here is due."""
        now_s = time.monotonic()
        due = [closing.deadline_s for closing in list(self._closing.values())[:1]]
        if now_s < self._courtesy_end_s:
            due.append(self._courtesy_end_s)
        super().wait_for_and_dispatch_events(timeout=max(0.0, min([timeout, *(moment - now_s for moment in due)])))

    def balance(self, request: Any) -> None:
        """Pool thread, before a request: ask its client to connect anew when others wait, or a sibling has less to do.

        Kept connections stay with their worker for ever otherwise, however busy it is and however idle the next.
        """
        if self._in_flight + self._beside <= self.engine_threads:
            return
        if self._is_busier() or (self._in_flight >= self.cfg.threads and self._is_anyone_waiting()):
            request.force_close()

    def _cap_keepalive(self, deadline: float) -> None:
        """Stopping: neither kept nor silent connections are waited for longer than this."""
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)

    def count_beside(self, change: int) -> None:
        """Any thread: requests that take the engine, but none of the threads here, begin or are over."""
        with self._counting:
            self._beside += change
            self._tell_load()

    def _tell_load(self) -> None:
        if self.board is not None:
            self.slot.in_flight = self._in_flight + self._beside

    def _count(self, change: int) -> None:
        with self._counting:
            self._in_flight += change
            self._tell_load()
        if self._in_flight >= self.cfg.threads:
            self.set_accept_enabled(enabled=False)

    def _is_busier(self) -> bool:
        return self.board is not None and is_busier(
            self._in_flight + self._beside, self.board.loads(besides=self.place), self.engine_threads
        )

    def _is_anyone_waiting(self) -> bool:
        """Whether connections wait to be accepted, as far as the kernel tells (Linux, TCP)."""
        return any(listener.get_backlog() > 0 for listener in self.sockets)

    def _starts_courtesy(self) -> bool:
        """Whether to leave what is there to a less busy sibling for a moment; never twice in a row: nobody starves."""
        now_s = time.monotonic()
        if now_s < self._courtesy_end_s + _COURTESY_S or not self._is_busier():
            return False
        self._courtesy_end_s = now_s + _COURTESY_S
        self.set_accept_enabled(enabled=False)
        return True

    def _can_read_heads(self, conn: Any) -> bool:
        """Whether requests come as plain HTTP/1; TLS and cleartext HTTP/2 have to be read by gunicorn itself."""
        return (
            not self.cfg.is_ssl
            and self.cfg.protocol == "http"
            and not negotiation.prior_knowledge_allowed(self.cfg, conn.client)
        )

    def _begin_head(self, conn: Any, ahead: bytes = b"") -> None:
        """Receive the head of a request, of which some may have come; most have come whole."""
        self._heads[conn] = bytearray(ahead)
        act = self._start if _HEAD_END.search(ahead) else self._receive_head(conn)
        if act is None:
            self._wait_for_head(conn, self._on_head)
        else:
            act(conn)

    def _wait_for_head(self, conn: Any, on_readable: Callable[[Any, socket.socket], None]) -> None:
        conn.timeout = time.monotonic() + (HEAD_S if self.alive else gthread.STOP_KEEPALIVE_LINGER)
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, partial(on_readable, conn))

    def _on_head(self, conn: Any, sock: socket.socket) -> None:
        """More of a head is there."""
        act = self._receive_head(conn)
        if act is not None:
            self.poller.unregister(sock)
            self.pending_conns.remove(conn)
            act(conn)

    def _receive_head(self, conn: Any) -> Callable[[Any], None] | None:
        """Receive what is there, once; what is to be done with the connection now, None is to wait on."""
        head = self._heads[conn]
        try:
            piece = conn.sock.recv(_HEAD_PIECE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        if not piece:
            return self._drop
        searched = max(0, len(head) - _HEAD_END_BYTES + 1)
        head += piece
        if _HEAD_END.search(head, searched):
            return self._start
        return partial(self._refuse, answer=_TOO_LONG) if len(head) > HEAD_BYTES else None

    def _start(self, conn: Any) -> None:
        """Give a request whose head is there to a pool thread; the parser finds the head as if just received."""
        conn.init()
        conn.parser.unreader.unread(bytes(self._heads.pop(conn)))
        self.enqueue_req(conn)

    def _refuse(self, conn: Any, answer: bytes) -> None:
        """Answer a head that will not be parsed, and close."""
        self.log.debug("Refused a head of %s bytes from %s", len(self._heads.pop(conn)), conn.client)
        with suppress(OSError):
            conn.sock.send(answer)
        self._begin_close(conn)

    def _begin_close(self, conn: Any) -> None:
        """Say that nothing more comes, and listen until the client closes, so that it can read its answer in peace."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
            self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._on_closing, conn))
        except (OSError, ValueError):
            self._drop(conn)
        else:
            self._closing[conn] = _Closing(time.monotonic() + _CLOSE_S)

    def _on_closing(self, conn: Any, sock: socket.socket) -> None:
        """Throw away what a client sends after our last answer."""
        closing = self._closing[conn]
        try:
            closing.left_bytes -= len(data := sock.recv(_RECEIVE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or closing.left_bytes <= 0:
            self._end_close(conn)

    def _end_close(self, conn: Any) -> None:
        del self._closing[conn]
        self.poller.unregister(conn.sock)
        self._drop(conn)

    def _drop(self, conn: Any) -> None:
        self._heads.pop(conn, None)
        self.nr_conns -= 1
        conn.close()
