"""Who accepts gRPC connections in a worker, moves their bytes, runs their calls, and lets them end politely?

One loop owns all sockets and all HTTP/2 state, so that neither needs a lock and a client that reads slowly holds nobody
up; calls that need the engine run in a pool. The listening sockets are made once, in the arbiter, and are shared by all
workers: what one does not accept, another does, and nothing is lost when a worker ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from ocrsvc.errors import QueueFull
from ocrsvc.metrics import Numbers
from ocrsvc.rpc.codes import LOGGER
from ocrsvc.rpc.connection import Connection
from ocrsvc.rpc.counting import Account, Counting
from ocrsvc.rpc.method import Methods
from ocrsvc.rpc.stream import Stream
from ocrsvc.rpc.unread import Unread
from ocrsvc.serving.limits import Room, make_room

MAX_CONNECTIONS: Final = 1000
FIRST_BYTES_S: Final = 10.0
"""How long a connection may take to say that it speaks HTTP/2."""

MAX_AGE_S: Final = 300.0
"""After which a connection is asked to connect anew: channels stay for ever otherwise, and never meet a new worker."""

MAX_UNSENT_BYTES: Final = 1 << 20
"""While more is to be sent on a connection, nothing is read from it: what it sends makes yet more."""

_COMPLAIN_S: Final = 60.0
_LOOK_S: Final = 0.25
_LINGER_S: Final = 2.0
_RECEIVE_BYTES: Final = 1 << 18


class RpcServer:
    """The gRPC side of one worker.

    Args:
        listeners: Bound and listening; shared with other processes, closed here when this worker accepts no more.
        methods: What can be called.
        threads: Calls that run at once; more are answered UNAVAILABLE.
        most_bytes: Largest message.
        limit_s: Longest time that a call may take, and that one without a limit gets.
        room: Memory for messages, calls that one address may have under way beside the quick ones, and the guard; by
            default there is room for one of the largest messages, no limit for callers, and no guard.
        counting: Counts the calls; by default nobody reads the numbers.
        on_call: Called on the loop's thread, with 1 for each call that begins to run, and -1 when it has.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        methods: Methods,
        *,
        threads: int,
        most_bytes: int,
        limit_s: float,
        room: Room | None = None,
        counting: Counting | None = None,
        on_call: Callable[[int], object] = bool,
    ) -> None:
        self.methods = methods
        self.most_bytes = most_bytes
        self.limit_s = limit_s
        room = room or make_room(memory_bytes=0, most_bytes=most_bytes, caller_requests=0)
        self.memory, self.callers = room.memory, room.callers
        counting = counting or Counting(Numbers().common)
        self.begun: Callable[[], None] = counting.begin
        self.ended: Callable[[Account], None] = counting.end
        self._listeners = list(listeners)
        self._threads = threads
        self._on_call = on_call
        self._guarding = room.guard.request if room.guard is not None else _unguarded
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        self._selector = selectors.DefaultSelector()
        self._wires: set[_Wire] = set()
        self._done: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._running = 0
        self._in_line: deque[tuple[Connection, Stream]] = deque()
        self._accepting = False
        self._paused = False
        self._complained_s = -_COMPLAIN_S
        self._leaving = False
        self._aborted = False
        self._thread = threading.Thread(target=self._live, name="rpc-loop", daemon=True)
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)
        self._thread.start()

    def leave(self) -> None:
        """Accept no more, tell every client to go elsewhere, answer what is here. Safe in a signal's handler."""
        self._leaving = True
        self._wake()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until every call is answered, after `leave`; whether it is so."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Leave, and wait until every call is answered; after `timeout_s` the rest is cut off. Whether none was."""
        self.leave()
        clean = self.wait(timeout_s)
        self._aborted = True
        self._wake()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        os.close(self._wake_read)
        os.close(self._wake_write)
        return clean

    def run(self, connection: Connection, stream: Stream, answer: Callable[[], Any]) -> None:
        """See connection.Host."""
        if self._running >= self._threads:
            raise QueueFull(f"All {self._threads} threads are busy.", "Try again in a moment.")
        self._running += 1
        self._on_call(1)
        self._pool.submit(self._work, connection, stream, answer)

    def line_up(self, connection: Connection, stream: Stream) -> None:
        """See connection.Host."""
        self._in_line.append((connection, stream))

    def _work(self, connection: Connection, stream: Stream, answer: Callable[[], Any]) -> None:
        """Pool thread: make one answer."""
        outcome: bytes | BaseException
        try:
            with self._guarding(stream.account.path, stream.account.id):
                outcome = answer().SerializeToString()
        except BaseException as error:  # noqa: BLE001  the edge: whatever goes wrong is this call's own
            outcome = error
        self._done.append(partial(self._finish, connection, stream, outcome))
        self._wake()

    def _finish(self, connection: Connection, stream: Stream, outcome: bytes | BaseException) -> None:
        self._running -= 1
        self._on_call(-1)
        # Before this stream's next message: otherwise one stream could keep a thread for ever.
        while self._in_line and self._running < self._threads:
            waiting, next_stream = self._in_line.popleft()
            self._guarded(waiting, partial(waiting.resume, next_stream))
        self._guarded(connection, partial(connection.answered, stream, outcome))

    def _guarded(self, connection: Connection, turn: Callable[[], None]) -> None:
        """A turn of a connection; whatever goes wrong in it ends this one alone."""
        try:
            turn()
        except Exception:  # noqa: BLE001  the edge
            LOGGER.exception("A connection failed")
            for wire in [wire for wire in self._wires if wire.connection is connection]:
                wire.drop()

    def _wake(self) -> None:
        # A full pipe wakes the loop as well; a closed one has none.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")

    def _on_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _live(self) -> None:
        """The loop's thread."""
        looked_s = 0.0
        self._accept_or_not()
        while not self._aborted and not (self._leaving and not self._wires and not self._running):
            for wire in list(self._wires):
                wire.go_on()
            for key, events in self._selector.select(self._patience_s()):
                key.data(events)
            while self._done:
                self._done.popleft()()
            if self._leaving:
                self._part()
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S:
                looked_s, self._paused = now_s, False
                for wire in list(self._wires):
                    wire.look(now_s)
            self._accept_or_not()
            for wire in list(self._wires):
                wire.write()
        for wire in list(self._wires):
            wire.drop()
        self._leaving = True
        self._close_listeners()
        self._selector.close()

    def _patience_s(self) -> float | None:
        """How long the loop may sleep."""
        if any(wire.waiting for wire in self._wires):
            return 0.0
        return _LOOK_S if self._wires or self._paused else None

    def _part(self) -> None:
        self._close_listeners()
        for wire in self._wires:
            wire.connection.leave()

    def _accept_or_not(self) -> None:
        """Watch the listeners while there is room; to watch one and not to accept would keep the loop awake."""
        able = len(self._wires) < MAX_CONNECTIONS and not self._leaving and not self._paused
        if able == self._accepting:
            return
        self._accepting = able
        for listener in self._listeners:
            if able:
                self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
            else:
                self._selector.unregister(listener)

    def _close_listeners(self) -> None:
        self._accept_or_not()
        while self._listeners:
            self._listeners.pop().close()

    def _accept(self, listener: socket.socket, _events: int) -> None:
        """Take one connection; what stays in the kernel's queue may be another worker's."""
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._pause()
            return
        caller = str(address[0]) if isinstance(address, tuple) else ""
        self._wires.add(_Wire(sock, Connection(self, caller=caller), self._selector, self._wires))

    def _pause(self) -> None:
        """No connection can be accepted, for want of files for example, and the loop would turn on and on for it."""
        self._paused = True
        now_s = time.monotonic()
        if now_s - self._complained_s >= _COMPLAIN_S:
            self._complained_s = now_s
            LOGGER.exception("A connection cannot be accepted; it is tried again %g times a second", 1 / _LOOK_S)


