"""The event loop of a worker, which waits for its connections so that no thread has to.

gunicorn's gthread gives a thread to a connection from its first byte on. Here the loop receives heads and bodies, sends
what the kernel did not take of a response, and lingers over connections that close (RFC 9112 section 9.6); each of
these is a state of the connection in the poller, with limits in time, rate and memory. A thread gets a request when it
is whole.

Everything here runs on the loop's thread, except `handle_request` and what gunicorn itself calls in the pool.
"""

from __future__ import annotations

import re
import selectors
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from gunicorn.workers import gthread

from ocrsvc.http.received_body import READER_STALL_S, Pace
from ocrsvc.serving.memory_budget import Budget
from ocrsvc.telemetry.loggable import loggable_error
from ocrsvc.worker.connection import Connection, ErrorSender, RequestLimits, Sender
from ocrsvc.worker.request_threads import RequestThreads, start_pool

HEAD_S: Final = 10.0
"""How long the head of a request may take to arrive: the first one counts from the connection on, so that silent
connections are closed too, later ones from their first byte on."""

CROWDED_HEAD_S: Final = 1.0
"""The same while a worker holds as many connections as it may: those that wait for a head are closed for others."""

HEAD_BYTES: Final = 1 << 16
"""The longest head; a longer one is answered 431. Below it gunicorn's own limits hold."""

STOP_LINGER_S: Final = 5.0
"""How long a stopping worker keeps idle connections open, for a request that may be under way, at most.

Well below the 10 s after which container runtimes kill what they have asked to stop."""

SCARCE_SHARE: Final = 0.75
"""The share of the memory for requests from which on slow clients have stricter limits."""

_CHECK_S: Final = 0.25
_CLOSE_S: Final = 2.0
# A client that still sends is listened to for a while, so that the reset does not cost it our answer.
_CLOSE_BYTES: Final = 1 << 27
_RECEIVE_BYTES: Final = 1 << 18
_SEND_BYTES: Final = 1 << 20
_HEAD_PIECE_BYTES: Final = 8192
# The end of a head, or a line that ends as no line of a head may: the parser refuses that at once.
_HEAD_END: Final = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_HEAD_END_BYTES: Final = 4
_EMPTY: Final = b"Connection: close\r\nX-Content-Type-Options: nosniff\r\nContent-Length: 0\r\n\r\n"
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _EMPTY
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _EMPTY
_RESERVED_THREADS: Final = 2


