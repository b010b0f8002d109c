"""The requests that each worker's threads work on, in shared memory, and the bodies that stopped a worker.

A request that keeps the interpreter to itself (a regular expression that never ends, a C function that holds the lock)
stops every thread of its worker, and the arbiter kills the worker for it. So each request is on record while code runs
that depends on its body: the arbiter makes the table, workers inherit it by fork, and each writes rows of its own, one
thread at a time and without a lock. When a worker was killed or died, the arbiter reads which requests were under way
(see `worker.hung_requests`) and puts the hash of a body into the denylist that all workers share. The table never holds
what a request contains: its id, route, size and hash only.
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

ROWS: Final = 128
"""Requests of one worker on record at once; more are served all the same, without a record."""

_ID_BYTES: Final = 128
_ROUTE_BYTES: Final = 96
_NO_DIGEST: Final = bytes(16)


class Stage(IntEnum):
    """What a thread does for a request. Only the last two run code that could hold the interpreter."""

    FREE = 0
    WAITING = 1
    WORKING = 2
    DECODING = 3

    @property
    def is_risky(self) -> bool:
        """Whether code runs that depends on what was sent."""
        return self in {Stage.WORKING, Stage.DECODING}


class PackedRequest(ctypes.Structure):
    """A request as it lies in a row; the digest is zero for a request without a body."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("digest", ctypes.c_uint8 * len(_NO_DIGEST)),
        ("id", ctypes.c_char * _ID_BYTES),
        ("route", ctypes.c_char * _ROUTE_BYTES),
    )


class Row(ctypes.Structure):
    """One request on record, used by the thread that opened it; the fields are those of InFlight."""

    _fields_ = (
        ("stage", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("cpu_s", ctypes.c_double),
        ("request", PackedRequest),
    )

    def enter(self, stage: Stage) -> None:
        """A stage begins; CPU seconds count from here."""
        self.thread, self.cpu_s = threading.get_native_id(), time.thread_time()
        # Last: a row counts from the moment on when it has a stage.
        self.stage = stage


@dataclass(frozen=True, slots=True)
class InFlight:
    """One request that a thread works on.

    Id and route are as in the access log, and may be cut; size and digest are those of the body, the digest empty
    without one. The thread's id is the operating system's; `cpu_s` are its CPU seconds when the stage began.
    """

    id: str
    route: str
    size: int
    digest: bytes
    stage: Stage
    thread: int
    cpu_s: float


class InFlightTable:
    """The rows of all workers that there may be. Make it before any fork."""

    def __init__(self, workers: int, rows: int = ROWS) -> None:
        self._count = rows
        self._rows = shared_array(Row, workers * rows)

    def clear(self, worker: int) -> None:
        """Arbiter, before a fork: clear the rows that an earlier worker left. Worker, at its end: clear its own."""
        for row in self._rows_of(worker):
            row.stage = Stage.FREE

    def read(self, worker: int) -> list[InFlight]:
        """What a worker works on now, or worked on when it ended."""
        return [_in_flight(row, Stage(stage)) for row in self._rows_of(worker) if (stage := row.stage)]

    def recorder(self, worker: int) -> Recorder:
        """Worker: what writes its rows."""
        return Recorder(self._rows_of(worker))

    def _rows_of(self, worker: int) -> list[Row]:
        return self._rows[worker * self._count : (worker + 1) * self._count]


def _in_flight(row: Row, stage: Stage) -> InFlight:
    sent, digest = row.request, bytes(row.request.digest)
    digest = b"" if digest == _NO_DIGEST else digest
    return InFlight(_text(sent.id), _text(sent.route), sent.size, digest, stage, row.thread, row.cpu_s)


def _text(packed: bytes) -> str:
    """Text that a client chose, fit for a line of the log."""
    text = packed.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() and letter != " " else "?" for letter in text)


