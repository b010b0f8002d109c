"""The last failures of the service, in shared memory: when, by whose fault, which code, route and request.

Never what was sent: the route is the rule that matched, not the path that was asked. Each worker's slot has rings of
its own, one for each kind of fault, so that a flood of one kind displaces no other; only the worker in the slot writes
them, and they stay when it dies, until its successors have written over them.
"""

from __future__ import annotations

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
"""Failures of each kind that a slot keeps."""

_FAULTS: Final[tuple[Fault, ...]] = ("service", "refused", "caller")
_ID_CHARS: Final = 128
_CODE_CHARS: Final = 48
_ROUTE_CHARS: Final = 96
_ADAPTER_CHARS: Final = 32


class _Record(ctypes.Structure):
    """The time is written last, and is 0 while the rest is written."""

    _fields_ = (
        ("when_s", ctypes.c_double),
        ("status", ctypes.c_int64),
        ("id", ctypes.c_char * _ID_CHARS),
        ("code", ctypes.c_char * _CODE_CHARS),
        ("route", ctypes.c_char * _ROUTE_CHARS),
        ("adapter", ctypes.c_char * _ADAPTER_CHARS),
    )


class _Rings(ctypes.Structure):
    """Of one slot: how many of each kind were ever written, and the last of them."""

    _fields_ = (("written", ctypes.c_int64 * len(_FAULTS)), ("records", _Record * KEPT * len(_FAULTS)))


@dataclass(frozen=True, slots=True)
class RecentError:
    """One failure.

    Attributes:
        when_s: Unix seconds.
        fault: Whose: the service's, the caller's, or nobody's where a healthy service refused.
        status: Of HTTP; of a call over gRPC that of the same failure over HTTP, 0 where there is none.
        code: As reported to the client.
        adapter: The API adapter.
        route: The rule that matched; empty where none did.
        id: Of the request.
        slot: Of the worker.
    """

    when_s: float
    fault: Fault
    status: int
    code: str
    adapter: str
    route: str
    id: str
    slot: int


def fault_of(failure: OcrsvcError) -> Fault:
    """Whose fault a failure is."""
    if failure.status < OcrsvcError.status:
        return "caller"
    return "refused" if isinstance(failure, Refused) else "service"


class ErrorRecorder:
    """Writes the failures of one worker. All methods may be called from any thread of that process."""

    def __init__(self, rings: _Rings, clock: Callable[[], float]) -> None:
        self._rings = rings
        self._clock = clock
        self._lock = threading.Lock()

    def note(self, fault: Fault, status: int, code: str, *, adapter: str, route: str, request_id: str) -> None:
        """Keep a failure instead of the oldest of its kind."""
        number = _FAULTS.index(fault)
        with self._lock:
            record = self._rings.records[number][self._rings.written[number] % KEPT]
            record.when_s = 0.0
            record.status, record.id, record.code = status, _fitting(request_id, _ID_CHARS), _fitting(code, _CODE_CHARS)
            record.route, record.adapter = _fitting(route, _ROUTE_CHARS), _fitting(adapter, _ADAPTER_CHARS)
            record.when_s = self._clock()
            self._rings.written[number] += 1


class RecentErrors:
    """The failures of all workers. Make it in the arbiter, before any fork.

    Args:
        slots: How many workers may live at once. Memory is taken only for those that fail.
        clock: Unix seconds.
    """

    def __init__(self, slots: int = 1, clock: Callable[[], float] = time.time) -> None:
        self._rings = shared_array(_Rings, slots)
        self._clock = clock

    def recorder(self, slot: int = 0) -> ErrorRecorder:
        """Worker, once, after its fork: what it notes its failures with."""
        return ErrorRecorder(self._rings[slot], self._clock)

    def read(self, slots: int = 1) -> list[RecentError]:
        """What the first slots keep, the latest first."""
        found = [error for slot in range(slots) for error in _kept(slot, self._rings[slot])]
        return sorted(found, key=lambda error: -error.when_s)


def _kept(slot: int, rings: _Rings) -> Iterator[RecentError]:
    for number, fault in enumerate(_FAULTS):
        for shared in rings.records[number][: min(rings.written[number], KEPT)]:
            record = _Record.from_buffer_copy(shared)
            if record.when_s:
                yield RecentError(
                    record.when_s,
                    fault,
                    record.status,
                    code=_text(record.code),
                    adapter=_text(record.adapter),
                    route=_text(record.route),
                    id=_text(record.id),
                    slot=slot,
                )


def _text(field: bytes) -> str:
    return field.decode("ascii", "replace")


def _fitting(text: str, chars: int) -> bytes:
    return text.encode("ascii", "replace")[:chars]
