"""A worker's event loop: does all waiting for clients, so that request threads never wait for one.

TLS handshakes, heads, bodies, unsent responses and lingering closes (RFC 9112 section 9.6) are states of a connection
in the poller, with limits on time, rate and memory. A thread gets a request when it is complete. Everything here runs
on the loop's thread, except `balance`, `stop` and `_call`.
"""

import os
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from ocrsvc.connections.tls_socket import Handshakes, NotTls
from ocrsvc.http.received_body import READER_STALL_S, Pace
from ocrsvc.telemetry.loggable import loggable_error
from ocrsvc.worker.connection import Connection, Head, RequestLimits
from ocrsvc.worker.request_threads import LoadSharing, RequestThreads

# Time limit of a request head or a TLS handshake. For the first head it begins with the connection, so that silent
# connections are closed, for later heads with their first byte.
HEAD_S: Final = 10.0
# Time limit that replaces HEAD_S while the worker has its maximum number of connections.
CROWDED_HEAD_S: Final = 1.0
# Longer request heads are answered with status 431; for shorter heads gunicorn's own limits apply.
HEAD_BYTES: Final = 1 << 16
# How long a stopping worker keeps idle connections open, for requests that clients have already sent. Well below
# the 10 s after which container runtimes kill a process.
STOP_LINGER_S: Final = 5.0
# Share of the request memory in use above which slow clients get stricter limits.
SCARCE_SHARE: Final = 0.75
_RESET: Final = struct.pack("ii", 1, 0)
_TURN_S: Final = 1.0
_CHECK_S: Final = 0.25
_CLOSE_S: Final = 2.0
# Bytes read and discarded after the response: an immediate close would send a reset, which can lose the response.
_CLOSE_BYTES: Final = 1 << 27
_RECEIVE_BYTES: Final = 1 << 18
_SEND_BYTES: Final = 1 << 20
_HEAD_PIECE_BYTES: Final = 8192
# The end of a head, or a bare line feed, which makes the parser refuse the head.
_HEAD_END: Final = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_HEAD_END_BYTES: Final = 4
# While no file descriptor is free: how often accepting is retried, and how often the error is logged.
_PAUSE_S: Final = 0.1
_LOG_INTERVAL_S: Final = 10.0
# Most connections accepted per turn of the loop, so that accepting many does not delay the open connections.
_MAX_ACCEPTED: Final = 64

_NO_SNIFF: Final = b"Connection: close\r\nX-Content-Type-Options: nosniff\r\n"
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _NO_SNIFF + b"Content-Length: 0\r\n\r\n"
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _NO_SNIFF + b"Content-Length: 0\r\n\r\n"
_TLS_ONLY: Final = b"This port speaks TLS: use https://.\n"
_NOT_TLS: Final = b"HTTP/1.1 400 Bad Request\r\n%sContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (
    *(_NO_SNIFF, len(_TLS_ONLY)),
    _TLS_ONLY,
)


