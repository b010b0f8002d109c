"""A worker's watch over itself and the arbiter.

Ten times a second a thread reads memory, requests and stuck threads. With a reason to be replaced, the worker wakes the
arbiter, keeps serving until its successor is READY, and drains. At a hard limit, with all engine threads stuck, or when
the arbiter grants DRAIN_FIRST, it drains at once.
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

from ocrsvc.system.allocator import release_free_memory
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_rss_bytes
from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, Granted, Reason, State
from ocrsvc.worker.replacement_limits import Limits, Usage, reason_to_replace, request_replacement

if TYPE_CHECKING:
    # Imports numpy, which the arbiter must not load.
    from ocrsvc.models.loaded_models import LoadedModels

CHECK_S: Final = 0.1
# The arbiter checks by itself every second; the signal only makes it check now.
_WAKE_S: Final = 1.0
# Together well below 5 s, in which all processes must be gone after the arbiter's death.
_PARENT_CHECK_S: Final = 0.5
_ORPHAN_S: Final = 2.5
_STDERR: Final = 2
# Free memory is returned at this interval, if the worker has grown this much and requests hold less than this share.
_GIVE_BACK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
_IDLE_SHARE: Final = 0.1
# NVML updates the utilization every 1/6 s to 1 s.
_UTILIZATION_S: Final = 1.0
# Pause after an error of the watch.
_RETRY_S: Final = 1.0


@dataclass(slots=True)
class Watch:
    """Watches one worker from READY until it drains."""

    worker: Any
    limits: Limits
    gauge: GpuMemoryReader | None = None
    stuck_threads: Callable[[], int] = lambda: 0
    on_check: Callable[[], object] = lambda: None
    # Models that the ready worker loads and closes do not count against its limits; None if child processes hold them.
    models: LoadedModels | None = None
    ready_models_bytes: int = 0
    _woken_s: float = field(default=0.0, init=False)
    _gave_back_s: float = field(default=0.0, init=False)
    _stuck: int = field(default=0, init=False)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system refuses it."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        """Watch, and restart after an error: without a watch the worker would never be replaced."""
        entry = self.worker.entry
        warm_bytes = entry.rss_bytes
        while entry.state == State.BOOTING:
            time.sleep(CHECK_S)
        while entry.state == State.READY:
            try:
                self._watch(warm_bytes)
            except Exception:
                self.worker.log.exception("The watch over this worker has failed; it restarts")
                time.sleep(_RETRY_S)

    def _watch(self, warm_bytes: int) -> None:
        rss, gpu, entry = Usage(), Usage(), self.worker.entry
        while entry.state == State.READY:
            now_s = time.monotonic()
            # read_rss_bytes is 0 if no descriptor is free.
            entry.requests, entry.rss_bytes = self.worker.nr, read_rss_bytes() or entry.rss_bytes
            added_bytes = 0 if self.models is None else self.models.held_bytes() - self.ready_models_bytes
            own_bytes = entry.rss_bytes - added_bytes
            rss = rss.then(own_bytes, is_step=self.models is None or self.models.is_settled)
            gpu = self._read_gpu(gpu, now_s)
            reason = reason_to_replace(self.limits, entry.requests, now_s - entry.ready_s, rss, gpu)
            request_replacement(entry, reason)
            self._note_stuck()
            self._request_successor(now_s)
            self.on_check()
            self._give_back_memory(now_s, own_bytes - warm_bytes)
            if self._must_drain():
                self.worker.drain()
            time.sleep(CHECK_S)

    def _read_gpu(self, before: Usage, now_s: float) -> Usage:
        """Read this worker's GPU memory, and report it in the worker table; an empty Usage without a GPU."""
        entry = self.worker.entry
        reading = self.gauge.read(self.worker.siblings()) if self.gauge is not None else None
        if self.gauge is None or reading is None:
            entry.gpu_read_s = entry.gpu_busy_read_s = 0.0
            return Usage(max_step_bytes=before.max_step_bytes)
        usage = before.then(reading.own_bytes)
        entry.gpu_bytes, entry.gpu_max_step_bytes = reading.own_bytes, usage.max_step_bytes
        entry.gpu_used_bytes, entry.gpu_total_bytes = reading.used_bytes, reading.total_bytes
        entry.gpu_free_bytes, entry.gpu_read_s = reading.free_bytes, now_s
        if now_s - entry.gpu_busy_read_s >= _UTILIZATION_S:
            busy_ratio = self.gauge.read_busy_ratio()
            entry.gpu_busy_ratio, entry.gpu_busy_read_s = busy_ratio or 0.0, 0.0 if busy_ratio is None else now_s
        return usage

    def _note_stuck(self) -> None:
        """If more engine threads are stuck than before, request a successor and dump their stacks."""
        stuck, before, worker = self.stuck_threads(), self._stuck, self.worker
        self._stuck = stuck
        if stuck > before:
            request_replacement(worker.entry, Reason.STUCK)
            worker.log.error(
                "STUCK: %s of %s engine threads are still busy long after the deadline of their work. "
                "This worker is replaced; the stacks of its threads follow.",
                *(stuck, worker.engine_threads),
            )
            worker.flush_log()
            faulthandler.dump_traceback(file=_STDERR)

    def _request_successor(self, now_s: float) -> None:
        """Wake the arbiter while it has not granted a requested successor."""
        entry = self.worker.entry
        if not entry.reason or entry.granted or now_s - self._woken_s <= _WAKE_S:
            return
        if not self._woken_s:
            self.worker.log.info(
                "WANTS a successor: %s, requests=%s rss_bytes=%s gpu_bytes=%s",
                *(Reason(entry.reason).name.lower(), entry.requests, entry.rss_bytes, entry.gpu_bytes),
            )
        self._woken_s = now_s
        # SIGCHLD makes the arbiter look for dead children, and is harmless if there are none. If it runs as another
        # user, the signal fails and its own check follows soon.
        with suppress(OSError):
            os.kill(self.worker.ppid, signal.SIGCHLD)

    def _give_back_memory(self, now_s: float, grown_bytes: int) -> None:
        """Return free memory to the system after large requests, even while small requests keep coming."""
        memory = self.worker.limits.memory
        is_due = now_s - self._gave_back_s >= _GIVE_BACK_S and grown_bytes > _GROWN_BYTES
        if is_due and memory.held_bytes < _IDLE_SHARE * memory.total_bytes:
            self._gave_back_s = now_s
            release_free_memory()

    def _must_drain(self) -> bool:
        entry, worker = self.worker.entry, self.worker
        is_urgent = Reason(entry.reason).is_urgent or self._stuck >= worker.engine_threads
        if is_urgent or entry.granted == Granted.DRAIN_FIRST:
            return True
        has_successor = entry.granted == Granted.SUCCESSOR and entry.successor != NO_SUCCESSOR
        return bool(has_successor and worker.worker_table.entry(entry.successor).state == State.READY)


def end_with_arbiter(worker: Any) -> None:
    """A thread's function, from the fork on: end this process when the arbiter is gone, even while it loads."""
    while os.getppid() == worker.ppid:
        time.sleep(_PARENT_CHECK_S)
    worker.log.error("The arbiter is gone: this worker exits within %.1f s.", _ORPHAN_S)
    end_s = time.monotonic() + _ORPHAN_S
    if worker.booted:
        worker.stop()
    while worker.entry.in_flight and time.monotonic() < end_s:
        time.sleep(CHECK_S)
    worker.flush_log()
    # A hung engine thread would keep the process alive, and no arbiter is left to kill it.
    os._exit(1)
