"""The state of all workers, in shared memory that the arbiter makes and every worker inherits by fork.

One head, and one entry for each living worker. The arbiter gives out and frees entries, grants successors and counts; a
worker writes its own readings. Each field is one aligned 8-byte store, so that no lock is needed, and a worker that is
killed in the middle of anything leaves no half-written number.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ocrsvc.telemetry.worker_limits import Reason

SLOTS: Final = 1024
NOBODY: Final = -1


class State(IntEnum):
    """Where a worker is in its life. A READY worker with a reason to go wants a successor, and serves on meanwhile."""

    FREE = 0
    BOOTING = 1
    READY = 2
    DRAINING = 3


class Granted(IntEnum):
    """What the arbiter has allowed a worker that wants to go."""

    NOTHING = 0
    SUCCESSOR = 1
    DRAIN_FIRST = 2


class WorkerEntry(ctypes.Structure):
    """One worker. Times are monotonic seconds, which are the same in all processes of a machine.

    Attributes:
        state, reason: See State and retire.Reason.
        pid: 0 until the worker itself has written it.
        granted: See Granted; a successor may be forked beside it, or it goes before one is forked.
        successor: That one's slot; NOBODY before the fork.
        card: The card it computes on, by its place among all that the service has used since its start.
        rss_bytes, requests, in_flight: The worker's own readings.
        gpu_bytes, gpu_leap_bytes: Its memory of the card, and the most that this grew between two checks.
        card_free_bytes: What it found free on the card.
        card_read_s: When; 0 without a reading.
        alive_s: Its last heartbeat; before the first, until when it needs to give none.
        forked_s, ready_s, wanted_s, drained_s: When each of these began.
    """

    state: int
    pid: int
    reason: int
    granted: int
    successor: int
    card: int
    rss_bytes: int
    requests: int
    in_flight: int
    gpu_bytes: int
    gpu_leap_bytes: int
    card_free_bytes: int
    card_read_s: float
    alive_s: float
    forked_s: float
    ready_s: float
    wanted_s: float
    drained_s: float

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("state", "pid", "reason", "granted", "successor", "card")),
        *((name, ctypes.c_int64) for name in ("rss_bytes", "requests", "in_flight")),
        *((name, ctypes.c_int64) for name in ("gpu_bytes", "gpu_leap_bytes", "card_free_bytes")),
        *((name, ctypes.c_double) for name in ("card_read_s", "alive_s", "forked_s")),
        *((name, ctypes.c_double) for name in ("ready_s", "wanted_s", "drained_s")),
    ]


class Head(ctypes.Structure):
    """What concerns all workers.

    Attributes:
        base: Workers that there should be; successors come on top.
        high: Slots from this one on were never used.
        ever_ready: 1 once any worker has served.
        unusable: 1 once a worker found, before any has served, that the engine cannot be opened here.
        boot_failures: Workers that died before they were ready, or could not be forked, since the last that became so.
        backoff_until_s: No worker is forked before this time.
        most_live: Most workers that ever lived at once.
        gpu_footprint_bytes: The most that any worker held of the card after its warm-up.
        exited_s: When the last worker was reaped; what was read of the card before is out of date.
        recycles: Workers replaced, by reason.
        drain_first: Those of them that had to go before their successor could load.
    """

    base: int
    high: int
    ever_ready: int
    unusable: int
    boot_failures: int
    most_live: int
    drain_first: int
    gpu_footprint_bytes: int
    backoff_until_s: float
    exited_s: float
    recycles: ctypes.Array[ctypes.c_int64]

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("base", "high", "ever_ready", "unusable", "boot_failures", "most_live")),
        *((name, ctypes.c_int64) for name in ("drain_first", "gpu_footprint_bytes")),
        *((name, ctypes.c_double) for name in ("backoff_until_s", "exited_s")),
        ("recycles", ctypes.c_int64 * len(Reason)),
    ]


class _Shared(ctypes.Structure):
    _fields_ = [("head", Head), ("slots", WorkerEntry * SLOTS)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One worker as it stood when it was looked at; the fields are those of Slot."""

    slot: int
    state: State
    pid: int = 0
    reason: Reason = Reason.NONE
    granted: Granted = Granted.NOTHING
    successor: int = NOBODY
    card: int = 0
    wanted_s: float = 0.0
    drained_s: float = 0.0
    forked_s: float = 0.0
    gpu_bytes: int = 0
    gpu_leap_bytes: int = 0
    card_free_bytes: int = 0
    card_read_s: float = 0.0

    @property
    def wants(self) -> bool:
        """Whether it serves and waits for a successor to be granted."""
        return self.state is State.READY and self.reason is not Reason.NONE and not self.granted


class WorkerTable:
    """The scoreboard. Make it in the arbiter, before any fork."""

    def __init__(self) -> None:
        self._shared = _Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Shared)))
        self.head: Head = self._shared.head
        self._slots: ctypes.Array[WorkerEntry] = self._shared.slots

    def slot(self, number: int) -> WorkerEntry:
        """The slot itself, to read and to write."""
        return self._slots[number]

    def live(self) -> list[Snapshot]:
        """Every worker that has a slot, in the order of the slots."""
        numbers = range(self.head.high)
        return [_standing(number, self._slots[number]) for number in numbers if self._slots[number].state]

    def take(self, now_s: float) -> int:
        """The lowest free slot, cleared and BOOTING. Arbiter only."""
        number = next(number for number in range(SLOTS) if self._slots[number].state == State.FREE)
        slot = self._slots[number]
        ctypes.memset(ctypes.byref(slot), 0, ctypes.sizeof(slot))
        slot.successor, slot.forked_s, slot.state = NOBODY, now_s, State.BOOTING
        self.head.high = max(self.head.high, number + 1)
        alive = sum(slot.state != State.FREE for slot in self._slots[: self.head.high])
        self.head.most_live = max(self.head.most_live, alive)
        return number

    def free(self, number: int) -> None:
        """Give a slot back, after its worker is reaped. Arbiter only."""
        self._slots[number].state = State.FREE

    def card(self, besides: int) -> tuple[int, bool]:
        """Bytes that the others on this worker's card last said they hold, and whether none of them loads or leaves."""
        card = self._slots[besides].card
        others = [worker for worker in self.live() if worker.slot != besides and worker.card == card]
        settled = all(worker.state is State.READY for worker in others)
        return sum(worker.gpu_bytes for worker in others), settled

    def loads(self, besides: int) -> Iterator[int]:
        """Requests in flight at each worker that accepts, but for the one in the slot `besides`."""
        for number in range(self.head.high):
            slot = self._slots[number]
            if slot.state == State.READY and number != besides:
                yield slot.in_flight


def _standing(number: int, slot: WorkerEntry) -> Snapshot:
    return Snapshot(
        slot=number,
        state=State(slot.state),
        pid=slot.pid,
        reason=Reason(slot.reason),
        granted=Granted(slot.granted),
        successor=slot.successor,
        card=slot.card,
        wanted_s=slot.wanted_s,
        drained_s=slot.drained_s,
        forked_s=slot.forked_s,
        gpu_bytes=slot.gpu_bytes,
        gpu_leap_bytes=slot.gpu_leap_bytes,
        card_free_bytes=slot.card_free_bytes,
        card_read_s=slot.card_read_s,
    )
