"""How does a worker's event loop treat its connections? gunicorn's gthread without the three flaws that were measured.

Closing never waits on the loop: the lingering close (RFC 9112 section 9.6) is a state of the connection in the poller.
A connection that has not sent a byte waits in the poller too, not in a pool thread. And a worker accepts only while it
has a free pool thread, and leaves connections to a less busy sibling: what is not accepted stays in the kernel's queue,
where any worker may take it.

Everything here runs on the loop's thread, except `balance` and what gunicorn itself calls in the pool.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gunicorn.workers import gthread

if TYPE_CHECKING:
    from ocrsvc.worker.scoreboard import Board, Slot

FIRST_BYTE_S: Final = 10.0
"""How long an accepted connection may stay silent before it is closed."""

STOP_LINGER_S: Final = 5.0
"""How long a stopping worker keeps idle connections open, for a request that may be under way, at most.

Well below the 10 s after which container runtimes kill what they have asked to stop."""

ORPHAN_LINGER_S: Final = 1.0
ORPHAN_S: Final = 2.5
"""The same, and the end of everything, when the arbiter was killed: whoever starts it anew needs the memory."""

ORPHANED: Final = 71

_CLOSE_S: Final = 2.0
# A client that still sends is listened to for a while, so that the reset does not cost it our answer.
_CLOSE_BYTES: Final = 1 << 20
_RECEIVE_BYTES: Final = 1 << 16
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
        self._closing: dict[gthread.TConn, _Closing] = {}
        self._courtesy_end_s = 0.0

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
        """Take one connection, and wait for its first byte in the poller."""
        if self._starts_courtesy():
            return
        try:
            sock, client = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        conn = gthread.TConn(self.cfg, sock, client, listener.getsockname())
        conn.timeout = time.monotonic() + FIRST_BYTE_S
        self.nr_conns += 1
        self.pending_conns.append(conn)
        self.poller.register(sock, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn))

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
        if not done.cancelled() and done.exception() is None and done.result():
            super().finish_request(conn, done)
        else:
            self._begin_close(conn)

    def murder_pending(self) -> None:
        """Drop silent connections whose time is over, and those that were told goodbye long enough."""
        super().murder_pending()
        now_s = time.monotonic()
        for conn in [conn for conn, closing in self._closing.items() if closing.deadline_s <= now_s]:
            self._end_close(conn)

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
        if self._in_flight <= self.engine_threads:
            return
        if self._is_busier() or (self._in_flight >= self.cfg.threads and self._is_anyone_waiting()):
            request.force_close()

    def is_parent_alive(self) -> bool:
        """Whether the arbiter lives; once it does not, nothing here may last for longer than a few seconds."""
        alive = bool(super().is_parent_alive())
        if not alive:
            gthread.STOP_KEEPALIVE_LINGER = ORPHAN_LINGER_S
            # A pool thread that waits for an engine that hangs would keep the process until its deadline.
            end = threading.Timer(ORPHAN_S, os._exit, (ORPHANED,))
            end.daemon = True
            end.start()
        return alive

    def _cap_keepalive(self, deadline: float) -> None:
        """Stopping: neither kept nor silent connections are waited for longer than this."""
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)

    def _count(self, change: int) -> None:
        self._in_flight += change
        if self.board is not None:
            self.slot.in_flight = self._in_flight
        if self._in_flight >= self.cfg.threads:
            self.set_accept_enabled(enabled=False)

    def _is_busier(self) -> bool:
        return self.board is not None and is_busier(
            self._in_flight, self.board.loads(besides=self.place), self.engine_threads
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
        self.nr_conns -= 1
        conn.close()