class EventLoop:
    """The event loop. `cfg` is gunicorn's configuration; `parser` makes a head parser for a client's address.

    `answer` serves a request in a thread, and returns whether to keep its connection.
    """

    def __init__(
        self,
        cfg: Any,
        log: Any,
        listeners: list[Any],
        load: LoadSharing,
        limits: RequestLimits,
        parser: Callable[[Any], Callable[[bytes], Head]],
        answer: Callable[[Connection], bool],
    ) -> None:
        self._cfg, self._log, self._listeners, self._load, self.limits = cfg, log, listeners, load, limits
        self._parser, self._answer = parser, answer
        # None without TLS; connections on Unix sockets never use TLS.
        self.handshakes: Handshakes | None = None
        self.connections = 0
        # Connections in the poller, and those of them that are idle between two requests.
        self.polled, self.kept = set[Connection](), set[Connection]()
        # If `takes_rest`, the loop accepts the whole listen queue before it stops: other workers may be stopping, too.
        self.is_stopping = self.takes_rest = self._is_accepting = False
        self._linger_s = min(float(cfg.keepalive), STOP_LINGER_S)
        self._paused_until_s = self._quiet_until_s = self._checked_s = 0.0
        self._poller = selectors.DefaultSelector()
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller.register(wake, selectors.EVENT_READ, self._run_calls)
        for listener in listeners:
            listener.setblocking(False)
        self.threads = RequestThreads(cfg.threads)

    def run(self, notify: Callable[[], object]) -> None:
        """Serve until `stop`, then finish open requests within the graceful timeout. Calls `notify` each turn."""
        while not self.is_stopping:
            notify()
            self._set_accepting(not self._is_crowded)
            self.turn(_TURN_S)
        self._end_accepting()
        end_s = time.monotonic() + self._cfg.graceful_timeout
        while self.connections and time.monotonic() < end_s:
            notify()
            self.turn(_CHECK_S)
        self.threads.shutdown()

    def stop(self) -> None:
        """Stop accepting, finish open requests, close the connections. Any thread or signal handler may call it."""
        self.is_stopping = True
        self._call(lambda: None)

    def turn(self, timeout_s: float) -> None:
        """Wait for events, at most `timeout_s` or until the next time limit, and handle them."""
        if self.handshakes is not None:
            self.handshakes.begin_turn()
        timeout_s = min(timeout_s, _CHECK_S) if self.polled else timeout_s
        if (left_s := self._paused_until_s - time.monotonic()) > 0:
            timeout_s = min(timeout_s, left_s)
        for key, _ in self._poller.select(timeout_s):
            key.data(key.fileobj)
        self.end_late(time.monotonic())

    def _call(self, act: Callable[[], object]) -> None:
        """Any thread: run a function on the loop's thread."""
        self._calls.put(act)
        # If the pipe is full, the write fails, and the loop wakes up anyway.
        with suppress(OSError):
            os.write(self._waker, b"x")

    def _run_calls(self, wake: int) -> None:
        os.read(wake, 4096)
        for _ in range(self._calls.qsize()):
            self._calls.get()()

    @property
    def _is_crowded(self) -> bool:
        return bool(self.connections >= self._cfg.worker_connections)

    def accept(self, listener: Any) -> None:
        """Accept waiting connections; only one if another worker has fewer requests in flight."""
        for accepted in range(1, _MAX_ACCEPTED + 1):
            if accepted > 1 and self.is_stopping:
                return
            try:
                self._begin_connection(listener, *listener.accept())
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            if self._is_crowded or not self._load.may_accept_another(accepted):
                return

    def _begin_connection(self, listener: Any, sock: socket.socket, client: Any) -> None:
        """Wait for the first request head of a new connection, or for its TLS handshake."""
        handshakes = None if sock.family == socket.AF_UNIX else self.handshakes
        wire = sock if handshakes is None else handshakes.begin(sock)
        conn = Connection(wire, client, listener.getsockname(), self._parser(client))
        self.connections += 1
        begin = self._begin_head if handshakes is None else partial(self._wait_for_head, act=self._on_handshake)
        self._guarded(conn, begin)

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting for a moment because descriptors or memory ran out; connections wait in the kernel's queue."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_INTERVAL_S
            self._log.error("No connection can be accepted: %s. Raise the limit of open files (ulimit -n).", error)
        self._paused_until_s = now_s + _PAUSE_S
        self._set_accepting(enabled=False)

    def _set_accepting(self, enabled: bool) -> None:  # noqa: FBT001  the new state
        enabled = enabled and time.monotonic() >= self._paused_until_s
        if enabled == self._is_accepting:
            return
        self._is_accepting = enabled
        try:
            for listener in self._listeners if enabled else ():
                self._poller.register(listener, selectors.EVENT_READ, self.accept)
        except OSError as error:
            self._pause_accepting(error)
        if not enabled:
            for listener in self._listeners:
                # `unregister` raises for a listener that the poller had refused to register.
                with suppress(KeyError, ValueError):
                    self._poller.unregister(listener)

    def _end_accepting(self) -> None:
        """Close the listeners, and close idle connections sooner.

        The kernel resets queued connections when the last process closes a listener, so those are accepted first.
        """
        self._set_accepting(enabled=False)
        listeners, self._listeners = list(self._listeners), []
        for listener in listeners:
            for _ in range(self._cfg.backlog if self.takes_rest else 0):
                try:
                    self._begin_connection(listener, *listener.accept())
                except ConnectionAbortedError:
                    continue
                except OSError:
                    break
            listener.close()
        end_s = time.monotonic() + self._linger_s
        for conn in self.polled:
            conn.limit_s = min(conn.limit_s, end_s)

    def balance(self, request: Any) -> None:
        """Request thread: close this connection after the response if new ones wait or another worker is less busy."""
        if not self._load.has_waiting:
            return
        # `get_backlog`: number of connections not yet accepted; 0 or -1 if unknown, as for all but TCP on Linux.
        is_full = self._load.in_threads >= self._cfg.threads
        others_wait = is_full and any(listener.get_backlog() > 0 for listener in self._listeners)
        if others_wait or self._load.is_busier():
            request.force_close()

    def _guarded(self, conn: Connection, act: Callable[[Connection], None]) -> None:
        """Call `act` with a connection; an error closes this connection and leaves the loop running."""
        try:
            act(conn)
        except Exception as error:  # noqa: BLE001  the loop must keep running
            self._log.error("A connection failed", exc_info=loggable_error(error))
            self._drop(conn)

    def _listen(self, conn: Connection, act: Callable[[Connection], None], event: int = selectors.EVENT_READ) -> None:
        """Call `act` whenever the connection is readable, or writable if `event` says so."""
        change = self._poller.modify if conn in self.polled else self._poller.register
        change(conn.sock, event, lambda _sock: self._guarded(conn, act))
        self.polled.add(conn)

    def _stop_listening(self, conn: Connection) -> None:
        if conn in self.polled:
            self.polled.remove(conn)
            self._poller.unregister(conn.sock)

    def _wait_for_head(self, conn: Connection, act: Callable[[Connection], None]) -> None:
        conn.limit_s = time.monotonic() + (self._linger_s if self.is_stopping else HEAD_S)
        self._listen(conn, act)

    def _on_handshake(self, conn: Connection) -> None:
        assert self.handshakes is not None, "only with TLS"
        assert conn.tls is not None, "only with TLS"
        try:
            is_over = self.handshakes.advance(conn.tls, conn.client)
        except NotTls:
            with suppress(OSError):
                conn.tls.send_plain(_NOT_TLS)
            self._begin_close(conn)
        except OSError:
            # A lingering close lets the client read the TLS alert.
            self._begin_close(conn)
        else:
            if is_over:
                self._begin_head(conn)

    def _begin_head(self, conn: Connection) -> None:
        """Begin to receive a request head, which often has arrived completely."""
        self.kept.discard(conn)
        conn.received, conn.ahead = bytearray(conn.ahead), b""
        self._wait_for_head(conn, self._on_head)
        if _HEAD_END.search(conn.received):
            self._start(conn)
        else:
            self._on_head(conn)

    def _on_head(self, conn: Connection) -> None:
        piece = conn.receive(_HEAD_PIECE_BYTES)
        if piece is None:
            return
        searched = max(0, len(conn.received) - _HEAD_END_BYTES + 1)
        conn.received += piece
        if not piece:
            self._drop(conn)
        elif _HEAD_END.search(conn.received, searched):
            self._start(conn)
        elif len(conn.received) > HEAD_BYTES:
            self._refuse(conn, _TOO_LONG)

    def _start(self, conn: Connection) -> None:
        """Parse a complete head and receive the body; a small body often arrived with the head."""
        conn.parse_head(self.limits)
        if conn.body is None or conn.body.settled:
            self.enqueue(conn)
        else:
            self._listen(conn, self._on_body)
            # Read now instead of waiting for the poller: often the rest of the body has arrived.
            self._on_body(conn)

    def _on_body(self, conn: Connection) -> None:
        body = conn.body
        assert body is not None, "only requests with one get here"
        piece = conn.receive(min(_RECEIVE_BYTES, body.wanted_bytes or _RECEIVE_BYTES))
        if piece:
            conn.ahead = body.feed(piece)
        elif piece is not None:
            body.end()
        if body.settled:
            self.enqueue(conn)

    def enqueue(self, conn: Connection) -> None:
        """Pass a request whose body is complete or has failed to a request thread; a quick one to a reserved thread."""
        self._stop_listening(conn)
        self._load.count(1)
        answer = partial(self._answer, conn)
        done = self.threads.add_quick(answer) if conn.is_quick else self.threads.add(conn.caller, answer)
        done.add_done_callback(lambda future: self._call(partial(self.finish, conn, future)))

    def finish(self, conn: Connection, done: Future[bool]) -> None:
        """After a thread has served a request: send the rest of the response, then keep or close the connection."""
        self._load.count(-1)
        conn.is_kept = not done.cancelled() and done.exception() is None and done.result()
        conn.pace, conn.sent_bytes = Pace(now_s := time.monotonic(), now_s), 0
        send_rest = partial(self._listen, act=self._on_writable, event=selectors.EVENT_WRITE)
        self._guarded(conn, send_rest if conn.sender.is_left else self._end_answer)

    def _on_writable(self, conn: Connection) -> None:
        """Send as much of the response as the kernel accepts, at most about `_SEND_BYTES`."""
        end_bytes = conn.sent_bytes + _SEND_BYTES
        try:
            with suppress(BlockingIOError):
                while conn.sender.is_left and conn.sent_bytes < end_bytes:
                    conn.sent_bytes += conn.sender.send(_SEND_BYTES)
        except OSError:
            self._drop(conn)
            return
        if not conn.sender.is_left:
            self._stop_listening(conn)
            self._end_answer(conn)

    def _end_answer(self, conn: Connection) -> None:
        """After a response: start the next request if it has arrived, else wait for one or close the connection."""
        conn.forget_request()
        # Some clients send an extra empty line after a body (RFC 9112 section 2.2).
        conn.ahead = conn.ahead.removeprefix(b"\r\n")
        # A TLS client's close_notify may have been read with the request; the poller would not report it again.
        if not conn.is_kept or (not conn.ahead and conn.tls is not None and conn.tls.at_end):
            self._begin_close(conn)
        elif conn.ahead:
            # The client pipelines its requests: the beginning of the next head has already arrived.
            self._begin_head(conn)
        else:
            # Wait for the next request; a stopping worker waits less.
            conn.limit_s = time.monotonic() + (self._linger_s if self.is_stopping else self._cfg.keepalive)
            self._listen(conn, self._begin_head)
            self.kept.add(conn)

    def _refuse(self, conn: Connection, answer: bytes) -> None:
        """Send a fixed error response without parsing the head, and close the connection."""
        self._log.debug("Refused a head of %s bytes from %s", len(conn.received), conn.client)
        with suppress(OSError):
            conn.sock.send(answer)
        self._begin_close(conn)

    def _begin_close(self, conn: Connection) -> None:
        """Shut down sending, then read until the client closes: an earlier close could lose the response."""
        conn.received, conn.ahead = bytearray(), b""
        conn.close_s, conn.close_bytes = conn.close_s or time.monotonic() + _CLOSE_S, _CLOSE_BYTES
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            # TLS must send close_notify first, but the kernel's buffer is full: retry when the socket is writable.
            self._listen(conn, self._begin_close, selectors.EVENT_WRITE)
        except OSError:
            self._drop(conn)
        else:
            self._listen(conn, self._on_closing)

    def _on_closing(self, conn: Connection) -> None:
        """Discard what a client sends after the last response."""
        piece = conn.receive(_RECEIVE_BYTES)
        if piece is None:
            return
        conn.close_bytes -= len(piece)
        if not piece or conn.close_bytes <= 0:
            self._drop(conn)

    def _drop(self, conn: Connection) -> None:
        self._stop_listening(conn)
        self.kept.discard(conn)
        if self.handshakes is not None and conn.tls is not None:
            self.handshakes.note_end(conn.tls)
        self.connections -= 1
        conn.close()

    def end_late(self, now_s: float) -> None:
        """End connections that exceed a limit on handshake, head, idle time, body, reading speed or closing."""
        if now_s - self._checked_s < _CHECK_S and not self.is_stopping:
            return
        self._checked_s = now_s
        for conn in list(self.polled):
            self._guarded(conn, lambda conn: self.check_limits(conn, now_s))

    def check_limits(self, conn: Connection, now_s: float) -> None:
        """Answer or drop a connection that is over one of its limits."""
        memory = self.limits.memory
        scarce = self._is_crowded or memory.held_bytes > SCARCE_SHARE * memory.total_bytes
        if conn.sender.is_left and not conn.close_s:
            conn.note_taken(now_s)
            if conn.pace.is_too_slow(now_s, scarce=scarce, stall_s=READER_STALL_S):
                self._log.info("Cut off a client that reads its response too slowly: %s", conn.client)
                # With SO_LINGER at 0 closing sends a TCP reset, and the kernel discards unsent bytes.
                with suppress(OSError):
                    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._drop(conn)
        elif conn.body is not None:
            conn.body.check_pace(now_s, scarce=scarce)
            if conn.body.settled:
                self.enqueue(conn)
        elif conn.close_s:
            if conn.close_s <= now_s:
                self._drop(conn)
        else:
            # While the worker has its maximum number of connections, each may wait only CROWDED_HEAD_S for a head.
            wait_s = self._cfg.keepalive if conn in self.kept else HEAD_S
            if conn.limit_s <= now_s + (wait_s - CROWDED_HEAD_S if self._is_crowded else 0.0):
                # After a partial head the client gets status 408; a silent connection is closed.
                self._refuse(conn, _TOO_LATE) if conn.received else self._drop(conn)
