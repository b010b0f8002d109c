"""The watch of a worker over itself, and over the arbiter.

Ten times a second a thread reads memory, requests and stuck threads. With a reason the worker wakes the arbiter, serves
on until its successor is READY, and drains; at a hard limit, with all engine threads stuck, or at the arbiter's word,
it drains now.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.system.allocator import give_back
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, Granted, Reason, State
from ocrsvc.worker.replacement_limits import (
    Limits,
    MemoryTrend,
    Readings,
    Usage,
    reason_to_replace,
    request_replacement,
)

if TYPE_CHECKING:
    # It needs numpy, which must not come into the arbiter.
    from ocrsvc.models.loaded_models import LoadedModels

CHECK_S: Final = 0.1
# The arbiter checks by itself every second; the signal only makes it check now.
_WAKE_S: Final = 1.0
# Together well below the 5 s in which everything is gone after the arbiter is.
_PARENT_CHECK_S: Final = 0.5
_ORPHAN_S: Final = 2.5
_STDERR: Final = 2
# Memory beyond that of a warm worker is given back so often, from so much on, while requests hold so little.
_GIVE_BACK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
_FREE: Final = 0.1
# NVML's own interval is between 1/6 s and a second.
_LOAD_S: Final = 1.0
# After an error of the watch.
_WAIT_S: Final = 1.0


class ModelsInProcess:
    """The models that a worker loads and closes once it is ready; their memory is not held against its limits."""

    def __init__(self, models: LoadedModels) -> None:
        self._models, self._ready_bytes = models, models.held_bytes()
        # What they may take more than when it was ready.
        self.room_bytes = max(0, (models.budget_bytes or 0) - self._ready_bytes)

    def added_bytes(self) -> int:
        """What they take more than when the worker was ready; may be negative."""
        return self._models.held_bytes() - self._ready_bytes

    def is_settled(self) -> bool:
        """Whether none is being loaded or closed."""
        return self._models.is_settled


@dataclass(slots=True)
class Watch:
    """What a worker watches over itself, from when it is READY until it drains."""

    worker: Any
    limits: Limits
    # From the fork until it was ready, less what it waited for others.
    boot_s: float = 0.0
    gauge: GpuMemoryReader | None = None
    stuck_threads: Callable[[], int] = int
    # Called each time.
    on_check: Callable[[], object] = bool
    # None where they are in child processes.
    models: ModelsInProcess | None = None
    _woken_s: float = field(default=0.0, init=False)
    _gave_back_s: float = field(default=0.0, init=False)
    _stuck: int = field(default=0, init=False)

    def start(self) -> None:
        """Begin. Raises RuntimeError where the thread is refused."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        """Begin again after an error: a worker that does not watch itself would never be replaced."""
        entry = self.worker.entry
        warm_bytes = entry.rss_bytes, entry.gpu_bytes
        while entry.state == State.BOOTING:
            time.sleep(CHECK_S)
        while entry.state == State.READY:
            try:
                self._watch(*warm_bytes)
            except Exception:
                self.worker.log.exception("The watch over this worker begins again")
                time.sleep(_WAIT_S)

    def _watch(self, rss_bytes: int, gpu_bytes: int) -> None:
        rss, gpu = MemoryTrend(rss_bytes), MemoryTrend(gpu_bytes)
        entry = self.worker.entry
        while entry.state == State.READY:
            now_s = time.monotonic()
            # Without a descriptor for it there is no reading.
            entry.requests, entry.rss_bytes = self.worker.nr, read_rss_bytes() or entry.rss_bytes
            own_bytes = entry.rss_bytes - (0 if self.models is None else self.models.added_bytes())
            if self.models is not None and not self.models.is_settled():
                rss.break_off()
            readings = Readings(
                requests=entry.requests,
                age_s=now_s - entry.ready_s,
                # A successor takes as long as this one took, and it may be started after those of all other workers.
                replacement_lead_s=(1 + self.worker.cfg.workers) * self.boot_s,
                rss=rss.add(now_s, own_bytes),
                gpu=self._read_gpu(gpu, now_s),
            )
            request_replacement(entry, reason_to_replace(readings, self.limits))
            self._note_stuck()
            self._request_successor(now_s)
            self.on_check()
            self._give_back_memory(now_s, own_bytes - rss_bytes)
            if self._must_drain():
                self.worker.drain()
            time.sleep(CHECK_S)

    def _read_gpu(self, trend: MemoryTrend, now_s: float) -> Usage:
        """The GPU memory that this worker holds, reported to the arbiter too; nothing without a reading."""
        entry = self.worker.entry
        reading = self.gauge.read(self.worker.siblings()) if self.gauge is not None else None
        if self.gauge is None or reading is None:
            entry.gpu_read_s = entry.gpu_busy_read_s = 0.0
            return Usage()
        usage = trend.add(now_s, reading.own_bytes)
        entry.gpu_bytes, entry.gpu_max_step_bytes = reading.own_bytes, usage.max_step_bytes
        entry.gpu_used_bytes, entry.gpu_total_bytes = reading.used_bytes, reading.total_bytes
        entry.gpu_free_bytes, entry.gpu_read_s = reading.free_bytes, now_s
        if now_s - entry.gpu_busy_read_s >= _LOAD_S:
            busy_ratio = self.gauge.read_busy_ratio()
            entry.gpu_busy_ratio, entry.gpu_busy_read_s = busy_ratio or 0.0, 0.0 if busy_ratio is None else now_s
        return usage

    def _note_stuck(self) -> None:
        """Request a successor for stuck engine threads, and print where they are when there are more than before."""
        stuck, before, worker = self.stuck_threads(), self._stuck, self.worker
        self._stuck = stuck
        if stuck > before:
            request_replacement(worker.entry, Reason.STUCK)
            worker.log.error(
                "STUCK: %s of %s engine threads have not come back from work that should have been answered long ago. "
                "This worker is replaced; the stacks of its threads follow.",
                *(stuck, worker.engine_threads),
            )
            worker.flush_log()
            faulthandler.dump_traceback(file=_STDERR)

    def _request_successor(self, now_s: float) -> None:
        """Wake the arbiter for a successor that it has not granted."""
        entry = self.worker.entry
        if not entry.reason or entry.granted or now_s - self._woken_s <= _WAKE_S:
            return
        if not self._woken_s:
            self.worker.log.info(
                "WANTS a successor: %s, requests=%s rss_bytes=%s gpu_bytes=%s",
                *(Reason(entry.reason).name.lower(), entry.requests, entry.rss_bytes, entry.gpu_bytes),
            )
        self._woken_s = now_s
        # SIGCHLD makes it look for dead children, and changes nothing when there are none. Where it is another user's
        # process it checks by itself soon.
        with suppress(OSError):
            os.kill(self.worker.ppid, signal.SIGCHLD)

    def _give_back_memory(self, now_s: float, grown_bytes: int) -> None:
        """After large requests: what is free goes back to the system, also where small ones never stop coming."""
        memory = self.worker.limits.memory
        is_due = now_s - self._gave_back_s >= _GIVE_BACK_S and grown_bytes > _GROWN_BYTES
        if is_due and memory.held_bytes < _FREE * memory.total_bytes:
            self._gave_back_s = now_s
            give_back()

    def _must_drain(self) -> bool:
        entry, worker = self.worker.entry, self.worker
        is_urgent = Reason(entry.reason).is_urgent or self._stuck >= worker.engine_threads
        if is_urgent or entry.granted == Granted.DRAIN_FIRST:
            return True
        has_successor = entry.granted == Granted.SUCCESSOR and entry.successor != NO_SUCCESSOR
        return bool(has_successor and worker.worker_table.entry(entry.successor).state == State.READY)


def end_with_arbiter(worker: Any) -> None:
    """Watch over the arbiter, from the fork on: a worker that loads ends with it too. Raises RuntimeError."""
    threading.Thread(target=_end_with_arbiter, args=(worker,), name="orphan", daemon=True).start()


def _end_with_arbiter(worker: Any) -> None:
    while os.getppid() == worker.ppid:
        time.sleep(_PARENT_CHECK_S)
    worker.log.error("The arbiter is gone: this worker ends within %.1f s.", _ORPHAN_S)
    end_s = time.monotonic() + _ORPHAN_S
    if worker.booted:
        worker.stop()
    while worker.entry.in_flight and time.monotonic() < end_s:
        time.sleep(CHECK_S)
    worker.flush_log()
    # No arbiter is left that could kill a worker whose engine never comes back.
    os._exit(1)
