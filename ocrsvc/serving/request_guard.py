"""Records each worker's running requests in shared memory, and refuses bodies that blocked or killed a worker.

A request that blocks the interpreter (a catastrophic regular expression, a C function that holds the GIL) stops every
thread of its worker, and the arbiter kills the worker. So each request is recorded while code runs that depends on its
body. The arbiter creates the table, and workers inherit it by fork. Each worker writes only its own rows, one thread
per row, without a lock. When a worker is killed or dies, the arbiter reads which requests it was running (see
`worker.hung_requests`), and adds the hash of a body to the crash denylist, which all workers share. The table holds the
id, route, size and hash of a request, never its content.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Final

from ocrsvc.errors import RequestStopsWorker
from ocrsvc.serving.crash_denylist import CRASHES, CrashDenylist
from ocrsvc.system.shared_memory import shared_array

ROWS: Final = 128  # recorded requests per worker; more requests are served, but without a record
_ID_BYTES: Final = 128
_ROUTE_BYTES: Final = 96
_NO_DIGEST: Final = bytes(16)


class Stage(IntEnum):
    """What a thread is doing for a request. Only the last two stages run code that could block the interpreter."""

    FREE = 0
    WAITING = 1
    WORKING = 2
    DECODING = 3

    @property
    def is_risky(self) -> bool:
        """Whether this stage runs code that depends on the request's content."""
        return self in {Stage.WORKING, Stage.DECODING}


class PackedRequest(ctypes.Structure):
    """A request as stored in a row; the digest is zero for a request without a body."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("digest", ctypes.c_uint8 * len(_NO_DIGEST)),
        ("id", ctypes.c_char * _ID_BYTES),
        ("route", ctypes.c_char * _ROUTE_BYTES),
    )


class Row(ctypes.Structure):
    """The record of one running request, written by the thread that opened it; InFlight explains the fields."""

    _fields_ = (
        ("stage", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("cpu_s", ctypes.c_double),
        ("request", PackedRequest),
    )

    def enter(self, stage: Stage) -> None:
        """Begin a stage, and store the thread's CPU time so far."""
        self.thread = threading.get_native_id()
        self.cpu_s = time.thread_time()
        # Set the stage last, because the arbiter reads the row as soon as it has a stage.
        self.stage = stage


@dataclass(frozen=True, slots=True)
class InFlight:
    """One request that a thread is working on.

    `id` and `route` are as in the access log, possibly truncated; `size` and `digest` are the body's (`digest` is empty
    without a body). `thread` is the system's thread id; `cpu_s` is the thread's CPU time when the stage began.
    """

    id: str
    route: str
    size: int
    digest: bytes
    stage: Stage
    thread: int
    cpu_s: float


class InFlightTable:
    """The rows of all workers, in shared memory. Create it before forking."""

    def __init__(self, workers: int, rows: int = ROWS) -> None:
        self._count = rows
        self._rows = shared_array(Row, workers * rows)

    def clear(self, worker: int) -> None:
        """Clear a worker's request records; the arbiter calls this before each fork, a worker when it ends."""
        for row in self._rows_of(worker):
            row.stage = Stage.FREE

    def read(self, worker: int) -> list[InFlight]:
        """The requests that a worker is running, or was running when it ended."""
        return [_in_flight(row, Stage(stage)) for row in self._rows_of(worker) if (stage := row.stage)]

    def recorder(self, worker: int) -> Recorder:
        """The object through which this worker records its running requests."""
        return Recorder(self._rows_of(worker))

    def _rows_of(self, worker: int) -> list[Row]:
        return self._rows[worker * self._count : (worker + 1) * self._count]


def _in_flight(row: Row, stage: Stage) -> InFlight:
    request, digest = row.request, bytes(row.request.digest)
    digest = b"" if digest == _NO_DIGEST else digest
    return InFlight(_text(request.id), _text(request.route), request.size, digest, stage, row.thread, row.cpu_s)


def _text(packed: bytes) -> str:
    """Decode text that a client sent, and replace characters that would garble a log line."""
    text = packed.decode("utf-8", "replace")
    return "".join(character if character.isprintable() and character != " " else "?" for character in text)


