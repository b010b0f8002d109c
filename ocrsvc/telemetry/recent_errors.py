"""The latest failures of the service, in shared memory: time, kind of fault, code, route and request id.

No client input is stored: the route is the URL rule that matched. Each worker slot has one ring buffer per kind of
fault, so that many failures of one kind do not overwrite the others. The buffers outlive the worker.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ocrsvc.errors import OcrsvcError, Refused
from ocrsvc.system.shared_memory import shared_array

Fault = Literal["service", "refused", "caller"]

KEPT: Final = 20
"""How many failures of each kind are kept per worker slot."""

_FAULTS: Final[tuple[Fault, ...]] = ("service", "refused", "caller")


class _Record(ctypes.Structure):
    # when_s is 0 while the record is being written.
    _fields_ = (
        ("when_s", ctypes.c_double),
        ("status", ctypes.c_int64),
        ("id", ctypes.c_char * 128),
        ("code", ctypes.c_char * 48),
        ("route", ctypes.c_char * 96),
        ("adapter", ctypes.c_char * 32),
    )


class _Rings(ctypes.Structure):
    # For each kind of fault: the number of records written since the start, and a ring buffer of the last ones.
    _fields_ = (("written", ctypes.c_int64 * len(_FAULTS)), ("records", _Record * KEPT * len(_FAULTS)))


@dataclass(frozen=True, slots=True)
class RecentError:
    """One failure. `when_s` is Unix time; `status` is the HTTP status (for gRPC calls too), or 0 if there is none."""

    when_s: float
    fault: Fault
    status: int
    code: str
    adapter: str
    route: str
    id: str
    slot: int


def fault_of(failure: OcrsvcError) -> Fault:
    """Classify a failure: "caller" or "service" is at fault, or a healthy service "refused" the request."""
    if failure.status < OcrsvcError.status:
        return "caller"
    return "refused" if isinstance(failure, Refused) else "service"


class ErrorRecorder:
    """Writes the failures of one worker. Thread-safe within its process."""

    def __init__(self, rings: _Rings, clock: Callable[[], float]) -> None:
        self._rings = rings
        self._clock = clock
        self._lock = threading.Lock()

    def note(self, fault: Fault, status: int, code: str, *, adapter: str, route: str, request_id: str) -> None:
        """Record a failure, which overwrites the oldest one of the same kind of fault."""
        number = _FAULTS.index(fault)
        texts = {"id": request_id, "code": code, "route": route, "adapter": adapter}
        with self._lock:
            record = self._rings.records[number][self._rings.written[number] % KEPT]
            record.when_s = 0.0
            record.status = status
            for name, text in texts.items():
                setattr(record, name, text.encode("ascii", "replace")[: getattr(_Record, name).size])
            record.when_s = self._clock()
            self._rings.written[number] += 1


class RecentErrors:
    """The latest failures of all workers. Create it in the arbiter before any fork; only used slots take memory."""

    def __init__(self, slots: int = 1, clock: Callable[[], float] = time.time) -> None:
        self._rings = shared_array(_Rings, slots)
        self._clock = clock

    def recorder(self, slot: int = 0) -> ErrorRecorder:
        """Call once in a worker, after its fork; returns the writer of its ring buffers."""
        return ErrorRecorder(self._rings[slot], self._clock)

    def read(self, slots: int = 1) -> list[RecentError]:
        """The failures of the first `slots` workers, latest first."""
        errors = [error for slot in range(slots) for error in _kept(slot, self._rings[slot])]
        return sorted(errors, key=lambda error: -error.when_s)


def _kept(slot: int, rings: _Rings) -> Iterator[RecentError]:
    for number, fault in enumerate(_FAULTS):
        for shared in rings.records[number][: min(rings.written[number], KEPT)]:
            record = _Record.from_buffer_copy(shared)
            if record.when_s:
                texts = (record.code, record.adapter, record.route, record.id)
                code, adapter, route, request_id = (text.decode("ascii") for text in texts)
                yield RecentError(record.when_s, fault, record.status, code, adapter, route, request_id, slot)
