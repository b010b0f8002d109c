"""The gunicorn worker class: watches its own limits, asks for a successor, and drains.

A watching thread reads memory, requests and stuck threads ten times a second. Once there is a reason, the worker writes
it to its entry in the worker table and wakes the arbiter; it serves on until its successor is READY, and drains then.
At a hard limit, with all engine threads stuck, or when the arbiter says so, it drains at once. Another thread ends it
when the arbiter is gone.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ocrsvc.system.allocator import give_back
from ocrsvc.system.gpu import GpuMemoryReader, Siblings
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.telemetry.worker_table import NOBODY, Granted, Reason, State
from ocrsvc.worker.accept_yield import FairThreadWorker
from ocrsvc.worker.replacement_limits import Limits, MemoryTrend, Readings, Usage, reason_to_replace

if TYPE_CHECKING:
    # It is imported where gRPC is served only.
    from ocrsvc.grpc_server.server import RpcServer

CHECK_S: Final = 0.1
# The arbiter checks by itself every second; the signal only makes it check now.
_WAKE_S: Final = 1.0
# Together well below the 5 s in which everything is gone after the arbiter is.
_PARENT_CHECK_S: Final = 0.5
_ORPHAN_S: Final = 2.5
# Before the arbiter, which gives a stopping service just the graceful timeout, ends it by force.
_STACKS_SHARE: Final = 0.9
_STDERR: Final = 2
# Memory beyond that of a warm worker is given back so often, from so much on, while requests hold so little.
_GIVE_BACK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
_FREE: Final = 0.1
# NVML's own interval is between 1/6 s and a second.
_LOAD_S: Final = 1.0
# Between two heartbeats, while the gRPC server finishes; and after an error of the watch.
_WAIT_S: Final = 1.0


class ChangingModels(Protocol):
    """Models that come and go in this process."""

    def added_bytes(self) -> int:
        """What they take more than when the worker was ready; may be negative."""
        ...

    def is_settled(self) -> bool:
        """Whether none is being loaded or closed."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """What a worker watches over itself.

    Attributes:
        limits: For its requests, age and memory.
        rss_bytes, gpu_bytes: What it holds after its warm-up.
        boot_s: How long it took from the fork until it was ready, less what it waited for others.
        gauge: Reads the GPU; None without one.
        stuck_threads: How many engine threads will not come back.
        on_check: Called each time.
        models: Those that it loads and closes; what they take is not held against its limits. None without.
    """

    limits: Limits
    rss_bytes: int
    gpu_bytes: int = 0
    boot_s: float = 0.0
    gauge: GpuMemoryReader | None = None
    stuck_threads: Callable[[], int] = int
    on_check: Callable[[], object] = bool
    models: ChangingModels | None = None

    def models_bytes(self) -> int:
        """What models have added to the memory of the warm worker."""
        return 0 if self.models is None else self.models.added_bytes()


class RecyclingWorker(FairThreadWorker):
    """The worker of this service; its boot in boot.py gives it its entry, and calls `watch` when it is READY.

    Attributes:
        most_requests: After which it is replaced; 0 is no limit.
        flush_log: Waits until the lines so far are written, for a short while.
        grpc_server: Drains when this worker does; the worker lives on until it is finished, or the time is over.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # With its random part. gunicorn itself would stop at this number, without a successor.
        self.most_requests: int = 0 if self.max_requests == sys.maxsize else self.max_requests
        self.max_requests: int = sys.maxsize
        self._draining = threading.Lock()
        self._gave_back_s = 0.0
        self.flush_log: Callable[[], object] = bool
        self.grpc_server: RpcServer | None = None

    def init_signals(self) -> None:
        """SIGUSR2 to a worker is the operator's request to replace it."""
        super().init_signals()
        signal.signal(signal.SIGUSR2, lambda _signal, _frame: self._request_replacement(Reason.OPERATOR))

    def run(self) -> None:
        """Serve until stopped, and until the gRPC server has finished too."""
        super().run()
        end_s = (self.entry.drained_s or time.monotonic()) + self.cfg.graceful_timeout
        if self.grpc_server is not None:
            self.grpc_server.drain()
            while time.monotonic() < end_s and not self.grpc_server.wait(_WAIT_S):
                self.notify()

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: stop accepting, answer what is there, end; a worker that still loads has nothing to finish."""
        self.takes_rest = True
        self._note_drain()
        if not self.booted and self.grpc_server is None:
            sys.exit(0)
        super().handle_exit(sig, frame)

    def guard(self) -> None:
        """Start to watch over the arbiter; from the fork on, so that a worker that loads does not outlive it either."""
        threading.Thread(target=self._end_with_arbiter, name="orphan", daemon=True).start()

    def siblings(self) -> Siblings:
        """The other workers' GPU memory, from the worker table."""
        return Siblings(*self.worker_table.gpu_use_of_others(self.slot_number))

    def watch(self, watched: Watched) -> None:
        """Start to watch over this worker, from when it is READY until it drains."""
        threading.Thread(target=self._keep_watching, args=(watched,), name="retirement", daemon=True).start()

    def _end_with_arbiter(self) -> None:
        while os.getppid() == self.ppid:
            time.sleep(_PARENT_CHECK_S)
        self.log.error("The arbiter is gone: this worker ends within %.1f s.", _ORPHAN_S)
        end_s = time.monotonic() + _ORPHAN_S
        while self._in_flight and time.monotonic() < end_s:
            time.sleep(CHECK_S)
        self.flush_log()
        # Nobody is left who could kill a worker whose engine never comes back.
        os._exit(1)

    def _keep_watching(self, watched: Watched) -> None:
        """Begin the watch again after an error: nobody would replace a worker that does not watch itself."""
        while self.entry.state == State.BOOTING:
            time.sleep(CHECK_S)
        while self.entry.state == State.READY:
            try:
                self._watch(watched)
            except Exception:
                self.log.exception("The watch over this worker begins again")
                time.sleep(_WAIT_S)

    def _watch(self, watched: Watched) -> None:
        rss, gpu = MemoryTrend(watched.rss_bytes), MemoryTrend(watched.gpu_bytes)
        entry, woken_s, stuck = self.entry, 0.0, 0
        while entry.state == State.READY:
            now_s = time.monotonic()
            # Without a descriptor for it there is no reading.
            entry.requests, entry.rss_bytes = self.nr, read_rss_bytes() or entry.rss_bytes
            own_bytes = entry.rss_bytes - watched.models_bytes()
            if watched.models is not None and not watched.models.is_settled():
                rss.break_off()
            readings = Readings(
                requests=entry.requests,
                age_s=now_s - entry.ready_s,
                # A successor takes as long as this one took, and it may be started after those of all other workers.
                replacement_lead_s=(1 + self.cfg.workers) * watched.boot_s,
                rss=rss.add(now_s, own_bytes),
                gpu=self._read_gpu(watched.gauge, gpu, now_s),
            )
            self._request_replacement(reason_to_replace(readings, watched.limits))
            stuck = self._note_stuck(watched.stuck_threads(), stuck)
            woken_s = self._request_successor(now_s, woken_s)
            watched.on_check()
            self._give_back_memory(now_s, own_bytes - watched.rss_bytes)
            if self._must_drain(stuck):
                self._drain()
            time.sleep(CHECK_S)

    def _give_back_memory(self, now_s: float, grown_bytes: int) -> None:
        """After large requests: what is free goes back to the system, also where small ones never stop coming."""
        memory = self.limits.memory
        is_due = now_s - self._gave_back_s >= _GIVE_BACK_S and grown_bytes > _GROWN_BYTES
        if is_due and memory.held_bytes < _FREE * memory.total_bytes:
            self._gave_back_s = now_s
            give_back()

    def _request_successor(self, now_s: float, woken_s: float) -> float:
        """Wake the arbiter for a successor that it has not granted; when that was done last (0 is never)."""
        entry = self.entry
        if not entry.reason or entry.granted or now_s - woken_s <= _WAKE_S:
            return woken_s
        if not woken_s:
            self.log.info(
                "WANTS a successor: %s, requests=%s rss_bytes=%s gpu_bytes=%s",
                *(Reason(entry.reason).name.lower(), entry.requests, entry.rss_bytes, entry.gpu_bytes),
            )
        # SIGCHLD makes it look for dead children, and changes nothing when there are none. Where it is another user's
        # process it checks by itself soon.
        with suppress(OSError):
            os.kill(self.ppid, signal.SIGCHLD)
        return now_s

    def _read_gpu(self, gauge: GpuMemoryReader | None, trend: MemoryTrend, now_s: float) -> Usage:
        """The GPU memory that this worker holds, reported to the arbiter too; nothing without a reading."""
        entry = self.entry
        reading = gauge.read(self.siblings()) if gauge is not None else None
        if reading is None:
            entry.gpu_read_s = entry.gpu_busy_read_s = 0.0
            return Usage()
        usage = trend.add(now_s, reading.own_bytes)
        entry.gpu_bytes, entry.gpu_max_step_bytes = reading.own_bytes, usage.max_step_bytes
        entry.gpu_used_bytes, entry.gpu_total_bytes = reading.used_bytes, reading.total_bytes
        entry.gpu_free_bytes, entry.gpu_read_s = reading.free_bytes, now_s
        self._read_gpu_load(gauge, now_s)
        return usage

    def _read_gpu_load(self, gauge: GpuMemoryReader | None, now_s: float) -> None:
        """How busy the GPU is, once a second, of which NVML takes the mean."""
        entry = self.entry
        if gauge is not None and now_s - entry.gpu_busy_read_s >= _LOAD_S:
            busy_ratio = gauge.read_busy_ratio()
            entry.gpu_busy_ratio, entry.gpu_busy_read_s = busy_ratio or 0.0, 0.0 if busy_ratio is None else now_s

    def _note_stuck(self, stuck: int, before: int) -> int:
        """Request a successor for stuck engine threads, and print where they are when there are more than before."""
        if stuck > before:
            self._request_replacement(Reason.STUCK)
            self.log.error(
                "STUCK: %s of %s engine threads have not come back from work that should have been answered long ago. "
                "This worker is replaced; the stacks of its threads follow.",
                *(stuck, self.engine_threads),
            )
            self.flush_log()
            faulthandler.dump_traceback(file=_STDERR)
        return stuck

    def _must_drain(self, stuck: int) -> bool:
        entry = self.entry
        if Reason(entry.reason).is_urgent or stuck >= self.engine_threads or entry.granted == Granted.DRAIN_FIRST:
            return True
        has_successor = entry.granted == Granted.SUCCESSOR and entry.successor != NOBODY
        return bool(has_successor and self.worker_table.entry(entry.successor).state == State.READY)

    def _request_replacement(self, reason: Reason) -> None:
        """Record why this worker should be replaced; the first reason stands, except for a more urgent one."""
        entry = self.entry
        if reason.pressure > Reason(entry.reason).pressure:
            entry.wanted_s = entry.wanted_s or time.monotonic()
            entry.reason = reason

    def _drain(self) -> None:
        """Stop as at SIGTERM: accept nothing, answer what was sent, close the connections, end."""
        self.log.info("DRAINING: in_flight=%s connections=%s", self.entry.in_flight, self.nr_conns)
        self._note_drain()
        super().handle_exit(signal.SIGTERM, None)

    def _note_drain(self) -> None:
        """Record it in the worker table, once; print the stacks should it take too long. Safe in a signal's handler."""
        if not self._draining.acquire(blocking=False):
            return
        entry = self.entry
        entry.drained_s, entry.state = time.monotonic(), State.DRAINING
        if self.grpc_server is not None:
            self.grpc_server.drain()
        # It starts a thread, which may be refused.
        with suppress(RuntimeError):
            faulthandler.dump_traceback_later(max(_STACKS_SHARE * self.cfg.graceful_timeout, 0.1), file=_STDERR)
