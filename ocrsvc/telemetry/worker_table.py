"""The state of all workers, in shared memory that the arbiter creates and every worker inherits by fork.

It has one Head, and one WorkerEntry per living worker. The arbiter allocates and frees entries and grants replacements;
a worker writes its own measurements. Each field is written by one aligned 8-byte store, so that no lock is needed and a
killed worker leaves no half-written number.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ocrsvc.system.shared_memory import shared_array

SLOTS: Final = 1024
NO_SUCCESSOR: Final = -1


class Reason(IntEnum):
    """Why a worker is replaced; NONE while there is no reason."""

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
        """Urgency of a replacement: 3 is immediate, 2 before memory or threads run out, 1 any other reason, 0 none."""
        if self in (Reason.RSS_HARD, Reason.GPU_HARD):
            return 3
        if self in (Reason.RSS_SOFT, Reason.RSS_GROWTH, Reason.GPU_SOFT, Reason.GPU_GROWTH, Reason.STUCK):
            return 2
        return int(self is not Reason.NONE)

    @property
    def is_urgent(self) -> bool:
        """Whether the worker stops accepting without waiting for a successor."""
        return self.pressure == 3


class State(IntEnum):
    """The state of a worker's entry. A READY worker that is to be replaced serves until its successor is ready."""

    FREE = 0
    BOOTING = 1
    READY = 2
    DRAINING = 3


class Granted(IntEnum):
    """When a worker to be replaced may end: not yet, once its successor is ready, or before the successor is forked."""

    NOTHING = 0
    SUCCESSOR = 1
    DRAIN_FIRST = 2


class WorkerEntry(ctypes.Structure):
    """The entry of one worker. Times are monotonic seconds, which are the same in all processes of a machine.

    Attributes:
        pid: 0 until the worker has written it.
        successor: The slot of its successor; NO_SUCCESSOR until the successor is forked.
        gpu: Number of its GPU among all GPUs that the service has used since its start.
        gpu_bytes, gpu_max_step_bytes: Its GPU memory, and the largest increase between two checks.
        gpu_busy_ratio: Share of the last second in which the GPU was busy.
        gpu_read_s, gpu_busy_read_s: When GPU memory and `gpu_busy_ratio` were read; 0 if they could not be.
        rss_hard_bytes: Resident memory at which the worker stops accepting; 0 is no limit.
        alive_s: Time of the last heartbeat; before the first one, the future time from which the timeout counts.
        wanted_s: When its replacement was requested; 0 if none was.
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
    """The state shared by all workers.

    Attributes:
        base: Number of workers, successors not counted.
        high: Entries from this number on were never used.
        ever_ready: 1 after any worker was ready.
        unusable: 1 if, before any worker was ready, one reported that the engine cannot be opened.
        boot_failures: Workers that died before READY, or could not be forked, since the last successful start.
        backoff_until_s: No worker is forked before this time.
        gpu_footprint_bytes: Largest GPU memory of any worker after its warm-up.
        exited_s: When the last worker was reaped; GPU measurements from before are out of date.
        drain_first: Number of workers that drained before their successor loaded.
        certificates: Generation of the TLS certificates that workers should use.
        leaving: 1 while a stopping service reports "not ready" but still serves (OCRSVC_DRAIN_S).
    """

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("base", "high", "ever_ready", "unusable", "boot_failures", "max_live")),
        *((name, ctypes.c_int64) for name in ("drain_first", "gpu_footprint_bytes", "certificates", "leaving")),
        *((name, ctypes.c_double) for name in ("backoff_until_s", "exited_s")),
        ("recycles", ctypes.c_int64 * len(Reason)),
    ]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of one worker's entry at one moment; the fields are those of WorkerEntry."""

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
    def needs_replacement(self) -> bool:
        """Whether the worker is ready and has a reason to be replaced."""
        return self.state is State.READY and self.reason is not Reason.NONE

    @property
    def awaits_grant(self) -> bool:
        """Whether the worker needs a replacement that the arbiter has not granted yet."""
        return self.needs_replacement and not self.granted


class WorkerTable:
    """The table of all workers. Create it in the arbiter before any fork."""

    def __init__(self) -> None:
        [self.head] = shared_array(Head, 1)
        self._entries = shared_array(WorkerEntry, SLOTS)

    def entry(self, number: int) -> WorkerEntry:
        """The worker's entry in shared memory, for reading and writing."""
        return self._entries[number]

    def live(self) -> list[Snapshot]:
        """A snapshot of each worker, in order of slots."""
        numbers = range(self.head.high)
        return [_snapshot(number, self._entries[number]) for number in numbers if self._entries[number].state]

    def allocate(self, now_s: float) -> int:
        """Arbiter only: clear the lowest free entry and set it to BOOTING; return its number."""
        number = next(number for number in range(SLOTS) if self._entries[number].state == State.FREE)
        self._entries[number] = WorkerEntry(successor=NO_SUCCESSOR, forked_s=now_s)
        self._entries[number].state = State.BOOTING
        self.head.high = max(self.head.high, number + 1)
        alive = sum(entry.state != State.FREE for entry in self._entries[: self.head.high])
        self.head.max_live = max(self.head.max_live, alive)
        return number

    def free(self, number: int) -> None:
        """Arbiter only: free an entry after its worker was reaped."""
        self._entries[number].state = State.FREE

    def gpu_use_of_others(self, slot: int) -> tuple[int, bool]:
        """The GPU bytes that other workers on this worker's GPU have reported, and whether all of them are READY."""
        gpu = self._entries[slot].gpu
        others = [worker for worker in self.live() if worker.slot != slot and worker.gpu == gpu]
        settled = all(worker.state is State.READY for worker in others)
        return sum(worker.gpu_bytes for worker in others), settled

    def requests_in_flight(self, excluding: int) -> Iterator[int]:
        """The number of requests in flight at each READY worker except the one in the slot `excluding`."""
        for number in range(self.head.high):
            entry = self._entries[number]
            if entry.state == State.READY and number != excluding:
                yield entry.in_flight


def _snapshot(number: int, entry: WorkerEntry) -> Snapshot:
    # Read these first, because a worker writes them last: if its state is DRAINING, drained_s is already set.
    kinds = {"state": State(entry.state), "reason": Reason(entry.reason), "granted": Granted(entry.granted)}
    values = {name: getattr(entry, name) for name, *_ in WorkerEntry._fields_ if name in Snapshot.__slots__}
    return Snapshot(slot=number, **values | kinds)
