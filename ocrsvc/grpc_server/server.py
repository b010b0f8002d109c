"""A worker's gRPC server: accepts connections, transfers their bytes, and shuts them down gracefully.

One loop thread owns all sockets and the HTTP/2 state, which therefore need no locks; a slow client does not delay
others. All workers share the arbiter's listening sockets.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ocrsvc.connections import tls_socket
from ocrsvc.connections.tls_socket import Handshakes, TlsSocket
from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server import limits
from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.http2 import StallDetector
from ocrsvc.grpc_server.server_state import ServerState
from ocrsvc.serving.memory_budget import Share


@dataclass(eq=False)
class Transport:
    """Transfers the bytes of one connection between its socket and HTTP/2, after the TLS handshake if there is one."""

    sock: socket.socket | TlsSocket
    connection: Connection
    # Counts the connection's memory without that of its calls; 0 bytes if none was left when it was accepted.
    share: Share
    selector: selectors.BaseSelector
    # All transports of the server; a transport removes itself when it closes.
    others: set[Transport]
    # Runs the handshake of a TlsSocket.
    handshakes: Handshakes | None = None

    def __post_init__(self) -> None:
        self._tls = self.sock if isinstance(self.sock, TlsSocket) else None
        self._in_handshake = self._tls is not None
        self._events = selectors.EVENT_READ
        self._stall = StallDetector()
        self._closing_s: float | None = None
        self._is_shut = False
        # Whether plain or encrypted bytes wait for the socket.
        self._has_unsent = False
        self._discarded_bytes = 0
        self._age_s = limits.MAX_AGE_S * random.uniform(0.9, 1.1)  # noqa: S311  not a secret: it spreads reconnects
        self.sock.setblocking(False)
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(self.sock, self._events, self._read)

    @property
    def waiting(self) -> bool:
        """Whether there are received frames to handle, and the output buffer has room for answers."""
        connection = self.connection
        return connection.waiting and self._closing_s is None and len(connection.out) < limits.MAX_UNSENT_BYTES

    def _read(self, events: int) -> None:
        """Read from a ready socket and handle frames; the answers are sent by `write` after all sockets were read."""
        if not events & selectors.EVENT_READ or (self._in_handshake and not self._advance_handshake()):
            return
        try:
            data = self.sock.recv(limits.RECEIVE_BYTES)
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
            if self._discarded_bytes > limits.LINGER_BYTES:
                self.drop()

    def _advance_handshake(self) -> bool:
        """Continue the TLS handshake; return whether it is complete."""
        assert self.handshakes is not None, "only with TLS"
        assert self._tls is not None, "only with TLS"
        try:
            if not self.handshakes.advance(self._tls, self.connection.caller):
                return False
        except OSError:
            # A lingering close lets the client read the TLS alert.
            self._in_handshake, self.connection.broken = False, True
            self.connection.out.clear()
            return False
        self._in_handshake = False
        self.connection.calls.client_name = self._tls.client_name
        return True

    def write(self) -> None:
        """Send as much as the socket accepts, and close a finished connection."""
        if self not in self.others or self._in_handshake or not self._send():
            return
        self.connection.send_more()
        out = self.connection.out
        reading = 0 if len(out) >= limits.MAX_UNSENT_BYTES or self.waiting else selectors.EVENT_READ
        events = reading | (selectors.EVENT_WRITE if out or self._has_unsent else 0)
        if events != self._events:
            self._events = events
            self.selector.modify(self.sock, events, self._read)
        if self.connection.broken or self.connection.finished:
            self._begin_close()

    def _send(self) -> bool:
        """Send as much as the socket accepts; return whether the connection is still open."""
        out = self.connection.out
        before = len(out)
        try:
            if self._tls is not None:
                self._tls.flush()
            while out:
                del out[: self.sock.send(out)]
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return False
        self._has_unsent = bool(out) or (self._tls is not None and self._tls.unsent_bytes > 0)
        self._stall.note(time.monotonic(), left=self._has_unsent, taken=before - len(out))
        return True

    def check_time_limits(self, now_s: float) -> None:
        """End calls that exceed a time limit, and shut down a connection that is too old."""
        connection = self.connection
        first_s = limits.LINGER_S if self._in_handshake and connection.draining_s is not None else limits.FIRST_BYTES_S
        silent = not connection.has_settings and now_s - connection.began_s > first_s
        lingering = self._closing_s is not None and now_s - self._closing_s > limits.LINGER_S
        if silent or lingering or self._stall.is_stalled(now_s):
            self.drop()
            return
        if now_s - connection.began_s > self._age_s:
            connection.begin_shutdown()
        connection.check_time_limits()

    def close_now(self) -> None:
        """Close the connection at once, with a GOAWAY if the socket accepts it."""
        self.connection.abort()
        if self in self.others and self._send():
            self.drop()

    def drop(self) -> None:
        """Close the connection at once, without a GOAWAY."""
        if self in self.others:
            self.others.discard(self)
            if self.handshakes is not None and self._tls is not None:
                self.handshakes.note_end(self._tls)
            self.selector.unregister(self.sock)
            self.sock.close()
            self.connection.close()
            self.share.release()

    def _begin_close(self) -> None:
        """Shut down sending, and give the client time to read the last answer and close."""
        if self._closing_s is None:
            self._closing_s = time.monotonic()
            self.connection.close()
        if not self._is_shut:
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except BlockingIOError:
                # The socket's buffer has no room for TLS's close_notify yet; the next call tries again.
                return
            except OSError:
                pass
            self._is_shut = True


class RpcServer:
    """The gRPC server of one worker; with `handshakes` it uses TLS on all listeners except Unix sockets."""

    def __init__(
        self, listeners: Sequence[socket.socket], state: ServerState, handshakes: Handshakes | None = None
    ) -> None:
        self.state, self._handshakes, self._listeners = state, handshakes, list(listeners)
        self._transports: set[Transport] = set()
        with contextlib.ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = os.pipe()
            stack.pop_all()
        self._accepting = self._paused = self._draining = self._aborted = False
        self._thread = threading.Thread(target=self._run_loop, name="rpc-loop", daemon=True)
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        state.wake = self._wake

    def start(self) -> None:
        """Start the loop's thread, which accepts connections."""
        for listener in self._listeners:
            listener.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        self._thread.start()

    def drain(self) -> None:
        """Stop accepting, send GOAWAY to all clients, and answer open calls. Safe in a signal handler."""
        self._draining = True
        self._wake()

    def wait(self, timeout_s: float) -> bool:
        """After `drain`, wait until all calls are answered; return whether they are."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Drain, then abort calls that are open after `timeout_s`; return whether all were answered."""
        self.drain()
        clean = self.wait(timeout_s)
        self._aborted = True
        self._wake()
        self._thread.join()
        self.state.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        return clean

    def _wake(self) -> None:
        # A full pipe already wakes the loop; if the pipe is closed, the loop has ended.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")

    def _on_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _run_loop(self) -> None:
        """The thread's function: serve all connections in rounds until drained or aborted."""
        checked_s = 0.0
        self._update_accepting()
        while not self._aborted and (not self._draining or self._listeners or self._transports or self.state.running):
            busy = [transport for transport in self._transports if transport.waiting]
            self._divide_time(len(busy))
            for transport in busy:
                transport.connection.handle_frames()
            ready = self._selector.select(self._poll_timeout_s())
            self._divide_time(len(busy) + len(ready))
            for key, events in ready:
                key.data(events)
            self.state.deliver()
            if self._draining:
                self._close_listeners()
                for transport in self._transports:
                    transport.connection.drain()
            now_s = time.monotonic()
            if now_s - checked_s >= limits.CHECK_S:
                checked_s, self._paused = now_s, False
                for transport in list(self._transports):
                    transport.check_time_limits(now_s)
            self._update_accepting()
            for transport in list(self._transports):
                transport.write()
        for transport in list(self._transports):
            transport.drop()
        self._draining = True
        self._close_listeners()
        self._selector.close()

    def _divide_time(self, turns: int) -> None:
        """Divide ROUND_S, the loop's time for frames, among `turns` connections, so that none waits long."""
        if self._handshakes is not None:
            self._handshakes.begin_turn()
        self.state.turn_s = min(limits.TURN_S, max(limits.MIN_TURN_S, limits.ROUND_S / max(1, turns)))

    def _poll_timeout_s(self) -> float | None:
        if any(transport.waiting for transport in self._transports):
            return 0.0
        return limits.CHECK_S if self._transports or self._paused else None

    def _update_accepting(self) -> None:
        """Poll the listeners only while connections can be accepted; otherwise queued ones keep waking the loop."""
        accepting = not self._draining and not self._paused
        if accepting == self._accepting:
            return
        self._accepting = accepting
        for listener in self._listeners:
            if accepting:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
            else:
                self._selector.unregister(listener)

    def _close_listeners(self) -> None:
        """Accept queued connections before closing the listeners, because the kernel would reset them."""
        self._update_accepting()
        while self._listeners:
            listener = self._listeners.pop()
            for _ in range(0 if self._aborted else limits.MAX_CONNECTIONS):
                if not self._accept(listener, selectors.EVENT_READ):
                    break
            listener.close()

    def _accept(self, listener: socket.socket, _events: int) -> bool:
        """Accept one connection; return whether one was waiting."""
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError:
            # Pause, because an immediate retry would fail again, for example because no file descriptor is free.
            self._paused = True
            message = "A connection cannot be accepted; retrying %g times per second"
            self.state.warn(message, 1 / limits.CHECK_S, exc_info=True)
            return False
        try:
            self._admit(sock, str(address[0]) if isinstance(address, tuple) else "")
        except OSError:
            # The client has disconnected, or the selector cannot watch the socket.
            sock.close()
        return True

    def _admit(self, sock: socket.socket, caller: str) -> None:
        """Serve a new connection; if there are too many, close another one. Raises OSError."""
        if len(self._transports) >= limits.MAX_CONNECTIONS:
            connection_to_close(self._transports).close_now()
        share = Share(self.state.memory)
        handshakes = self._handshakes if sock.family != socket.AF_UNIX else None
        try:
            share.take(limits.CONNECTION_BYTES + (tls_socket.CONNECTION_BYTES if handshakes is not None else 0))
        except OcrsvcError:
            exempt = [transport for transport in self._transports if not transport.share.held_bytes]
            if len(exempt) >= limits.EXEMPT_CONNECTIONS:
                connection_to_close(exempt).close_now()
        connection = Connection(self.state, caller=caller)
        wrapped = handshakes.begin(sock) if handshakes is not None else sock
        try:
            self._transports.add(Transport(wrapped, connection, share, self._selector, self._transports, handshakes))
        except BaseException:
            share.release()
            raise


def connection_to_close(transports: Collection[Transport]) -> Transport:
    """The longest idle connection, preferably without calls, of the address that has the most connections."""
    counts = Counter(transport.connection.caller for transport in transports)

    def rank(transport: Transport) -> tuple[int, bool, float]:
        connection = transport.connection
        return -counts[connection.caller], len(connection.calls) > 0, connection.calls.active_s

    return min(transports, key=rank)
