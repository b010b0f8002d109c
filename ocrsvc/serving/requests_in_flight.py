"""The requests that each worker's threads work on, in shared memory that the arbiter makes and workers inherit by fork.

Each worker has rows of its own, each written by one thread at a time and without a lock; the arbiter reads them after
the worker was killed or died, to find which requests were under way. Never holds what a request contains: its id,
route, size and hash only.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

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
    """A request as it lies in a row, see `pack_request`."""

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

    def close(self, row: Row) -> None:
        """Take a row back."""
        row.stage = Stage.FREE
        self._free.append(row)


def pack_request(name: str, route: str, size: int, digest: bytes) -> PackedRequest:
    """A request as it lies in a row; the digest is empty for a request without a body."""
    texts = name.encode("utf-8", "replace")[:_ID_BYTES], route.encode("utf-8", "replace")[:_ROUTE_BYTES]
    return PackedRequest(size, tuple(digest), *texts)


def _in_flight(row: Row, stage: Stage) -> InFlight:
    request, digest = row.request, bytes(row.request.digest)
    return InFlight(
        _text(request.id),
        _text(request.route),
        request.size,
        b"" if digest == _NO_DIGEST else digest,
        stage,
        row.thread,
        row.cpu_s,
    )


def _text(packed: bytes) -> str:
    """Text that a client chose, fit for a line of the log."""
    text = packed.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() and letter != " " else "?" for letter in text)
