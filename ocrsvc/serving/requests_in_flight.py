"""The requests that each worker's threads work on, in shared memory that the arbiter makes and workers inherit by fork.

Each worker has rows of its own, each written by one thread at a time and without a lock; the arbiter reads them after
the worker was killed or died, to find which requests were under way. Never holds what a request contains: its id,
route, size and hash only.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ROWS: Final = 128
"""Requests of one worker on record at once; more are served all the same, without a record."""

_STAGE: Final = struct.Struct("<q")
_THREAD: Final = struct.Struct("<qdd")  # thread id, its CPU seconds so far, monotonic seconds
_REQUEST: Final = struct.Struct("<q16s128s96s")  # size, digest, id, route
_THREAD_AT: Final = _STAGE.size
_REQUEST_AT: Final = _THREAD_AT + _THREAD.size
_ROW_BYTES: Final = _REQUEST_AT + _REQUEST.size
_ID_BYTES: Final = 128
_ROUTE_BYTES: Final = 96
_NO_DIGEST: Final = bytes(16)
_SKETCH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class BodyFingerprint:
    """Identifies a body; see crash_denylist.Fingerprint."""

    digest: bytes

    @property
    def sketch(self) -> bytes:
        """The first bytes of the digest."""
        return self.digest[:_SKETCH_BYTES]


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


@dataclass(frozen=True, slots=True)
class InFlight:
    """One request that a thread works on.

    Attributes:
        id, route: As in the access log; both may be cut.
        size: Bytes of its body.
        fingerprint: Of its body; None for a request without one.
        stage: What the thread does.
        thread: Its id for the operating system.
        cpu_s: CPU seconds of the thread when the stage began.
        began_s: When that was, monotonic seconds.
    """

    id: str
    route: str
    size: int
    fingerprint: BodyFingerprint | None
    stage: Stage
    thread: int
    cpu_s: float
    began_s: float


class InFlightTable:
    """The rows of all workers. Make it before any fork.

    Args:
        workers: Workers that there may be.
        rows: Of each.
    """

    def __init__(self, workers: int, rows: int = ROWS) -> None:
        self._rows = rows
        self._memory = mmap.mmap(-1, workers * rows * _ROW_BYTES)

    def clear(self, worker: int) -> None:
        """Arbiter, before a fork: clear the rows that an earlier worker left. Worker, at its end: clear its own."""
        for row in range(self._rows):
            _STAGE.pack_into(self._memory, self._at(worker, row), Stage.FREE)

    def read(self, worker: int) -> list[InFlight]:
        """What a worker works on now, or worked on when it ended."""
        found = (self._read(self._at(worker, row)) for row in range(self._rows))
        return [request for request in found if request is not None]

    def recorder(self, worker: int) -> Recorder:
        """Worker: what writes its rows."""
        return Recorder(self._memory, [self._at(worker, row) for row in range(self._rows)])

    def _at(self, worker: int, row: int) -> int:
        return (worker * self._rows + row) * _ROW_BYTES

    def _read(self, at: int) -> InFlight | None:
        (stage,) = _STAGE.unpack_from(self._memory, at)
        if not stage:
            return None
        thread, cpu_s, began_s = _THREAD.unpack_from(self._memory, at + _THREAD_AT)
        size, digest, name, route = _REQUEST.unpack_from(self._memory, at + _REQUEST_AT)
        fingerprint = None if digest == _NO_DIGEST else BodyFingerprint(digest)
        return InFlight(_text(name), _text(route), size, fingerprint, Stage(stage), thread, cpu_s, began_s)


class Recorder:
    """Hands out one worker's rows to its threads. Any thread may call `open`."""

    def __init__(self, memory: mmap.mmap, places: list[int]) -> None:
        self._memory = memory
        self._free = deque(places)

    def open(self, request: bytes, stage: Stage) -> Row | None:
        """Record a packed request (see `pack_request`) as this thread's work; None when all rows are taken."""
        try:
            at = self._free.popleft()
        except IndexError:
            return None
        _REQUEST.pack_into(self._memory, at + _REQUEST_AT, *_REQUEST.unpack(request))
        row = Row(self._memory, at, self._free)
        row.enter(stage)
        return row


class Row:
    """One row, used by the thread that opened it."""

    __slots__ = ("_at", "_free", "_memory")

    def __init__(self, memory: mmap.mmap, at: int, free: deque[int]) -> None:
        self._memory, self._at, self._free = memory, at, free

    def enter(self, stage: Stage) -> None:
        """A stage begins; CPU seconds count from here."""
        now = (threading.get_native_id(), time.thread_time(), time.monotonic())
        _THREAD.pack_into(self._memory, self._at + _THREAD_AT, *now)
        # Last: a row counts from the moment on when it has a stage.
        _STAGE.pack_into(self._memory, self._at, stage)

    def close(self) -> None:
        """Give the row back."""
        _STAGE.pack_into(self._memory, self._at, Stage.FREE)
        self._free.append(self._at)


def pack_request(name: str, route: str, size: int, digest: bytes) -> bytes:
    """A request as it lies in a row."""
    texts = (name.encode("utf-8", "replace")[:_ID_BYTES], route.encode("utf-8", "replace")[:_ROUTE_BYTES])
    return _REQUEST.pack(size, digest, *texts)


def _text(packed: bytes) -> str:
    """Text that a client chose, fit for a line of the log."""
    text = packed.rstrip(b"\0").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() and letter != " " else "?" for letter in text)