class Recorder:
    """Assigns a worker's request records (rows) to its threads; thread-safe."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._free = deque(rows)

    def open(self, request: PackedRequest, stage: Stage) -> Row | None:
        """Record that this thread works on a request; returns None if all rows are in use."""
        try:
            row = self._free.popleft()
        except IndexError:
            return None
        row.request = request
        row.enter(stage)
        return row

    def close(self, row: Row | None) -> None:
        """Free a row for another request."""
        if row is not None:
            row.stage = Stage.FREE
            self._free.append(row)


def digest_of(body: bytes | memoryview) -> bytes:
    """A body's key in the crash denylist, 16 bytes; takes 0.1 ms for 130 kB, without the GIL."""
    return sha256(body).digest()[: len(_NO_DIGEST)]


class RequestGuard:
    """Guards one worker: records its running requests, and refuses bodies that blocked or killed a worker before."""

    def __init__(self, recorder: Recorder, denylist: CrashDenylist) -> None:
        self.recorder = recorder
        self.denylist = denylist

    @contextmanager
    def request(self, route: str, name: str = "") -> Iterator[None]:
        """Guard the request that this thread serves inside the block; it is recorded when `take_body` is called."""
        request = GuardedRequest(self, route, name)
        token = _CURRENT.set(request)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            request.close()


class GuardedRequest:
    """One running request: checked against the crash denylist and recorded, by the thread that serves it."""

    def __init__(self, guard: RequestGuard, route: str, name: str) -> None:
        self._guard = guard
        self._route = route
        self._name = name
        self._digest = b""
        self._packed: PackedRequest | None = None
        self._row: Row | None = None

    def begin(self, body: bytes | memoryview, name: str) -> None:
        """Check the body against the denylist and record the request. Raises RequestStopsWorker."""
        self._digest = digest_of(body) if body else b""
        if self._digest and self._guard.denylist.crashes(self._digest) >= CRASHES:
            raise RequestStopsWorker(
                "A request with this body blocked or killed a worker, so it is refused for a while.",
                "Send the content in another form; if the request is harmless, report it.",
            )
        self._guard.recorder.close(self._row)
        request_id = (name or self._name or "-").encode("utf-8", "replace")[:_ID_BYTES]
        route = self._route.encode("utf-8", "replace")[:_ROUTE_BYTES]
        self._packed = PackedRequest(len(body), tuple(self._digest), request_id, route)
        self._row = self._guard.recorder.open(self._packed, Stage.WORKING)

    def enter(self, stage: Stage) -> None:
        """Record that the request enters this stage."""
        if self._row is not None:
            self._row.enter(stage)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Record, while the block runs, that another thread decodes an image of this request."""
        row = self._guard.recorder.open(self._packed, Stage.DECODING) if self._packed else None
        try:
            yield
        finally:
            self._guard.recorder.close(row)

    def close(self) -> None:
        """End the request, and forget earlier crashes with its body unless they are already enough to refuse it."""
        row, self._row = self._row, None
        self._guard.recorder.close(row)
        if row is not None and self._digest and 0 < self._guard.denylist.crashes(self._digest) < CRASHES:
            self._guard.denylist.clear(self._digest)


_CURRENT: Final[ContextVar[GuardedRequest | None]] = ContextVar("guarded request", default=None)


def take_body(body: bytes | memoryview, name: str = "") -> None:
    """Check and record a body before parsing it; `name` is the request's id. Raises RequestStopsWorker."""
    if request := _CURRENT.get():
        request.begin(body, name)


def current_request() -> GuardedRequest | None:
    """The request that this thread serves, to pass to other threads that work on it."""
    return _CURRENT.get()


@contextmanager
def waiting() -> Iterator[None]:
    """Record, while the block runs, that this thread only waits, for an engine or a permit."""
    request = _CURRENT.get()
    if request is None:
        yield
        return
    request.enter(Stage.WAITING)
    try:
        yield
    finally:
        request.enter(Stage.WORKING)


def decoding_for(request: GuardedRequest | None) -> AbstractContextManager[None]:
    """Record, while the block runs, that this thread decodes an image for a request of another thread."""
    return nullcontext() if request is None else request.decoding()
