"""The gRPC server of a worker: accepts connections, moves their bytes, runs their calls, and ends them gracefully.

One loop owns all sockets and all HTTP/2 state, so that neither needs a lock and a client that reads slowly holds nobody
up; calls that need the engine run in a pool. The listening sockets are made once, in the arbiter, and are shared by all
workers: what one does not accept, another does, and nothing is lost when a worker ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from ocrsvc.errors import OcrsvcError
from ocrsvc.grpc_server.access import CallAccess
from ocrsvc.grpc_server.call_metrics import CallMetrics
from ocrsvc.grpc_server.connection import Connection
from ocrsvc.grpc_server.http2_settings import MAX_FRAME
from ocrsvc.grpc_server.message import Answer, Job
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.status_codes import LOGGER
from ocrsvc.grpc_server.stream import Stream
from ocrsvc.grpc_server.transport import Transport
from ocrsvc.serving.memory_budget import Budget, Share, SharedLimits, make_shared_limits
from ocrsvc.telemetry.metrics_store import MetricsStore
from ocrsvc.telemetry.request_ids import with_ids
from ocrsvc.tls import tls_socket
from ocrsvc.tls.handshakes import Handshakes

MAX_CONNECTIONS: Final = 1000
CONNECTION_BYTES: Final = 1 << 17
"""What a connection takes of the memory beside its calls: what was received and not dealt with, a frame and a header
block that are not complete, and what h2 keeps."""

EXEMPT_CONNECTIONS: Final = 32
"""Connections that are accepted where no memory is left, for health checks."""

ARRIVING_SHARE: Final = 0.25
"""Of the memory, what all messages may hold that are still to be begun: a client need not finish them."""

_WARN_INTERVAL_S: Final = 60.0
_CHECK_S: Final = 0.25
# The time that one connection may take of the loop before the others are served, and all together.
_TURN_S: Final = 0.02
_LEAST_TURN_S: Final = 0.001
_ROUND_S: Final = 0.02


class RpcServer:
    """The gRPC side of one worker.

    Args:
        listeners: Bound and listening; shared with other processes, closed here when this worker accepts no more.
        methods: What can be called.
        threads: Calls that run at once; more are answered UNAVAILABLE.
        most_bytes: Largest message.
        limit_s: Longest time that a call may take, and that one without a limit gets.
        limits: Memory for calls, how many one address may have under way beside the quick ones, and the guard; by
            default memory for a few of the largest messages, no limit for callers, and no guard.
        call_metrics: Counts the calls; by default nobody reads the numbers.
        on_call: Called on the loop's thread, with 1 for each call that begins to run, and -1 when it has.

    Attributes:
        access: Admits calls by their API keys; set before the start, None admits all.
        handshakes: Of TLS, on every listener but Unix sockets; set before the start, None is plain.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        methods: Methods,
        *,
        threads: int,
        most_bytes: int,
        limit_s: float,
        limits: SharedLimits | None = None,
        call_metrics: CallMetrics | None = None,
        on_call: Callable[[int], object] = bool,
    ) -> None:
        self.methods = methods
        self.most_bytes = most_bytes
        self.limit_s = limit_s
        limits = limits or make_shared_limits(memory_bytes=16 * most_bytes, most_bytes=most_bytes, caller_requests=0)
        self.access: CallAccess | None = None
        self.turn_s = _TURN_S
        self.memory, self.callers = limits.memory, limits.callers
        self.arriving = Budget(int(max(ARRIVING_SHARE * limits.memory.total_bytes, most_bytes + MAX_FRAME)))
        self.call_metrics = call_metrics or CallMetrics(MetricsStore().common)
        self._listeners = list(listeners)
        self.threads = threads
        self.handshakes: Handshakes | None = None
        self._on_call = on_call
        self._guarding = limits.guard.request if limits.guard is not None else _unguarded
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        self._transports: set[Transport] = set()
        self._done: deque[Callable[[], None]] = deque()
        with contextlib.ExitStack() as opened:
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._wake_read, self._wake_write = os.pipe()
            opened.pop_all()
        self._running = 0
        self._queued_streams: dict[Stream, Connection] = {}
        self._accepting = False
        self._paused = False
        self._warned_s: dict[str, float] = {}
        self._draining = False
        self._aborted = False
        self._thread = threading.Thread(target=self._run_loop, name="rpc-loop", daemon=True)
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        self._thread.start()

    def drain(self) -> None:
        """Accept no more, send GOAWAY to every client, answer what is here. Safe in a signal's handler."""
        self._draining = True
        self._wake()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until every call is answered, after `drain`; whether it is so."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Drain, and wait until every call is answered; after `timeout_s` the rest is cut off. Whether none was."""
        self.drain()
        clean = self.wait(timeout_s)
        self._aborted = True
        self._wake()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        os.close(self._wake_read)
        os.close(self._wake_write)
        return clean

    @property
    def has_thread(self) -> bool:
        """Whether a thread is free. This and the next four: on the loop's thread."""
        return self._running < self.threads

    def run(self, connection: Connection, stream: Stream, job: Job) -> None:
        """Make an answer in a pool thread, of which one is free; `connection.answered` follows."""
        self._running += 1
        self._on_call(1)
        self._pool.submit(self._work, connection, stream, job)

    def enqueue(self, connection: Connection, stream: Stream) -> None:
        """Call `connection.resume` once a thread is free."""
        self._queued_streams[stream] = connection

    def dequeue(self, stream: Stream) -> None:
        """Remove the stream from those that wait for a thread."""
        self._queued_streams.pop(stream, None)

    def note_refused(self, caller: str, detail: str) -> None:
        """A connection was ended for what its client sent."""
        self._warn("A gRPC connection from %s was ended for %s", caller or "a unix socket", detail)

    def _work(self, connection: Connection, stream: Stream, job: Job) -> None:
        """Pool thread: make one answer."""
        record = stream.record
        with with_ids(record.id, record.trace), self._guarding(record.path, record.id):
            outcome = job.outcome()
        self._done.append(partial(self._finish, connection, stream, outcome))
        self._wake()

    def _finish(self, connection: Connection, stream: Stream, outcome: Answer | BaseException) -> None:
        self._running -= 1
        self._on_call(-1)
        # Before this stream's next message: otherwise one stream could keep a thread for ever.
        while self._queued_streams and self.has_thread:
            next_stream = next(iter(self._queued_streams))
            self._queued_streams.pop(next_stream).resume(next_stream)
        connection.answered(stream, outcome)

    def _wake(self) -> None:
        # A full pipe wakes the loop as well; a closed one has none.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")

    def _on_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _run_loop(self) -> None:
        """The loop's thread."""
        checked_s = 0.0
        self._update_accepting()
        while not self._aborted and not (self._draining and not self._is_busy):
            busy = [transport for transport in self._transports if transport.waiting]
            self._share_time(len(busy))
            for transport in busy:
                transport.go_on()
            ready = self._selector.select(self._poll_timeout_s())
            self._share_time(len(busy) + len(ready))
            for key, events in ready:
                key.data(events)
            while self._done:
                self._done.popleft()()
            if self._draining:
                self._drain_connections()
            now_s = time.monotonic()
            if now_s - checked_s >= _CHECK_S:
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

    @property
    def _is_busy(self) -> bool:
        return bool(self._listeners or self._transports or self._running)

    def _share_time(self, turns: int) -> None:
        """Divide the time of a round among the connections, so that a round ends soon however many there are."""
        if self.handshakes is not None:
            self.handshakes.begin_turn()
        self.turn_s = min(_TURN_S, max(_LEAST_TURN_S, _ROUND_S / max(1, turns)))

    def _poll_timeout_s(self) -> float | None:
        """How long the selector may wait."""
        if any(transport.waiting for transport in self._transports):
            return 0.0
        return _CHECK_S if self._transports or self._paused else None

    def _drain_connections(self) -> None:
        self._close_listeners()
        for transport in self._transports:
            transport.connection.drain()

    def _update_accepting(self) -> None:
        """Watch the listeners while one can accept; to watch one and not to accept would keep the loop awake."""
        able = not self._draining and not self._paused
        if able == self._accepting:
            return
        self._accepting = able
        for listener in self._listeners:
            if able:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
            else:
                self._selector.unregister(listener)

    def _close_listeners(self) -> None:
        """What is connected is taken: the last that closes the socket would reset it."""
        self._update_accepting()
        while self._listeners:
            listener = self._listeners.pop()
            for _ in range(0 if self._aborted else MAX_CONNECTIONS):
                if not self._accept(listener, selectors.EVENT_READ):
                    break
            listener.close()

    def _accept(self, listener: socket.socket, _events: int) -> bool:
        """Take one connection, if there is one; what stays in the kernel's queue may be another worker's."""
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError:
            self._pause()
            return False
        try:
            self._admit(sock, str(address[0]) if isinstance(address, tuple) else "")
        except OSError:
            # The client has gone already, or the kernel cannot watch it.
            sock.close()
        return True

    def _admit(self, sock: socket.socket, caller: str) -> None:
        """Accept one more, closing another where there are too many. Raises OSError."""
        if len(self._transports) >= MAX_CONNECTIONS:
            connection_to_close(self._transports).close_now()
        share = Share(self.memory)
        handshakes = self.handshakes if sock.family != socket.AF_UNIX else None
        try:
            share.take(CONNECTION_BYTES + (tls_socket.CONNECTION_BYTES if handshakes is not None else 0))
        except OcrsvcError:
            exempt = [transport for transport in self._transports if transport.exempt]
            if len(exempt) >= EXEMPT_CONNECTIONS:
                connection_to_close(exempt).close_now()
        connection = Connection(self, caller=caller)
        own = handshakes.begin(sock) if handshakes is not None else sock
        try:
            self._transports.add(Transport(own, connection, share, self._selector, self._transports, handshakes))
        except BaseException:
            share.release()
            raise

    def _pause(self) -> None:
        """No connection can be accepted, for want of files for example, and the loop would turn on and on for it."""
        self._paused = True
        message = "A connection cannot be accepted; it is tried again %g times a second"
        self._warn(message, 1 / _CHECK_S, exc_info=True)

    def _warn(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Log a warning, and the same again only after a while."""
        now_s = time.monotonic()
        if now_s - self._warned_s.get(message, -_WARN_INTERVAL_S) >= _WARN_INTERVAL_S:
            self._warned_s[message] = now_s
            LOGGER.warning(message, *values, exc_info=exc_info)


def _unguarded(_route: str, _name: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def connection_to_close(transports: Collection[Transport]) -> Transport:
    """The connection to close for a new one: of the address with the most, the one that is silent for longest.

    Those without a call under way go first.
    """
    counts = Counter(transport.connection.caller for transport in transports)
    return min(
        transports,
        key=lambda transport: (
            -counts[transport.connection.caller],
            transport.connection.calls > 0,
            transport.connection.active_s,
        ),
    )
