"""The state of all workers, in shared memory that the arbiter makes and every worker inherits by fork.

One head, and one entry for each living worker. The arbiter allocates and frees entries, grants successors and counts; a
worker writes its own readings. Each field is one aligned 8-byte store: no lock is needed, and a killed worker leaves no
half-written number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ocrsvc.system.shared_memory import shared_array

SLOTS: Final = 1024
NO_SUCCESSOR: Final = -1


class Reason(IntEnum):
    """Why a worker is replaced. NONE is what the worker table holds while there is no reason."""

    NONE = 0
    MAX_REQUESTS = 1
    MAX_AGE = 2
    RSS_SOFT = 3
    RSS_HARD = 4
    RSS_GROWTH = 5
    RELOAD = 6
    OPERATOR = 7
    GPU_SOFT = 8
    GPU_HARD = 9
    GPU_GROWTH = 10
    STUCK = 11

    @property
    def pressure(self) -> int:
        """Which reasons go first: 3 at once, 2 before memory or threads run out, 1 in turn; 0 is no reason."""
        if self in (Reason.RSS_HARD, Reason.GPU_HARD):
            return 3
        if self in (Reason.RSS_SOFT, Reason.RSS_GROWTH, Reason.GPU_SOFT, Reason.GPU_GROWTH, Reason.STUCK):
            return 2
        return int(self is not Reason.NONE)

    @property
    def is_urgent(self) -> bool:
        """Whether the worker stops accepting at once, without waiting for a successor."""
        return self.pressure == 3


class State(IntEnum):
    """Where a worker is in its life. A READY worker with a reason asks for a successor, and serves on meanwhile."""

    FREE = 0
    BOOTING = 1
    READY = 2
    DRAINING = 3


class Granted(IntEnum):
    """What the arbiter has allowed a worker that asks to be replaced."""

    NOTHING = 0
    SUCCESSOR = 1
    DRAIN_FIRST = 2


class WorkerEntry(ctypes.Structure):
    """One worker. Times are monotonic seconds, which are the same in all processes of a machine.

    Attributes:
        pid: 0 until the worker itself has written it.
        successor: The number of its successor's entry; NO_SUCCESSOR before the fork.
        gpu: The GPU it computes on, by its number among all that the service has used since its start.
        gpu_bytes, gpu_max_step_bytes: Its GPU memory, and the most that this grew between two checks.
        gpu_busy_ratio: The share of the last second in which the GPU computed.
        gpu_read_s, gpu_busy_read_s: When these were read; 0 without a reading.
        rss_hard_bytes: Resident memory at which it stops accepting at once; 0 is no limit.
        alive_s: Its last heartbeat; before the first, until when it needs to give none.
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("state", "pid", "reason", "granted", "successor", "gpu")),
        *((name, ctypes.c_int64) for name in ("rss_bytes", "requests", "in_flight")),
        *((name, ctypes.c_int64) for name in ("gpu_bytes", "gpu_max_step_bytes", "gpu_free_bytes")),
        *((name, ctypes.c_int64) for name in ("gpu_used_bytes", "gpu_total_bytes", "rss_hard_bytes")),
        *((name, ctypes.c_double) for name in ("gpu_busy_ratio", "gpu_busy_read_s")),
        *((name, ctypes.c_double) for name in ("gpu_read_s", "alive_s", "forked_s")),
        *((name, ctypes.c_double) for name in ("ready_s", "wanted_s", "drained_s")),
    ]