def _unguarded(_route: str, _name: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


class _Wire:
    """The socket of one connection. Everything runs on the loop's thread."""

    def __init__(
        self, sock: socket.socket, connection: Connection, selector: selectors.BaseSelector, wires: set[_Wire]
    ) -> None:
        self.connection = connection
        self._sock = sock
        self._selector = selector
        self._wires = wires
        self._events = selectors.EVENT_READ
        self._unread = Unread()
        self._closing_s: float | None = None
        self._age_s = MAX_AGE_S * random.uniform(0.9, 1.1)  # noqa: S311  no secret: they should not all go together
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, self._events, self._on_ready)

    @property
    def waiting(self) -> bool:
        """Whether there is something to do without the socket: see Connection.waiting."""
        connection = self.connection
        return connection.waiting and self._closing_s is None and len(connection.take_out()) <= MAX_UNSENT_BYTES

    def go_on(self) -> None:
        """The connection's next turn, if it has more to do."""
        if self in self._wires and self.waiting:
            self._guarded(self.connection.go_on)

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop()
        elif self._closing_s is None:
            self._guarded(partial(self.connection.receive, data))

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception:  # noqa: BLE001  the edge
            # One connection's trouble, ours or h2's, must not end the loop that serves all others.
            LOGGER.exception("A connection failed")
            self.drop()

    def write(self) -> None:
        """Send what there is, as far as the client takes it; close what is finished."""
        if self not in self._wires:
            return
        out = self.connection.take_out()
        before = len(out)
        try:
            while out:
                sent = self._sock.send(out)
                del out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return
        self._unread.note(time.monotonic(), left=bool(out), taken=before - len(out))
        reading = 0 if len(out) > MAX_UNSENT_BYTES or self.waiting else selectors.EVENT_READ
        self._want(reading | (selectors.EVENT_WRITE if out else 0))
        if self.connection.broken or self.connection.finished:
            self._begin_close()

    def look(self, now_s: float) -> None:
        """Whatever is due."""
        connection = self.connection
        silent = not connection.greeted and now_s - connection.began_s > FIRST_BYTES_S
        if (
            silent
            or self._unread.is_stalled(now_s)
            or (self._closing_s is not None and now_s - self._closing_s > _LINGER_S)
        ):
            self.drop()
            return
        if now_s - connection.began_s > self._age_s:
            self._guarded(connection.part)
        self._guarded(connection.look)

    def drop(self) -> None:
        """Close at once."""
        if self in self._wires:
            self._wires.discard(self)
            self._selector.unregister(self._sock)
            self._sock.close()
            self.connection.close()

    def _begin_close(self) -> None:
        """Say that nothing more comes, and wait a moment for the client to close, so that it reads its last answer."""
        if self._closing_s is None:
            self._closing_s = time.monotonic()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def _want(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._selector.modify(self._sock, events, self._on_ready)
