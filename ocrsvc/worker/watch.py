"""The watch thread: checks a worker's memory and threads, and whether its arbiter is alive.

Ten times a second it reads memory, requests and stuck threads. If there is a reason to replace the worker, it wakes the
arbiter; the worker serves until its successor is READY, then drains. At a hard limit, with all engine threads stuck, or
when the arbiter grants DRAIN_FIRST, the worker drains immediately.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ocrsvc.settings.describe import variable_of
from ocrsvc.settings.group import bytes_of
from ocrsvc.settings.settings import Settings
from ocrsvc.system.allocator import release_free_memory
from ocrsvc.system.gpu import GpuMemoryReader
from ocrsvc.system.memory import read_memory_bytes, read_rss_bytes
from ocrsvc.telemetry.worker_table import NO_SUCCESSOR, Granted, Reason, State, WorkerEntry

if TYPE_CHECKING:
    # Only for type checkers: this module imports numpy, which the arbiter must not load.
    from ocrsvc.models.loaded_models import LoadedModels

# Shares of the machine's memory for all workers; the rest is for the arbiter, the page cache and other processes.
_SOFT_SHARE: Final = 0.8
_HARD_SHARE: Final = 0.9
# Shares of the GPU memory that all workers may fill together; memory of other programs is subtracted first.
_GPU_SOFT_SHARE: Final = 0.85
_GPU_HARD_SHARE: Final = 0.95
CHECK_S: Final = 0.1
# Least time between two signals to the arbiter, which also checks by itself every second.
_WAKE_S: Final = 1.0
# Poll interval and grace time: after the arbiter's death, all processes must end within 5 s.
_PARENT_CHECK_S: Final = 0.5
_ORPHAN_S: Final = 2.5
# Stacks go to the file descriptor, because sys.stderr may be replaced.
STDERR: Final = 2
# Return free memory to the system at this interval, if the worker has grown by at least `_GROWN_BYTES` and requests
# hold less than `_IDLE_SHARE` of their budget.
_GIVE_BACK_S: Final = 10.0
_GROWN_BYTES: Final = 48 << 20
_IDLE_SHARE: Final = 0.1
# Interval for reading the GPU utilization, which NVML updates every 1/6 s to 1 s.
_UTILIZATION_S: Final = 1.0
_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory limits: at the soft limit a successor loads, at the hard limit the worker drains now. 0: no limit."""

    soft_bytes: int = 0
    hard_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """The bytes of one kind of memory at one check, and its largest increase between two checks so far."""

    now_bytes: int = 0
    max_step_bytes: int = 0

    def then(self, now_bytes: int, *, is_step: bool = True) -> Usage:
        """The usage at the next check; without `is_step`, and at the first check, the increase is ignored."""
        step_bytes = now_bytes - self.now_bytes if self.now_bytes and is_step else 0
        return Usage(now_bytes, max(self.max_step_bytes, step_bytes))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits after which a worker is replaced: requests served, seconds since READY, and memory. 0 is no limit."""

    max_requests: int = 0
    max_age_s: float = 0.0
    rss: Bounds = field(default_factory=Bounds)
    gpu: Bounds = field(default_factory=Bounds)


def reason_to_replace(limits: Limits, requests: int, age_s: float, rss: Usage, gpu: Usage) -> Reason:
    """The most urgent reason to replace a worker with these measurements; NONE to keep it."""
    rules = (
        (Reason.GPU_HARD, limits.gpu.hard_bytes, gpu.now_bytes),
        (Reason.RSS_HARD, limits.rss.hard_bytes, rss.now_bytes),
        (Reason.GPU_SOFT, limits.gpu.soft_bytes, gpu.now_bytes),
        (Reason.RSS_SOFT, limits.rss.soft_bytes, rss.now_bytes),
        # Another increase like the largest one would reach the hard limit.
        (Reason.GPU_GROWTH, limits.gpu.hard_bytes, gpu.now_bytes + gpu.max_step_bytes),
        (Reason.RSS_GROWTH, limits.rss.hard_bytes, rss.now_bytes + rss.max_step_bytes),
        (Reason.MAX_REQUESTS, limits.max_requests, requests),
        (Reason.MAX_AGE, limits.max_age_s, age_s),
    )
    return next((reason for reason, limit, value in rules if 0 < limit <= value), Reason.NONE)


def request_replacement(entry: WorkerEntry, reason: Reason) -> None:
    """Record why a worker should be replaced; a more urgent reason overrides an earlier one."""
    if reason.pressure > Reason(entry.reason).pressure:
        entry.wanted_s = entry.wanted_s or time.monotonic()
        entry.reason = reason


def calibrate(
    soft: int | None,
    hard: int | None,
    *,
    footprint_bytes: int,
    memory_bytes: int,
    workers: int,
    reserved_bytes: int = 0,
) -> Bounds:
    """The limits of one worker's resident memory; each worker may hold `reserved_bytes` in addition.

    Chosen so that all workers at their limit and one successor fill 80 % (soft) or 90 % (hard) of the memory. Limits
    set by the operator (`soft`, `hard`) take precedence; 0 is no limit.
    """
    reserved_bytes *= workers
    limits = ((soft, _SOFT_SHARE * memory_bytes - reserved_bytes), (hard, _HARD_SHARE * memory_bytes - reserved_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes, workers)


def calibrate_gpu(
    soft: int | None, hard: int | None, *, footprint_bytes: int, gpu_memory_bytes: int, workers: int
) -> Bounds:
    """The limits of one worker's GPU memory, so that all workers fill 85 % (soft) and 95 % (hard) of the GPU.

    Room for a successor is reserved if that leaves each worker at least half of its headroom above the footprint.
    Otherwise smaller limits would replace workers too often, so none is reserved: a replaced worker then drains first.
    """
    alone_bytes = _GPU_SOFT_SHARE * gpu_memory_bytes / workers
    with_successor_bytes = alone_bytes - footprint_bytes / workers
    has_room = 2 * (with_successor_bytes - footprint_bytes) >= alone_bytes - footprint_bytes
    limits = ((soft, _GPU_SOFT_SHARE * gpu_memory_bytes), (hard, _GPU_HARD_SHARE * gpu_memory_bytes))
    return _bounds(limits, footprint_bytes, footprint_bytes if has_room else 0, workers)


def _bounds(
    limits: Iterable[tuple[int | None, float]], footprint_bytes: int, successor_bytes: int, workers: int
) -> Bounds:
    """Soft and hard limits; `limits` has, for each, the operator's value or None, and the memory for all workers.

    A limit below the footprint of a warm worker is turned off (0).
    """
    chosen = (round((fill - successor_bytes) / workers) if given is None else given for given, fill in limits)
    return Bounds(*(limit if limit > footprint_bytes else 0 for limit in chosen))


def rss_bounds(worker: Any, settings: Settings, reserved_bytes: int = 0) -> Bounds:
    """The resident memory limits of a warm worker; each worker may load `reserved_bytes` of models later."""
    memory_bytes, footprint_bytes = read_memory_bytes(), worker.entry.rss_bytes
    given = {name: bytes_of(getattr(settings, name), memory_bytes) for name in ("rss_soft_bytes", "rss_hard_bytes")}
    sizes = {"footprint_bytes": footprint_bytes, "memory_bytes": memory_bytes, "reserved_bytes": reserved_bytes}
    bounds = calibrate(*given.values(), **sizes, workers=worker.cfg.workers)
    _log_disabled_limits(worker, given, bounds, footprint_bytes)
    return bounds


def gpu_bounds(worker: Any, settings: Settings, gauge: GpuMemoryReader | None, gpus: int) -> Bounds:
    """The GPU memory limits of a warm worker; also writes its current GPU memory into the worker table."""
    entry, siblings = worker.entry, worker.siblings()
    names = ("gpu_soft_bytes", "gpu_hard_bytes")
    reading = gauge.read(siblings) if gauge is not None else None
    if reading is None:
        for name in names:
            if getattr(settings, name):
                worker.log.error("%s is set, but this worker cannot read a GPU.", variable_of(name))
        return Bounds()
    entry.gpu_bytes, entry.gpu_free_bytes = reading.own_bytes, reading.free_bytes
    given = {name: bytes_of(getattr(settings, name), reading.total_bytes) for name in names}
    workers = math.ceil(worker.cfg.workers / max(1, gpus))
    ours_bytes = reading.total_bytes - max(0, reading.used_bytes - reading.own_bytes - siblings.gpu_bytes)
    sizes = {"footprint_bytes": reading.own_bytes, "gpu_memory_bytes": ours_bytes}
    bounds = calibrate_gpu(*given.values(), **sizes, workers=workers)
    _log_disabled_limits(worker, given, bounds, reading.own_bytes)
    if bounds.soft_bytes == 0 and given["gpu_soft_bytes"] is None:
        worker.log.error(
            "The GPU has %s bytes for %s workers of %s bytes each: without room to grow, workers are not replaced "
            "before the GPU is full. Set fewer OCRSVC_WORKERS.",
            *(ours_bytes, workers, reading.own_bytes),
        )
    return bounds


def _log_disabled_limits(worker: Any, given: Mapping[str, int | None], bounds: Bounds, footprint_bytes: int) -> None:
    """Log each limit set by the operator that is off because it is below the footprint."""
    for (name, limit), used in zip(given.items(), (bounds.soft_bytes, bounds.hard_bytes), strict=True):
        if limit and not used:
            worker.log.error(
                "%s is %s, but a warm worker holds %s bytes: replacing it would not help, so this limit is off.",
                *(variable_of(name), limit, footprint_bytes),
            )


@dataclass(slots=True)
class Watch:
    """Watches one worker from READY until it drains."""

    worker: Any
    limits: Limits
    gauge: GpuMemoryReader | None = None
    stuck_threads: Callable[[], int] = lambda: 0
    on_check: Callable[[], object] = lambda: None
    # Models loaded after READY do not count against the worker's limits. None if child processes hold the models.
    models: LoadedModels | None = None
    ready_models_bytes: int = 0
    _woken_s: float = field(default=0.0, init=False)
    _gave_back_s: float = field(default=0.0, init=False)
    _stuck: int = field(default=0, init=False)

    def run(self) -> None:
        """Thread function: watch, and continue after an error, as an unwatched worker would never be replaced."""
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
            # `read_rss_bytes` returns 0 if no file descriptor is free; then the previous value stays.
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
        """Read this worker's GPU memory and write it into the worker table; 0 bytes if it cannot be read."""
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
        worker, before, self._stuck = self.worker, self._stuck, self.stuck_threads()
        if self._stuck > before:
            request_replacement(worker.entry, Reason.STUCK)
            worker.log.error(
                "STUCK: %s of %s engine threads are still busy long after the deadline of their work. "
                "This worker is replaced; the stacks of its threads follow.",
                *(self._stuck, worker.engine_threads),
            )
            worker.flush_log()
            faulthandler.dump_traceback(file=STDERR)

    def _request_successor(self, now_s: float) -> None:
        """If the worker needs replacing, keep waking the arbiter until it grants the replacement."""
        entry = self.worker.entry
        if not entry.reason or entry.granted or now_s - self._woken_s <= _WAKE_S:
            return
        if not self._woken_s:
            self.worker.log.info(
                "WANTS a successor: %s, requests=%s rss_bytes=%s gpu_bytes=%s",
                *(Reason(entry.reason).name.lower(), entry.requests, entry.rss_bytes, entry.gpu_bytes),
            )
        self._woken_s = now_s
        # SIGCHLD makes the arbiter check its workers, and is harmless if none has ended. If the arbiter runs as
        # another user, the signal fails, and the arbiter's next check follows within a second.
        with suppress(OSError):
            os.kill(self.worker.ppid, signal.SIGCHLD)

    def _give_back_memory(self, now_s: float, grown_bytes: int) -> None:
        """Return freed memory to the system after large requests, even while small requests continue."""
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
    """Thread function, started after the fork: end this process when the arbiter has died, even during loading."""
    while os.getppid() == worker.ppid:
        time.sleep(_PARENT_CHECK_S)
    worker.log.error("The arbiter is gone: this worker exits within %.1f s.", _ORPHAN_S)
    end_s = time.monotonic() + _ORPHAN_S
    if worker.booted:
        worker.stop()
    while worker.entry.in_flight and time.monotonic() < end_s:
        time.sleep(CHECK_S)
    worker.flush_log()
    # A normal exit would wait for a hung engine thread, and no arbiter is left to kill the process.
    os._exit(1)