class Head(ctypes.Structure):
    """What concerns all workers.

    Attributes:
        base: Workers that there should be; successors come on top.
        high: Entries from this one on were never used.
        ever_ready: 1 once any worker has served.
        unusable: 1 once a worker found, before any has served, that the engine cannot be opened here.
        boot_failures: Workers that died before they were ready, or could not be forked, since the last good start.
        backoff_until_s: No worker is forked before this time.
        gpu_footprint_bytes: The most that any worker held of the GPU after its warm-up.
        exited_s: When the last worker was reaped; GPU readings from before are out of date.
        drain_first: Workers that had to go before their successor could load.
        certificates: How often the TLS certificates were read again.
        leaving: 1 once the service was asked to end, and serves on for load balancers to notice.
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("base", "high", "ever_ready", "unusable", "boot_failures", "most_live")),
        *((name, ctypes.c_int64) for name in ("drain_first", "gpu_footprint_bytes", "certificates", "leaving")),
        *((name, ctypes.c_double) for name in ("backoff_until_s", "exited_s")),
        ("recycles", ctypes.c_int64 * len(Reason)),
    ]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One worker at one moment; the fields are those of WorkerEntry."""

    slot: int
    state: State
    pid: int = 0
    reason: Reason = Reason.NONE
    granted: Granted = Granted.NOTHING
    successor: int = NO_SUCCESSOR
    gpu: int = 0
    wanted_s: float = 0.0
    drained_s: float = 0.0
    forked_s: float = 0.0
    gpu_bytes: int = 0
    gpu_max_step_bytes: int = 0
    gpu_free_bytes: int = 0
    gpu_read_s: float = 0.0

    @property
    def is_to_go(self) -> bool:
        """Whether it serves, and has a reason to be replaced."""
        return self.state is State.READY and self.reason is not Reason.NONE

    @property
    def wants(self) -> bool:
        """Whether it serves and waits for a successor to be granted."""
        return self.is_to_go and not self.granted


class WorkerTable:
    """The table of all workers. Make it in the arbiter, before any fork."""

    def __init__(self) -> None:
        [self.head] = shared_array(Head, 1)
        self._entries = shared_array(WorkerEntry, SLOTS)

    def entry(self, number: int) -> WorkerEntry:
        """The entry itself, to read and to write."""
        return self._entries[number]

    def live(self) -> list[Snapshot]:
        """A snapshot of every worker that has an entry, in the order of the entries."""
        numbers = range(self.head.high)
        return [_snapshot(number, self._entries[number]) for number in numbers if self._entries[number].state]

    def allocate(self, now_s: float) -> int:
        """The number of the lowest free entry, cleared and BOOTING. Arbiter only."""
        number = next(number for number in range(SLOTS) if self._entries[number].state == State.FREE)
        self._entries[number] = WorkerEntry(successor=NO_SUCCESSOR, forked_s=now_s)
        self._entries[number].state = State.BOOTING
        self.head.high = max(self.head.high, number + 1)
        alive = sum(entry.state != State.FREE for entry in self._entries[: self.head.high])
        self.head.most_live = max(self.head.most_live, alive)
        return number

    def free(self, number: int) -> None:
        """Free an entry, after its worker is reaped. Arbiter only."""
        self._entries[number].state = State.FREE

    def gpu_use_of_others(self, besides: int) -> tuple[int, bool]:
        """Bytes that the others on this worker's GPU last reported, and whether none of them loads or leaves."""
        gpu = self._entries[besides].gpu
        others = [worker for worker in self.live() if worker.slot != besides and worker.gpu == gpu]
        settled = all(worker.state is State.READY for worker in others)
        return sum(worker.gpu_bytes for worker in others), settled

    def requests_in_flight(self, besides: int) -> Iterator[int]:
        """Requests in flight at each worker that accepts, but for the one in the entry `besides`."""
        for number in range(self.head.high):
            entry = self._entries[number]
            if entry.state == State.READY and number != besides:
                yield entry.in_flight


def _snapshot(number: int, entry: WorkerEntry) -> Snapshot:
    # First, as a worker writes these last: one that is seen to drain has written since when.
    kinds = {"state": State(entry.state), "reason": Reason(entry.reason), "granted": Granted(entry.granted)}
    values = {name: getattr(entry, name) for name, *_ in WorkerEntry._fields_ if name in Snapshot.__slots__}
    return Snapshot(slot=number, **values | kinds)