class EventLoopWorker(gthread.ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gthread whose loop never waits, and whose threads never wait for a client.

    Attributes:
        limits: What requests may take.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.limits = RequestLimits(Budget(sys.maxsize))
        # Those in the poller, but for kept ones between two requests.
        self._waiting: set[Connection] = set()
        self._reserved: ThreadPoolExecutor | None = None
        self._request_threads: RequestThreads
        self._checked_s = 0.0

    def init_process(self) -> None:
        """Worker, after the fork: serve until it is stopped."""
        gthread.STOP_KEEPALIVE_LINGER = min(float(self.cfg.keepalive), STOP_LINGER_S)
        # However many requests wait for the engine: health checks and operators find a thread.
        self._reserved = start_pool(_RESERVED_THREADS, "reserved")
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """The threads of requests."""
        pool = start_pool(self.cfg.threads, "request")
        self._request_threads = RequestThreads(pool)
        return pool

    def begin_connection(self, sock: socket.socket, client: Any, server: Any) -> None:
        """Wait for the head of a new connection's first request."""
        conn = Connection(self.cfg, sock, client, server)
        self.nr_conns += 1
        self._guarded(conn, self._begin_head)

    def enqueue_req(self, conn: Any) -> None:
        """Give a request that is whole to a thread; one that is known to be quick to those that are reserved."""
        if conn.is_quick and self._reserved is not None:
            done = self._reserved.submit(self.handle, conn)
        else:
            done = self._request_threads.add(conn.caller, partial(self.handle, conn))
        done.add_done_callback(lambda future: self.method_queue.defer(self.finish_request, conn, future))

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Pool thread: answer; what the client does not take at once is left to the loop."""
        sender = Sender(conn.sock, conn.tls)
        if conn.body is not None:
            conn.body.push = sender.push
        try:
            keep = super().handle_request(req, SimpleNamespace(sock=sender, client=conn.client, server=conn.server))
            sender.flush()
        finally:
            conn.unsent, conn.file = sender.unsent, sender.file
        return bool(keep)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Pool thread: answer what never reached the application, such as a head that is wrong."""
        super().handle_error(req, ErrorSender(client), addr, exc)

    def finish_request(self, conn: Any, done: Future[object]) -> None:
        """Send the rest of the answer, and then keep the connection or begin to close it."""
        conn.is_kept = not done.cancelled() and done.exception() is None and bool(done.result())
        self._guarded(conn, self._go_on_sending if conn.is_sending else self._end_answer)

    def _go_on_sending(self, conn: Connection) -> None:
        now_s = time.monotonic()
        conn.sock.setblocking(False)
        conn.pace, conn.sent_bytes = Pace(now_s, now_s), 0
        self._listen(conn, self._on_writable, selectors.EVENT_WRITE)

    def _on_writable(self, conn: Connection) -> None:
        """The kernel takes more of an answer."""
        try:
            conn.send_more(_SEND_BYTES)
        except OSError:
            self._drop(conn)
            return
        if not conn.is_sending:
            self._stop_listening(conn)
            self._end_answer(conn)

    def _end_answer(self, conn: Connection) -> None:
        """The client has its answer."""
        conn.forget_request()
        if not conn.is_kept:
            self._begin_close(conn)
            return
        conn.sock.setblocking(False)
        # Some clients end a body with an empty line that does not belong to it (RFC 9112 section 2.2).
        conn.ahead = conn.ahead.removeprefix(b"\r\n")
        if conn.ahead:
            # A client that does not wait for its answers: the rest of its next request may be a while.
            self._begin_head(conn)
        elif conn.tls is not None and conn.tls.at_end:
            # Its goodbye was read with the request, and no poller reports it again.
            self._begin_close(conn)
        else:
            self._keep_alive(conn)

    def _keep_alive(self, conn: Connection) -> None:
        """Wait for the next request on a connection; when the worker stops, not for long."""
        conn.set_timeout()
        if not self.alive:
            conn.timeout = min(conn.timeout, time.monotonic() + gthread.STOP_KEEPALIVE_LINGER)
        self.poller.register(conn.sock, selectors.EVENT_READ, lambda _: self._guarded(conn, self._on_keepalive))
        self.keepalived_conns.append(conn)

    def _on_keepalive(self, conn: Connection) -> None:
        """A kept connection begins its next request, or ends."""
        self.poller.unregister(conn.sock)
        self.keepalived_conns.remove(conn)
        self._begin_head(conn)

    @property
    def _is_crowded(self) -> bool:
        return bool(self.nr_conns >= self.worker_connections)

    def murder_pending(self) -> None:
        """End what is over its time limit: heads, silent connections, slow bodies and readers, long closes."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S and self.alive:
            return
        self._checked_s = now_s
        for conn in list(self._waiting):
            self._guarded(conn, lambda conn: self._check_limits(conn, now_s))
        self._close_idle(now_s)

    def _check_limits(self, conn: Connection, now_s: float) -> None:
        memory = self.limits.memory
        scarce = self._is_crowded or memory.held_bytes > SCARCE_SHARE * memory.total_bytes
        if conn.is_sending and not conn.close_s:
            conn.note_taken(now_s)
            if conn.pace.is_too_slow(now_s, scarce=scarce, stall_s=READER_STALL_S):
                self.log.info("Cut off a client that takes its answer too slowly: %s", conn.client)
                conn.cut_off()
                self._drop(conn)
        elif conn.body is not None:
            conn.body.check_pace(now_s, scarce=scarce)
            if conn.body.settled:
                self._end_body(conn)
        elif conn.close_s:
            if conn.close_s <= now_s:
                self._drop(conn)
        elif conn.timeout <= now_s + (HEAD_S - CROWDED_HEAD_S if self._is_crowded else 0):
            self._end_head(conn)

    def _end_head(self, conn: Connection) -> None:
        """A head is late, or none has begun."""
        if conn.head:
            self._refuse(conn, _TOO_LATE)
        else:
            self._drop(conn)

    def _close_idle(self, now_s: float) -> None:
        """With as many connections as there may be, close those that are kept and idle."""
        while self.keepalived_conns and self._is_crowded:
            conn = self.keepalived_conns[0]
            if conn.timeout - self.cfg.keepalive + CROWDED_HEAD_S > now_s:
                return
            self.keepalived_conns.popleft()
            self.poller.unregister(conn.sock)
            self._drop(conn)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """As gunicorn's, but not longer than until something here is due, and threads of requests come second."""
        self._request_threads.start()
        events = self.poller.select(min(timeout, _CHECK_S) if self._waiting else timeout)
        self._request_threads.hold_back()
        for key, _ in events:
            key.data(key.fileobj)
        if not self.alive:
            # This may have been the last turn.
            self._request_threads.start()

    def _cap_keepalive(self, deadline: float) -> None:
        """Stopping: neither kept nor silent connections are waited for longer than this."""
        super()._cap_keepalive(deadline)
        for conn in self._waiting:
            conn.timeout = min(conn.timeout, deadline)

    def _guarded(self, conn: Connection, act: Callable[[Connection], None]) -> None:
        """Act on a connection; whatever goes wrong ends this one alone, and never the loop."""
        try:
            act(conn)
        except Exception as error:
            self.log.error("A connection failed", exc_info=loggable_error(error))
            self._drop(conn)

    def _listen(self, conn: Connection, act: Callable[[Connection], None], event: int = selectors.EVENT_READ) -> None:
        """Act whenever the connection can be read, or written, instead of what was done then before."""
        change = self.poller.modify if conn in self._waiting else self.poller.register
        change(conn.sock, event, lambda _sock: self._guarded(conn, act))
        self._waiting.add(conn)

    def _stop_listening(self, conn: Connection) -> None:
        if conn in self._waiting:
            self._waiting.remove(conn)
            self.poller.unregister(conn.sock)

    def _begin_head(self, conn: Connection) -> None:
        """Receive the head of a request, of which some may have come; most have come whole."""
        conn.head, conn.ahead = bytearray(conn.ahead), b""
        conn.timeout = time.monotonic() + (HEAD_S if self.alive else gthread.STOP_KEEPALIVE_LINGER)
        self._listen(conn, self._on_head)
        if _HEAD_END.search(conn.head):
            self._start(conn)
        else:
            self._on_head(conn)

    def _on_head(self, conn: Connection) -> None:
        """More of a head is there, or its client has gone."""
        piece = conn.receive(_HEAD_PIECE_BYTES)
        if piece is None:
            return
        searched = max(0, len(conn.head) - _HEAD_END_BYTES + 1)
        conn.head += piece
        if not piece:
            self._drop(conn)
        elif _HEAD_END.search(conn.head, searched):
            self._start(conn)
        elif len(conn.head) > HEAD_BYTES:
            self._refuse(conn, _TOO_LONG)

    def _start(self, conn: Connection) -> None:
        """The head is whole: receive the body, of which most has come with it where it is small."""
        conn.parse_head(self.limits)
        if conn.body is None or conn.body.settled:
            self._end_body(conn)
        else:
            self._listen(conn, self._on_body)
            # The rest has often come meanwhile.
            self._on_body(conn)

    def _on_body(self, conn: Connection) -> None:
        """More of a body is there, or its end."""
        body = conn.body
        assert body is not None, "only requests with one get here"
        piece = conn.receive(min(_RECEIVE_BYTES, body.wanted_bytes or _RECEIVE_BYTES))
        if piece:
            conn.ahead = body.feed(piece)
        elif piece is not None:
            body.end()
        if body.settled:
            self._end_body(conn)

    def _end_body(self, conn: Connection) -> None:
        """The request is whole, or its body will never be."""
        self._stop_listening(conn)
        self.enqueue_req(conn)

    def _refuse(self, conn: Connection, answer: bytes) -> None:
        """Answer a head that will not be parsed, and close."""
        self.log.debug("Refused a head of %s bytes from %s", len(conn.head), conn.client)
        with suppress(OSError):
            conn.sock.send(answer)
        self._begin_close(conn)

    def _begin_close(self, conn: Connection) -> None:
        """Shut down sending, and read until the client closes, so that it can read all of its answer."""
        conn.head, conn.ahead = bytearray(), b""
        conn.close_s, conn.close_bytes = conn.close_s or time.monotonic() + _CLOSE_S, _CLOSE_BYTES
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            # TLS has a goodbye of its own, which waits for the kernel.
            self._listen(conn, self._begin_close, selectors.EVENT_WRITE)
            return
        except OSError:
            self._drop(conn)
            return
        self._listen(conn, self._on_closing)

    def _on_closing(self, conn: Connection) -> None:
        """Throw away what a client sends after our last answer."""
        piece = conn.receive(_RECEIVE_BYTES)
        if piece is None:
            return
        conn.close_bytes -= len(piece)
        if not piece or conn.close_bytes <= 0:
            self._drop(conn)

    def _drop(self, conn: Connection) -> None:
        """Close at once, whatever the connection is about."""
        self._stop_listening(conn)
        conn.forget_request()
        self.nr_conns -= 1
        conn.close()
