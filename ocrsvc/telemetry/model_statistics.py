"""How many requests for the model were answered, and how long each stage took, counted for the whole service.

A client asks twice and takes the difference, and the two calls may meet different workers. So the counts live in memory
that the arbiter makes and all workers share: each worker adds to a row of its own, and each answer sums them up. A row
is never cleared, so a count never falls.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # The arbiter makes the counts, and loads no numeric library.
    from ocrsvc.records import Reading

_NS: Final = 1_000_000_000


class Counts(ctypes.Structure):
    """What is counted. Durations are nanoseconds.

    Attributes:
        success, success_ns: Requests answered, and how long they took altogether.
        fail, fail_ns: Requests that failed.
        images: Images read.
        queue_ns, input_ns, infer_ns: Of these images: waiting, being decoded, being read.
        last_ms: When the last request ended, milliseconds since 1970.
    """

    success: int
    success_ns: int
    fail: int
    fail_ns: int
    images: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    last_ms: int

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("success", "success_ns", "fail", "fail_ns", "images")),
        *((name, ctypes.c_uint64) for name in ("queue_ns", "input_ns", "infer_ns", "last_ms")),
    ]


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of all workers; the fields are those of Counts."""

    success: int
    success_ns: int
    fail: int
    fail_ns: int
    images: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    last_ms: int


class Statistics:
    """The counts. Make it in the arbiter, before any fork; each worker sets its own `row`.

    Args:
        rows: How many workers there may ever be at once.
    """

    def __init__(self, rows: int = 1) -> None:
        self._rows = (Counts * rows).from_buffer(mmap.mmap(-1, rows * ctypes.sizeof(Counts)))
        self._lock = threading.Lock()
        self.row = 0

    def record_success(self, readings: list[Reading], spent_s: float) -> None:
        """One request was answered with these readings."""
        with self._lock:
            counts = self._rows[self.row]
            counts.success += 1
            counts.success_ns += int(spent_s * _NS)
            counts.images += len(readings)
            for reading in readings:
                counts.queue_ns += int(reading.timing.queue_s * _NS)
                counts.input_ns += int(reading.timing.decode_s * _NS)
                counts.infer_ns += int(reading.timing.engine_s * _NS)
            counts.last_ms = int(time.time() * 1000)

    def record_failure(self, spent_s: float) -> None:
        """One request failed."""
        with self._lock:
            counts = self._rows[self.row]
            counts.fail += 1
            counts.fail_ns += int(spent_s * _NS)

    def totals(self) -> Totals:
        """Of all workers together."""
        used = [counts for counts in self._rows if counts.success or counts.fail]
        sums = {name: sum(getattr(counts, name) for counts in used) for name in Totals.__annotations__}
        return Totals(**sums | {"last_ms": max((counts.last_ms for counts in used), default=0)})