class Recorder:
    """Hands out one worker's rows to its threads. Any thread may call."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._free = deque(rows)

    def open(self, request: PackedRequest, stage: Stage) -> Row | None:
        """Record a request as this thread's work; None when all rows are taken."""
        try:
            row = self._free.popleft()
        except IndexError:
            return None
        row.request = request
        row.enter(stage)
        return row

    def close(self, row: Row | None) -> None:
        """Take a row back."""
        if row is not None:
            row.stage = Stage.FREE
            self._free.append(row)


def digest_of(body: bytes | memoryview) -> bytes:
    """16 bytes for the denylist; 0.1 ms for 130 kB, during which other threads run."""
    return sha256(body).digest()[: len(_NO_DIGEST)]


class RequestGuard:
    """What one worker's threads use: its rows of the table, and the bodies that stopped any worker."""

    def __init__(self, recorder: Recorder, denylist: CrashDenylist) -> None:
        self.recorder = recorder
        self.denylist = denylist

    @contextmanager
    def request(self, route: str, name: str = "") -> Iterator[None]:
        """This thread serves one request within the block; see `take_body`."""
        work = GuardedRequest(self, route, name)
        token = _CURRENT.set(work)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            work.close()


class GuardedRequest:
    """One request in the thread that serves it."""

    def __init__(self, guard: RequestGuard, route: str, name: str) -> None:
        self._guard, self._route, self._name = guard, route, name
        self._digest = b""
        self._packed: PackedRequest | None = None
        self._row: Row | None = None

    def begin(self, body: bytes | memoryview, name: str) -> None:
        """Look a body up, and be on record from here on. Raises RequestStopsWorker."""
        self._digest = digest_of(body) if body else b""
        if self._digest and self._guard.denylist.crashes(self._digest) >= CRASHES:
            raise RequestStopsWorker(
                "A request with this body kept a worker from answering, and the worker was killed with all that it "
                "did; it is not tried again for a while.",
                "Send it in another form, and report it with the request if it is harmless.",
            )
        self._guard.recorder.close(self._row)
        shown, route = ((name or self._name or "-"), _ID_BYTES), (self._route, _ROUTE_BYTES)
        texts = (text.encode("utf-8", "replace")[:most] for text, most in (shown, route))
        self._packed = PackedRequest(len(body), tuple(self._digest), *texts)
        self._row = self._guard.recorder.open(self._packed, Stage.WORKING)

    def enter(self, stage: Stage) -> None:
        """Another stage begins."""
        if self._row is not None:
            self._row.enter(stage)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Another thread decodes an image of the request within the block, and is on record too."""
        row = self._guard.recorder.open(self._packed, Stage.DECODING) if self._packed else None
        try:
            yield
        finally:
            self._guard.recorder.close(row)

    def close(self) -> None:
        """The request is over: whatever a worker died of before, with this request under way, was something else."""
        row, self._row = self._row, None
        self._guard.recorder.close(row)
        if row is not None and self._digest and 0 < self._guard.denylist.crashes(self._digest) < CRASHES:
            self._guard.denylist.clear(self._digest)


_CURRENT: Final[ContextVar[GuardedRequest | None]] = ContextVar("guarded request", default=None)


def take_body(body: bytes | memoryview, name: str = "") -> None:
    """The body of this thread's request is there, and is about to be parsed. Raises RequestStopsWorker.

    Does nothing where no RequestGuard guards this thread. The name is the request's id.
    """
    if work := _CURRENT.get():
        work.begin(body, name)


def current_request() -> GuardedRequest | None:
    """The request that this thread serves, for other threads that do a part of it."""
    return _CURRENT.get()


@contextmanager
def waiting() -> Iterator[None]:
    """This thread only waits within the block, for the engine or for a permit."""
    work = _CURRENT.get()
    if work is None:
        yield
        return
    work.enter(Stage.WAITING)
    try:
        yield
    finally:
        work.enter(Stage.WORKING)


def decoding_for(work: GuardedRequest | None) -> AbstractContextManager[None]:
    """This thread, which is not the request's own, decodes an image of it within the block."""
    return nullcontext() if work is None else work.decoding()
